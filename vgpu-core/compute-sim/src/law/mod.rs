//! Who decides which launch goes and which waits: nobody, or the limiter of `vgpu_core::compute`.

pub(crate) mod events;
pub(crate) mod io;
pub(crate) mod limited;

use vgpu_abi::arbitration::Entry;
use vgpu_core::compute::limiter::config::Config;

use io::Law;
use limited::Limited;

/// The law that a simulation runs with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LawKind {
    /// Nobody: the GPU's slices alone.
    Hardware,
    Limited(Config),
}

impl LawKind {
    /// Returns the limiter as the library has it.
    #[must_use]
    pub fn limited() -> Self {
        Self::Limited(Config::default())
    }
}

/// Returns the law of a process that starts. `owner`: its name in cells of the share's page.
pub(crate) fn make(kind: LawKind, owner: u64, entry: Entry) -> Option<Box<dyn Law>> {
    match kind {
        LawKind::Hardware => None,
        LawKind::Limited(config) => Some(Box::new(Limited::new(config, owner, entry))),
    }
}
