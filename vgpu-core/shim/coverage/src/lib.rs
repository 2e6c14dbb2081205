//! What becomes of every function of the CUDA driver API and of NVML inside a share: the table, and
//! what holds it against the shim, the lists of public names and NVIDIA's headers.
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
//! - `rows` reads the data, `hooks` the tables of the shim (build.rs of the shim reads them by the same
//!   file), `coverage` joins both with the names; nothing else knows a fate.
//! - A header is read after the C preprocessor, which answers for macros that rename.
//!
//! How it fails: a function that no header and no list of names declares has no row and is not
//! missed; at run time it passes through (`jump` of the shim cannot name it), and only the node's
//! comparison with NVML shows what it takes.
#![forbid(unsafe_code)]

pub mod coverage;
pub mod document;
pub mod headers;
pub mod hooks;
pub mod rows;
pub mod signature;
