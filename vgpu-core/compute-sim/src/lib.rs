//! How exact the limiter of GPU time is: its modules (`vgpu_core::compute`), as libvgpu.so calls them, in a simulation of
//! discrete events. No machine's speed is in it: the same run gives the same figures everywhere.
//!
//! ```text
//!  scenario ─► world: programs launch and wait ─► limiter (vgpu_core::compute)
//!                └─► gpu: contexts in turn, slices, switches ─► figures: use and error by share
//! ```

pub mod figures;
pub mod gpu;
pub mod program;
pub mod random;
pub mod scenarios;
pub mod world;

/// A time or a duration in ns.
pub type Ns = u64;
pub const US: Ns = 1_000;
pub const MS: Ns = 1_000_000;
pub const S: Ns = 1_000_000_000;
