//! The logic of libvgpu.so, apart from its exports: tests and Miri can run it.
//!
//! ```text
//!  limits files ─► grants ─► Share (ledger) ─┐
//!                                            ├─► account: charges, split over the shares of a GPU
//!  libvgpu.so (vgpu-shim) ───────────────────┘      ▲
//!    one detour a function ─► table of live allocations
//!                          └► calls: who is under way, for those who measure the GPU
//! ```

pub mod account;
pub mod bindings;
pub mod calls;
pub mod grants;
pub mod hami;
pub mod ledger;
pub mod memory;
pub mod os;
pub mod table;
pub mod visible;
