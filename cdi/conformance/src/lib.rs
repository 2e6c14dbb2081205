//! Nothing but its tests: see `tests/agreement.rs`.
#![forbid(unsafe_code)]
