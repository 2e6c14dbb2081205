//! Kubernetes quantities as exact decimals, with the unit in which they were written.
//!
//! ```text
//! "20Gi" ─parse─► value * 10^scale in 64 bits, else an unscaled big integer ─► compare, add, subtract (exact, no limit)
//!    │                                     └─ text: Kubernetes' canonical form
//!    └─whole─► a 64-bit integer, or an error that says what to write
//! ```
//!
//! [`Quantity::parse`] has the semantics of Kubernetes' own type, including the odd ones, because allocation must give
//! the same answers: a text with more than nine decimal places is rounded up, `1.5Ki` is not an integer although it is
//! 1536, and a binary quantity that does not fit in 64 bits becomes 2^63 - 1 while a decimal one does not. There is
//! one difference: an exponent beyond ±1000 is refused, because a text of ten bytes must not make a number of two
//! gigabytes.
//!
//! [`whole`] parses what a *user* requests of one of our devices. It refuses everything that would have to be rounded.
//!
//! Comparisons use only the number. The unit decides how the number is written: the sum of quantities in `Gi` is
//! written in `Gi`.
#![forbid(unsafe_code)]

mod bytes;
mod decimal;
mod error;
mod format;
mod meant;
mod parse;
mod quantity;
mod shorten;
mod text;
mod whole;

pub use bytes::{format_bytes, readable_bytes};
pub use error::QuantityError;
pub use format::Format;
pub use quantity::Quantity;
pub use shorten::{quoted, shortened};
pub use whole::{WholeError, read_bytes, whole};

#[cfg(test)]
mod tests;
