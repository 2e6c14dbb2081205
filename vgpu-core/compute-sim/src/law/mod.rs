//! The law decides which launch starts and which waits. A simulation has no law (the hardware alone), or the limiter of
//! `vgpu_core::compute`.

pub(crate) mod events;
pub(crate) mod io;
pub(crate) mod limited;

use vgpu_abi::arbitration::Entry;
use vgpu_core::compute::limiter::config::Config;

use io::Law;
use limited::Limited;

/// The law of a simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LawKind {
    /// No law: only the GPU's time slices.
    Hardware,
    Limited(Config),
}

impl LawKind {
    /// Returns the limiter with the library's configuration.
    #[must_use]
    pub fn limited() -> Self {
        Self::Limited(Config::default())
    }
}

/// Creates the law of a starting process. `owner` is its name in cells of the share's page.
pub(crate) fn make(kind: LawKind, owner: u64, entry: Entry) -> Option<Box<dyn Law>> {
    match kind {
        LawKind::Hardware => None,
        LawKind::Limited(config) => Some(Box::new(Limited::new(config, owner, entry))),
    }
}
