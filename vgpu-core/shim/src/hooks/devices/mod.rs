//! The devices of this process: the program's numbers and the driver's.

pub(crate) mod list;
pub(crate) mod locations;
pub(crate) mod visible;
