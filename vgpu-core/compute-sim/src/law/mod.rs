//! What decides which launch goes and which waits: the law of today, and the law by measured time.

pub(crate) mod events;
pub(crate) mod io;
pub mod measured;
pub(crate) mod today;

use vgpu_abi::arbitration::{Entry, SlotPage};
use vgpu_core::compute::account;

use crate::Ns;
use io::{Law, Words};
use measured::Measured;
use today::Today;

/// Who limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LawKind {
    /// Nobody: the GPU's slices alone.
    Hardware,
    Today,
    Measured(measured::Config),
}

/// Returns the law of a process that starts. `cell` is its cell of the share's page, `owner` its name there.
pub(crate) fn make(kind: LawKind, cell: usize, owner: u64, entry: Entry) -> Option<Box<dyn Law>> {
    match kind {
        LawKind::Hardware => None,
        LawKind::Today => Some(Box::new(Today::new(cell, entry))),
        LawKind::Measured(config) => Some(Box::new(Measured::new(config, cell, owner, entry))),
    }
}

/// A process takes a cell: what the one before it had in flight is charged if it is dead.
pub(crate) fn bury(kind: LawKind, page: &SlotPage, words: &mut Words, weight: u32, cell: usize, now: Ns) {
    match kind {
        LawKind::Hardware => {}
        LawKind::Today => account::bury(page, weight, &page.cells[cell], now),
        LawKind::Measured(config) => measured::cells::bury(&config, page, words, weight, cell, now),
    }
}
