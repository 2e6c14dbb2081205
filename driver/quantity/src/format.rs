//! The formats in which quantities are written.

/// How a quantity was written, and is written again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    Binary,
    #[default]
    Decimal,
    Exponent,
}
