//! The formats in which quantities are written.

/// The format in which a quantity was written. It is written in the same format again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    Binary,
    #[default]
    Decimal,
    Exponent,
}
