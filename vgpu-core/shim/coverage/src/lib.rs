//! Documents how the shim treats every function of the CUDA driver API and of NVML, and checks this table against the
//! shim, the lists of public names and NVIDIA's headers.
//!
//! ```text
//!  cuda.txt, nvml.txt (rows: fate, bytes, reason) ─┐
//!  ../src/table/*.rs  (hooks: class, signature)  ──┼─► coverage: problems, gaps ─► tests/table.rs
//!  ../names/*.txt     (public names)  ─────────────┘        │
//!                                                           └─► document ─► docs/coverage.md
//!  headers/*.txt (pins) ─ pip, cc -E ─► headers: declarations ─► tests/headers.rs: every declared
//!                                                  name has a row; signature: every hook fits
//! ```
//!
//! - `rows` reads the rows, `hooks` the tables of the shim (the shim's build.rs uses the same file), and `coverage`
//!   joins both with the names. Fates are recorded nowhere else.
//! - A header is read after the C preprocessor, which resolves macros that rename functions.
//!
//! How it fails: a function that neither a header nor a list of names declares has no row and is not noticed. At run
//! time it is not intercepted, because the shim does not export it. Only the node's comparison with NVML shows its
//! memory.
#![forbid(unsafe_code)]

pub mod coverage;
pub mod document;
pub mod headers;
pub mod hooks;
pub mod rows;
pub mod signature;
