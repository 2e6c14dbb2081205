//! Writes the report from which the plugin creates a Warning event on the pod.

use std::path::Path;

use vgpu_hook::report::{self, Keep};

use crate::merge::Reason;

/// Writes the line to a file in `folder`. Each reason has its own file, so that one container's reason does not hide
/// another's. The first container's report stays until the plugin removes it. If the file cannot be written, the container
/// still starts.
pub(crate) fn write(folder: Option<&Path>, id: &str, reason: &Reason) {
    let file = folder.map(|folder| folder.join(reason.file()));
    let line = format!("container {id}: {reason}");
    report::write("vgpu-cdi-hook", file.as_deref(), &line, Keep::First);
}
