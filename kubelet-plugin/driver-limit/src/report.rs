//! Says that a container started without the driver's limit, where that is allowed.

use std::{fmt::Display, path::Path};

use vgpu_hook::report::{self, Keep};

/// The file in the claim's directory.
const FILE: &str = "no-driver-limit";

/// Writes the reason, which begins with the container, to the file: the newest container's stays.
/// Without a claim it goes to standard error, the runtime's log.
pub(crate) fn write(claim: Option<&Path>, error: &impl Display) {
    let line = error.to_string();
    let file = claim.map(|claim| claim.join(FILE));
    report::write("vgpu-driver-limit", file.as_deref(), &line, Keep::Newest);
}
