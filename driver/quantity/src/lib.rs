//! Kubernetes quantities as exact decimals, with the unit in which they were written.
//!
//! ```text
//! "20Gi" ─parse─► value * 10^scale in 64 bits, else an unscaled big integer ─► compare, add, subtract (exact, no limit)
//!    │                                     └─ text: Kubernetes' canonical form
//!    └─whole─► a 64-bit integer, or an error that says what to write
//! ```
//!
//! [`Quantity::parse`] has the semantics of Kubernetes' own type, the odd ones included, because the answers must be the
//! same: a text finer than one billionth is rounded up to it, `1.5Ki` counts as no integer though it is 1536, and a
//! binary quantity that does not fit in 64 bits is held at 2^63 - 1 while a decimal one is not. One thing differs: an
//! exponent beyond ±1000 is refused, because a text of ten bytes must not make a number of two gigabytes.
//!
//! [`whole`] reads what a *user* asks of one of our devices. It refuses everything that would have to be rounded.
//!
//! The number decides everything. The unit only decides the text: a request in `Gi` is answered in `Gi`.
#![forbid(unsafe_code)]

mod decimal;
mod error;
mod format;
mod parse;
mod quantity;
mod text;
mod whole;

pub use error::QuantityError;
pub use format::Format;
pub use quantity::Quantity;
pub use whole::{WholeError, format_bytes, whole};

#[cfg(test)]
mod tests;
