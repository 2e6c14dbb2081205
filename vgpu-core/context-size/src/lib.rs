//! What a CUDA context takes of a GPU's memory, measured once for each driver version and GPU model. The plugin and
//! `vgpu run` write it into limits files, so that the library charges a context before the driver is asked for it.
//!
//! ```text
//!  Sizes (a file) ── known ───────────────────────────────► ContextSize
//!        │
//!        └─ not known ─► child process ─► probe: NVML before, a context, NVML after ─► ContextSize ─► Sizes
//! ```
//!
//! A child, because a driver's library starts threads, opens files and may hang or crash, and because the context has
//! to end. [`ask`] gives it [`PATIENCE`] and kills it then, with all that it started; one that nothing ends is left
//! behind.
//!
//! How it fails: whatever goes wrong, the size stays unknown, and the library reserves a default for each context
//! (`vgpu_core::memory::expected`). A child that is killed leaves nothing. The file is replaced at once: a crash leaves
//! the old or the new one; one that cannot be read is measured again. Where NVML does not show the child, the GPU's
//! used memory is compared; other programs change that too, so most of several rounds have to agree.

pub mod child;
pub mod probe;
pub mod sizes;

pub use child::{ARGUMENT, Gpu, PATIENCE, ask, helper};
pub use sizes::{ContextSize, Kind, Sizes};
