//! Writes the report from which the plugin creates a Warning event on the pod.

use std::{fs::OpenOptions, io::Write, os::unix::fs::OpenOptionsExt, path::Path};

use crate::merge::Reason;

/// Writes the line to a file in `folder`. Each reason has its own file, so that one container's reason does not hide
/// another's. The first container's report stays until the plugin removes it. If the file cannot be written (in a user
/// namespace the folder may not be writable), the container still starts: the line goes to stderr, which is the
/// runtime's log.
pub(crate) fn write(folder: Option<&Path>, id: &str, reason: &Reason) {
    let line = format!("container {id}: {reason}\n");
    let written = folder.map(|folder| {
        let file = folder.join(reason.file());
        let opened = OpenOptions::new().write(true).create_new(true).mode(0o644).open(file);
        opened.and_then(|mut opened| opened.write_all(line.as_bytes()))
    });
    match written {
        Some(Ok(())) => (),
        Some(Err(error)) if error.kind() == std::io::ErrorKind::AlreadyExists => (),
        _ => eprint!("vgpu-cdi-hook: {line}"),
    }
}
