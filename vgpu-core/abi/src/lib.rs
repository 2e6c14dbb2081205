//! File formats and paths that the node side (kubelet-plugin, `vgpu run`) shares with the library in the container. No
//! I/O, no dependencies, and only what both sides need.
//!
//! ```text
//!  plugin or `vgpu run`                                 libvgpu.so in the container
//!    Limits::render ──► <dir>/<share>/limits ──────────► Limits::parse
//!    ledger::image  ──► <dir>/<share>/ledger ◄─ mapped ─► charges (vgpu-core)
//!    ledger::read   ◄── bounded read ◄──────┘
//!    entitlement::entries ──► <dir>/.arbitration/<GPU>/node ──► compute (vgpu-core)
//!    arbitration::counters ◄── bounded read ◄── <GPU>/<slot> ◄─ mapped ─┘
//!    log::Counts, log::Ring ◄── bounded read ◄── a report, a ring of calls ◄─ mapped ─ vgpu-core
//! ```
#![forbid(unsafe_code)]

pub mod arbitration;
#[macro_use]
pub mod arch;
pub mod checksum;
pub mod entitlement;
pub mod ledger;
pub mod limits;
pub mod log;
pub mod paths;
