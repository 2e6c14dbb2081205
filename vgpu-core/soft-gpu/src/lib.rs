//! A software GPU: the state that a libcuda.so.1 and a libnvidia-ml.so.1 without hardware share.
//!
//! ```text
//!  SOFT_GPU_STATE, SOFT_GPU_PROFILE ── env ──► profile
//!                                       │
//!   <state>/gpus  ◄── region (mmap) ────┤        layout: what the file holds
//!   <state>/procs/<place>  ◄── flock ── liveness
//!                                       │
//!   soft-gpu-cuda ──► state::Member ── grow, shrink ──► account   who holds how much, exactly
//!                          │        ── launch ────────► timeline  when work is done, utilisation
//!                          └ vram: addresses, by size class
//!   soft-gpu-nvml ──► state::State ── look ──► one consistent picture, with this namespace's PIDs
//! ```
//!
//! How it fails, and what then: a process killed between any two steps leaves words that `account` can settle;
//! whoever looks or allocates next buries it. Nobody waits for a lock that a dead or stopped process could keep
//! for ever: joining, and burying, which a picture or an allocation that finds dead does first, wait for the
//! folder's lock for a bounded time; changes stand still for a picture for milliseconds. A state file that is
//! damaged or of another version refuses, with one line that names the variable.
//!
//! It is the yardstick of the tests, so it shares neither code nor liveness mechanism with vgpu-abi's ledger.

pub mod account;
pub mod c;
pub mod clock;
pub mod env;
pub mod error;
pub mod faults;
pub mod layout;
pub mod liveness;
pub mod names;
pub mod profile;
mod region;
pub mod state;
pub mod timeline;
pub mod vram;
