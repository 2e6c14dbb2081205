//! Waits and queries: when the program knows that its work is done, its share may give up its turn.

pub(crate) use super::{ask, wait};
