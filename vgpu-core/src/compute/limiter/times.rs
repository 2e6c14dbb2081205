//! How long turns, wishes and waits last.

use crate::compute::{MS, Ns, US};

/// How much longer others leave the GPU to a share than its work is expected to take: more than a context switch, else
/// a turn is lost before it has begun on the GPU.
pub(in crate::compute) const GRACE: Ns = 500 * US;
/// How long a turn is kept at most when nothing is in flight.
pub(in crate::compute) const LINGER: Ns = 300 * US;
/// A program that launches again later than this does not keep its turn.
pub(in crate::compute) const LONG_GAP: Ns = 700 * US;
/// A share that has waited this long goes, if it has not used its `cores`.
pub(in crate::compute) const OVERRIDE: Ns = 250 * MS;
/// A launch of a capped share waits for this much of the GPU's whole time at least, divided by its part, for a kernel that
/// may wait for it.
pub(in crate::compute) const STUCK: Ns = 1000 * MS;
/// For how long the page of a share is left out that kept another one from its `cores`.
pub(in crate::compute) const DISTRUST: Ns = 750 * MS;
/// How long a wish holds that is not renewed.
pub(in crate::compute) const WISH: Ns = 300 * MS;
/// No sleep is longer, so that wishes are renewed.
pub(in crate::compute) const LONGEST_SLEEP: Ns = 100 * MS;
/// A share that does not take a free turn for this long is passed over.
pub(in crate::compute) const ABSENT: Ns = 5 * MS;
/// A turn without work for this long is over.
pub(in crate::compute) const FORGOTTEN: Ns = 2 * MS;
