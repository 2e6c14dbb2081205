//! The logic of libvgpu.so, apart from its exports: tests and Miri can run it.
//!
//! ```text
//!  limits files ─► grants ─────────────────────────────► account: the shares of one GPU ─► ledger: one share
//!                                                           ▲
//!  libvgpu.so (vgpu-shim) ─► hook ─► memory: charges each allocation until it is freed
//!                        └─► calls: tracks threads inside calls, for measurements of the GPU
//! ```
//!
//! `compute` decides which launch runs and which waits; `arbiter` asks it. `hami` finds limits and ledgers in a
//! container of HAMi. `bindings` and `table` keep charges by object and by handle. `visible` parses
//! CUDA_VISIBLE_DEVICES. `log` writes a log if VGPU_LOG is set. `os` has locks, files and forks.

pub mod account;
pub mod arbiter;
pub mod bindings;
pub mod calls;
pub mod compute;
pub mod grants;
pub mod hami;
pub mod ledger;
pub mod log;
pub mod memory;
pub mod os;
pub mod table;
pub mod visible;
