//! Waits and questions: when the program knows that its work is done, its share may give its turn up.

pub(crate) use super::{ask, wait};
