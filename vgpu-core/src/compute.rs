//! GPU time: which launch starts now, which waits, and how much time is charged.
//!
//! ```text
//!  launch ─► limiter ─► turn: whose turn it is, by the pages of all shares    (vgpu_abi::arbitration)
//!               ├─► bucket: what `cores` guarantees
//!               ├─► lost: the time lost to waits for others
//!               └─► account: what was measured is charged to the share, once
//! ```
//!
//! The law. Shares take turns, so that what a share measures in its turn is its own work: the GPU slices contexts that
//! both have work, and event stamps of a context that is switched out include its neighbour's slices. The share with
//! the least start tag goes next (start-time fair queueing). A turn ends by the clock and never by a lock: its holder
//! publishes until when it needs the GPU, and others sleep until then. A share that sees a turn that began after its
//! own gives up its turn. Two turns at once are safe, because the GPU slices: races, dead holders and ranks that wait
//! for each other cost milliseconds and never hang. A share with the policy Guaranteed also needs tokens.
//!
//! Safe code without I/O: clock, pages and measurements are arguments. docs/compute-accuracy.md says how exact it is.
//!
//! How it fails: a process that is killed leaves its cell and its wish on the page; both expire. If two processes of a
//! share change its turn at once, one change may be lost; then both run, or both ask again. A page of another share may
//! hold anything: see `turn`.

pub mod account;
pub mod bucket;
pub mod limiter;
pub mod lost;
pub mod turn;

/// A time of CLOCK_MONOTONIC, or a duration, in ns.
pub type Ns = u64;

pub(crate) const US: Ns = 1_000;
pub(crate) const MS: Ns = 1_000_000;
