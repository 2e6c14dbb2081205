//! How a program comes in: initialisation, the lookup of functions, the texts of errors.

pub(crate) mod errors;
pub(crate) mod init;
pub(crate) mod proc_address;
