//! The transcript of a run, on the screen and in a file, as Markdown for the documentation.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};

#[derive(Debug)]
pub(super) struct Transcript {
    file: File,
    path: PathBuf,
    start: Instant,
}

impl Transcript {
    pub(super) fn new(path: &Path) -> Result<Self> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        }
        Ok(Self {
            file: File::create(path).with_context(|| format!("cannot create {}", path.display()))?,
            path: path.to_path_buf(),
            start: Instant::now(),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn seconds(&self) -> u64 {
        self.start.elapsed().as_secs()
    }

    /// Writes to both unchanged. A closed screen is no reason to stop, and a full disk shows elsewhere.
    pub(super) fn raw(&mut self, bytes: &[u8]) {
        let mut screen = std::io::stdout().lock();
        let _ = screen.write_all(bytes).and_then(|()| screen.flush());
        let _ = self.file.write_all(bytes);
    }

    pub(super) fn line(&mut self, text: &str) {
        self.raw(format!("{text}\n").as_bytes());
    }

    pub(super) fn heading(&mut self, text: &str) {
        self.line(&format!("\n## {text}\n\nAfter {} s.\n", self.seconds()));
    }
}
