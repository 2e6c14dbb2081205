//! Finds out if tests can mount a tmpfs here, for this crate and the plugin.

use super::{Size, ensure, remove};

/// Returns true if this process can mount; if not, records which check is skipped and why.
pub(crate) fn can_mount(check: &str) -> bool {
    let folder = tempfile::tempdir().expect("a folder");
    let size = Size { bytes: 1, files: 1 };
    match ensure(folder.path(), size).and_then(|()| remove(folder.path())) {
        Ok(()) => true,
        Err(error) => {
            vgpu_skip::skip(check, &format!("a tmpfs cannot be mounted here: {error}"));
            false
        }
    }
}
