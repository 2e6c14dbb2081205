//! Finds import circles: modules of one crate that need each other, so that none of them can be read, tested or moved
//! alone. `make lint` runs it over every crate of the workspace.
//!
//! ```text
//! cargo metadata ─► crates ─► source: modules, their imports and paths ─► names: which module defines a name
//!                                                                              │
//!                allowed.yaml ─► allowed: verdict ◄─ circle: modules that reach each other ◄─┘
//! ```
//!
//! Module A depends on module B when a path in A names something that B defines: in a `use` line, in an expression, in
//! a type, or between the tokens of a macro call. These rules decide the rest:
//!
//! - A re-export is followed: `use crate::memory::Granule` is a dependency on the module that defines `Granule`, even
//!   if `memory` only re-exports it.
//! - A module that re-exports a name of its own descendants (`pub use child::Name`) does not thereby depend on them.
//!   It does if its own code uses the name.
//! - Importing a module (`use crate::memory`) is no dependency by itself. The names that are reached through it are.
//! - A parent and its child are ordinary modules: `use super::Name` in the child and `child::f()` in the parent form a
//!   circle. An `impl super::Name` in the child, whose methods the parent only calls on values, forms none.
//! - Code under `#[cfg(test)]` and `#[test]` is ignored. Integration tests, benchmarks and build scripts are crates of
//!   their own and are checked.
//!
//! Not detected: names that only exist after a macro is expanded, paths in attributes (`#[serde(with = "..")]`), files
//! that `include!` brings, and methods, because their module follows from types.
#![forbid(unsafe_code)]

pub mod allowed;
pub mod circle;
pub mod crates;
pub mod names;
pub mod source;
