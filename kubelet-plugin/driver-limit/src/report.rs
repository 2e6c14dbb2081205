//! Says that a container started without the driver's limit, where that is allowed, or that it did not start.

use std::{fmt::Display, path::Path};

use vgpu_hook::report::{self, Keep};

const PROGRAM: &str = "vgpu-driver-limit";
/// The file in the claim's directory.
const FILE: &str = "no-driver-limit";

/// Writes the reason, which begins with the container, to the file: the newest container's stays.
/// Without a claim it goes to standard error, the runtime's log.
pub(crate) fn write(claim: Option<&Path>, error: &impl Display) {
    let line = error.to_string();
    let file = claim.map(|claim| claim.join(FILE));
    report::write(PROGRAM, file.as_deref(), &line, Keep::Newest);
}

/// Writes why a container with a claim that requires its limit did not start.
pub(crate) fn not_started(claim: Option<&Path>, error: &impl Display) {
    report::not_started(PROGRAM, claim, error);
}
