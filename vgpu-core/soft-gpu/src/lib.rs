//! A software GPU: the state that a libcuda.so.1 and a libnvidia-ml.so.1 without hardware share.
//!
//! ```text
//!  SOFT_GPU_STATE, SOFT_GPU_PROFILE ── env ──► profile
//!                                       │
//!   <state>/gpus  ◄── region (mmap) ────┤        layout: what the file holds
//!   <state>/procs/<place>  ◄── flock ── liveness
//!                                       │
//!   soft-gpu-cuda ──► state::Member ── grow, shrink ──► account   exact memory of each process
//!                          │        ── work: queues ──► timeline  slices, when work is done, utilisation
//!                          │ ── memory_limits: limits of cgroups, as drivers from r615 on have them
//!                          └ vram: addresses, by size class
//!   soft-gpu-nvml ──► state::State ── instances: made and ended, by the tables of products
//!   soft-gpu-nvml ──► state::State ── look ──► one consistent picture, with this namespace's PIDs
//!        ▲
//!   <state>/control  ── control: faults that a test switches on and off
//! ```
//!
//! How it fails:
//! - A process that is killed between any two steps leaves words that `account` can settle. The next process that looks
//!   or allocates buries it.
//! - No process waits forever for a lock that a dead or stopped process holds. Joining and burying wait a bounded time
//!   for the folder's lock; changes pause for a picture for milliseconds.
//! - A state file that is damaged or of another version is refused, with one line that names the variable.
//!
//! The tests measure the library by this GPU, so it shares neither code nor the liveness mechanism with vgpu-abi's
//! ledger.

pub mod account;
pub mod c;
mod capabilities;
mod cgroup;
pub mod clock;
pub mod control;
pub mod env;
pub mod error;
pub mod faults;
pub mod instances;
pub mod layout;
pub mod liveness;
pub mod memory_limits;
pub mod mig;
mod mig_words;
pub mod names;
pub mod products;
pub mod profile;
mod region;
pub mod state;
pub mod timeline;
pub mod virtual_time;
pub mod vram;
pub mod work;

/// Locks `mutex`, even if a thread panicked while it held the lock: its changes stay as they are.
pub fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
