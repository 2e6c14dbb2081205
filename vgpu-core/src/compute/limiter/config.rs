//! The constants of the law that were chosen by measurement.

use crate::compute::{MS, Ns, US};

/// Most launches in flight beside others.
pub(super) const MOST: u32 = 32;
/// Most launches in flight of a capped share with all cores; a smaller share may have a proportional part.
pub(super) const MOST_CAPPED: u32 = 48;
/// Most GPU time in flight beside others.
pub(super) const AHEAD: Ns = 2 * MS;
/// Most GPU time in flight of a capped share.
pub(super) const AHEAD_CAPPED: Ns = 300 * US;
/// Most GPU time in flight of a share that is alone.
pub(super) const AHEAD_ALONE: Ns = 70 * MS;
/// Most GPU time in flight of a share that has turns on several GPUs: its kernels may wait for each other.
pub(super) const AHEAD_RANKS: Ns = 500 * US;
/// An event is recorded behind this many launches of a stream.
pub(super) const EVERY: u32 = 16;
/// An event is also recorded when the first launch without one is this old.
pub(super) const AGE: Ns = 200 * US;
/// How often a share that is alone measures a launch.
pub(super) const AGE_ALONE: Ns = 2 * MS;
/// The mean time of a launch is taken over this much GPU time.
pub(super) const MEMORY: Ns = 100 * MS;
/// A thread that should wait no longer than this spins instead of sleeping.
pub(super) const LONGEST_SPIN: Ns = 80 * US;
/// The work in flight of a killed process is charged by the clock, up to this bound, which doubles with each such death.
pub(super) const BURIAL: Ns = 1000 * MS;
/// A rank's turn is over if others want the GPU and none of the rank's launches has ended for this long.
pub(super) const GIVES_UP: Ns = 4 * MS;
