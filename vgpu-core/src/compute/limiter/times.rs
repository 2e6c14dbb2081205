//! How long turns, wishes and waits last.

use crate::compute::{MS, Ns, US};

/// How much longer than expected others leave the GPU to a share's work. It is more than a context switch: otherwise a
/// turn could be lost before it began on the GPU.
pub(in crate::compute) const GRACE: Ns = 500 * US;
/// How long a turn is kept at most when nothing is in flight.
pub(in crate::compute) const LINGER: Ns = 300 * US;
/// A program whose pause before its next launch is longer than this does not keep its turn.
pub(in crate::compute) const LONG_GAP: Ns = 700 * US;
/// A share that has waited this long without using its `cores` goes without a turn.
pub(in crate::compute) const OVERRIDE: Ns = 250 * MS;
/// How long a launch waits behind a kernel that may in turn wait for it. A capped share divides this by its part of the
/// GPU.
pub(in crate::compute) const STUCK: Ns = 1000 * MS;
/// How long a share's page is ignored after it kept another share from its `cores`.
pub(in crate::compute) const DISTRUST: Ns = 750 * MS;
/// How long a wish is valid without being renewed.
pub(in crate::compute) const WISH: Ns = 300 * MS;
/// The longest sleep, so that wishes are renewed.
pub(in crate::compute) const LONGEST_SLEEP: Ns = 100 * MS;
/// A share that does not take a free turn for this long is passed over.
pub(in crate::compute) const ABSENT: Ns = 5 * MS;
/// A turn ends after this long without work.
pub(in crate::compute) const FORGOTTEN: Ns = 2 * MS;
