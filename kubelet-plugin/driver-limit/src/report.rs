//! Says that a container started without the driver's limit, where that is allowed.

use std::{fmt::Display, path::Path};

use vgpu_node::files;

use crate::text::one_line;

/// The file in the claim's directory.
const FILE: &str = "no-driver-limit";
/// Characters of the line: a container's id of the longest kind, and a reason.
const MAX: usize = 2048;

/// Writes the reason, which begins with the container, to the file: the newest container's. If it cannot be written, the line
/// goes to stderr, which is the runtime's log.
pub(crate) fn write(claim: &Path, error: &impl Display) {
    let line = one_line(&error.to_string(), MAX) + "\n";
    if files::replace(&claim.join(FILE), line.as_bytes(), 0o644).is_err() {
        eprint!("vgpu-driver-limit: {line}");
    }
}
