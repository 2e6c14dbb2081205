//! Measures how much GPU memory a CUDA context takes, once for each driver version and GPU model. The plugin and `vgpu
//! run` write it into limits files, so that the library charges a context before the driver is asked for it.
//!
//! ```text
//!  Sizes (a file) ── known ───────────────────────────────► ContextSize
//!        │
//!        └─ not known ─► child process ─► probe: NVML before, a context, NVML after ─► ContextSize ─► Sizes
//! ```
//!
//! The measurement runs in a child, because the driver's library starts threads, opens files and may hang or crash, and
//! because the context has to end. After [`ANSWER_TIMEOUT`], [`ask`] kills the child with all that it started. A child
//! that cannot be killed is left behind.
//!
//! How it fails: whatever goes wrong, the size stays unknown, and the library reserves a default for each context
//! (`vgpu_core::memory::expected`). A killed child leaves nothing behind. The file is replaced atomically, so a crash
//! leaves the old one or the new one. If it cannot be read, the sizes are measured again. If NVML does not list the
//! child, the GPU's used memory is compared before and with the context. Other programs change that too, so most of
//! several rounds have to agree.

pub mod child;
pub mod probe;
pub mod sizes;

pub use child::{ANSWER_TIMEOUT, ARGUMENT, Gpu, ask, helper};
pub use sizes::{ContextSize, Kind, Sizes};
