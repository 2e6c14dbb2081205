//! Writes the reports from which the plugin creates a Warning event on the pod.

use std::{fmt::Display, path::Path};

use vgpu_hook::report::{self, Keep};

use crate::merge::Reason;

const PROGRAM: &str = "vgpu-cdi-hook";

/// Writes the line to a file in `folder`. Each reason has its own file, so that one container's reason does not hide
/// another's. The first container's report stays until the plugin removes it. If the file cannot be written, the container
/// still starts.
pub(crate) fn write(folder: Option<&Path>, id: &str, reason: &Reason) {
    let file = folder.map(|folder| folder.join(reason.file()));
    let line = format!("container {id}: {reason}");
    report::write(PROGRAM, file.as_deref(), &line, Keep::First);
}

/// Writes why the container did not start.
pub(crate) fn not_started(folder: Option<&Path>, error: &impl Display) {
    report::not_started(PROGRAM, folder, error);
}
