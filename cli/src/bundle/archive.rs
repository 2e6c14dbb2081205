//! The tar archive, made in memory: its parts are limited in size, and an incomplete archive is never written.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

pub(super) struct Archive {
    builder: tar::Builder<Vec<u8>>,
    mtime: u64,
}

impl Archive {
    pub(super) fn new(now: i64) -> Self {
        Self {
            builder: tar::Builder::new(Vec::new()),
            mtime: u64::try_from(now).unwrap_or_default(),
        }
    }

    pub(super) fn add(&mut self, name: &str, text: &str) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(text.len() as u64);
        header.set_mtime(self.mtime);
        self.builder
            .append_data(&mut header, Path::new("vgpu-bundle").join(name), text.as_bytes())
    }

    /// Writes a file that only its owner can read, and that must not exist.
    pub(super) fn write(self, to: &Path) -> io::Result<()> {
        let bytes = self.builder.into_inner()?;
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(to)?;
        file.write_all(&bytes).inspect_err(|_| {
            // For example a full disk; an incomplete archive helps nobody.
            let _ = std::fs::remove_file(to);
        })
    }
}
