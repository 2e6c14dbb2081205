//! Hooks for initialisation, the look-up of functions, and error texts.

pub(crate) mod errors;
pub(crate) mod init;
pub(crate) mod proc_address;
