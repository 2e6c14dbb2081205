//! `vgpu run --report`: when COMMAND has ended, prints on stderr what its processes waited for, were refused and
//! measured. `vgpu log` prints the same lines from a ring.
//!
//! How it fails: COMMAND can write anything to the file, so its numbers cannot be trusted, and a file that is no longer
//! a valid report is reported as damaged. A process that cannot open it (another user, a changed root) says so and is
//! left out. Processes that COMMAND leaves behind are counted until COMMAND ends.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use vgpu_abi::log::{Counter, Counts, PAGE, Wait, report_image};

/// The report file of one run; removed when this is dropped.
#[derive(Debug)]
pub struct Report {
    path: PathBuf,
    file: File,
}

#[derive(Debug, thiserror::Error)]
#[error("--report: cannot create {}: {source}", path.display())]
pub struct ReportError {
    path: PathBuf,
    source: io::Error,
}

impl Report {
    /// Creates the file in the folder of a share.
    ///
    /// # Errors
    /// It cannot be created, or its page has no room on the disk.
    pub fn create(folder: &Path) -> Result<Self, ReportError> {
        let path = folder.join(format!("report.{}", std::process::id()));
        let create = || {
            // A killed run of the same PID may have left its file.
            let _ = std::fs::remove_file(&path);
            let mut options = File::options();
            let file = options
                .read(true)
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&path)?;
            file.write_all_at(&report_image(), 0)?;
            // COMMAND may become another user, who must still reach it, as the share's ledger.
            file.set_permissions(std::fs::Permissions::from_mode(0o666))?;
            Ok(file)
        };
        match create() {
            Ok(file) => Ok(Self { path, file }),
            Err(source) => Err(ReportError { path, source }),
        }
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Prints the report on stderr, a line each.
    pub fn print(&self) {
        let mut page = [0; PAGE];
        let counts = self.file.read_exact_at(&mut page, 0).ok();
        let lines = match counts.and_then(|()| Counts::parse(&page)) {
            Some(counts) => lines(&counts),
            None => vec!["report damaged: COMMAND has changed its file".to_owned()],
        };
        for line in lines {
            // A caller without stderr has no report.
            let _ = writeln!(io::stderr(), "vgpu run: {line}");
        }
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Returns the counters as lines, in the words of the log's lines.
#[must_use]
pub fn lines(counts: &Counts) -> Vec<String> {
    let of = |counter| counts.get(counter);
    let mut lines = vec![
        format!("report processes={}", of(Counter::Processes)),
        format!(
            "report refusals={} bytes={}",
            of(Counter::Refusals),
            of(Counter::RefusedBytes)
        ),
        format!(
            "report measurements={} unmeasured={} lists={} us={}",
            of(Counter::Measurements),
            of(Counter::Unmeasured),
            of(Counter::Lists),
            of(Counter::MeasuringNs) / 1000
        ),
        format!(
            "report failed-events={} lost-lines={} long-waits={}",
            of(Counter::FailedEvents),
            of(Counter::LostLines),
            of(Counter::LongWaits)
        ),
    ];
    lines.extend(Wait::ALL.map(|(reason, name)| {
        let (count, ns) = counts.waits(reason);
        format!("report waits reason={name} count={count} us={}", ns / 1000)
    }));
    lines
}
