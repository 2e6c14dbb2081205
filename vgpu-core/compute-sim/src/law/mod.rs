//! The laws that decide which launch goes and which waits: the law of today, and the law by measured time.

pub(crate) mod events;
pub(crate) mod io;
pub(crate) mod measured;
pub(crate) mod today;

use vgpu_abi::arbitration::{Entry, SlotPage};
use vgpu_core::compute::measured::config::Config;

use crate::Ns;
use io::{Law, Living};
use measured::Measured;
use today::Today;

/// The law that a simulation runs with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LawKind {
    /// Nobody: the GPU's slices alone.
    Hardware,
    Today,
    Measured(Config),
}

impl LawKind {
    /// Returns the law by measured time as it is proposed.
    #[must_use]
    pub fn measured() -> Self {
        Self::Measured(Config::default())
    }
}

/// Returns the law of a process that starts. `owner`: its name in cells of the share's page.
pub(crate) fn make(
    kind: LawKind,
    page: &SlotPage,
    living: &Living,
    owner: u64,
    entry: Entry,
    now: Ns,
) -> Option<Box<dyn Law>> {
    match kind {
        LawKind::Hardware => None,
        LawKind::Today => Some(Box::new(Today::new(page, living, owner, entry, now))),
        LawKind::Measured(config) => Some(Box::new(Measured::new(config, owner, entry))),
    }
}
