//! This crate has only tests: see `tests/agreement.rs`.
#![forbid(unsafe_code)]
