//! Implements `vgpu top` and `vgpu advise`, from the objects VgpuUsage and VgpuNode.
//!
//! ```text
//!  VgpuUsage, claims, pods ─► shares (joined) ─┬─► top: a table
//!  VgpuNode ───────────────────────────────────┤
//!  ResourceSlices: memory of a GPU ────────────┴─► advise ─► advice (pure)
//! ```
//!
//! How it fails: without the right to read the usage there is no answer, and the error names the right. Claims, pods and
//! slices add names and sizes; without them those are unknown. An object that cannot be decoded is left out and named.
//! Figures are as old as the object, which the answer says. Names and reasons may have escape sequences: none is printed.
#![forbid(unsafe_code)]

pub(crate) mod advice;
pub(crate) mod advise;
mod answer;
pub(crate) mod figures;
mod seen;
mod shares;
pub(crate) mod top;
