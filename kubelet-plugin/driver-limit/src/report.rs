//! Says that a container started without the driver's limit, where that is allowed.

use std::{fmt::Display, fs::OpenOptions, io::Write, os::unix::fs::OpenOptionsExt, path::Path};

/// The file in the claim's directory.
const FILE: &str = "no-driver-limit";

/// Writes the reason to the file, once: the first container's stays. If it cannot be written, the line goes to stderr,
/// which is the runtime's log.
pub(crate) fn write(claim: &Path, error: &impl Display) {
    let line = format!("{error}\n");
    let opened = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(claim.join(FILE));
    match opened.and_then(|mut file| file.write_all(line.as_bytes())) {
        Ok(()) => (),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => (),
        Err(_) => eprint!("vgpu-driver-limit: {line}"),
    }
}
