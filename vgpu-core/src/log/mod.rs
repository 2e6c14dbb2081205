//! The log of this process, for debugging: lines in a file (`VGPU_LOG=FILE[:level]`), a ring of the last calls beside
//! it (`FILE.<pid>.ring`), and counters in that ring and in the file of `vgpu run --report` (docs/debugging.md, formats
//! in `vgpu_abi::log`).
//!
//! ```text
//!  first call ─► open ─► pointer in the page that a fork child finds zeroed (os::fork)
//!  a refusal, a measurement, a wait ─► events ─► one line, counters
//!  a call of the program, if there is a ring ─► ring: begin ─► the hook ─► ring: end
//! ```
//!
//! Without the variables the pointer is null. Then each event costs one load, on paths that are slow anyway, and calls
//! are not recorded (`vgpu-shim`, `start`).
//!
//! The tenant sets the environment and owns the file: it is opened with the rights of the process, not through a
//! symbolic link, and never for a setuid program (the shim reads variables with secure_getenv). Each line opens the
//! file and closes it again: with an open descriptor, a program that closes all descriptors and opens its own could
//! find our lines in its file.
//!
//! How it fails:
//! - A file cannot be opened: one line on stderr. The program continues with the files that could be opened.
//! - A full disk, a file size limit, a changed root or user, no descriptor left: lines are lost and counted
//!   ([`Counter::LostLines`]). The ring is allocated before it is mapped, so no store to it can fail; this is not
//!   certain on file systems that copy on write (btrfs after a snapshot) or that are not local.
//! - Somebody truncates a ring while its process lives: the process ends with SIGBUS, as with any mapped file.
//! - A log that has reached [`LONGEST_FILE`] gets no more lines.
//! - A thread is killed in a call or jumps out of it: that call stays without a result in the ring.
//! - A signal handler calls the driver inside one of these functions: each writes its own line or entry. No lock is
//!   taken and nothing is allocated after [`open`].
//! - A fork child has no log until its first call; it then opens the same file and its own ring. Its parent's ring is
//!   not mapped in it.
//! - Two processes have the same PID (after an exec, or in two containers that share a folder): the later process's
//!   ring replaces the earlier one under the same name; the earlier ring stays mapped.
//! - A file system that hangs: the call that writes a line hangs with it.
#![allow(unsafe_code)] // Pages that are mapped, and a pointer to the log.

mod events;
mod ring;
mod settings;

pub use events::{Measuring, failed_event, info, library, long_wait, pid_forgotten, pid_learned, refused, waits};
pub use ring::Recorded;
pub use settings::{Level, Settings};

use crate::os::line::Line;
use crate::os::pinned::Mapping;
use crate::os::{errno, file, fork, stderr, thread_id, unix_ns};
use std::ffi::CString;
use std::fmt::Arguments;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use vgpu_abi::log::{Counter, PAGE, Page, REPORT_MAGIC, VERSION, Wait};

/// Maximum size of a log.
pub const LONGEST_FILE: u64 = 256 << 20;

/// The newest log. Only for leak checkers, which do not scan the page with the pointer.
static NEWEST: AtomicPtr<Log> = AtomicPtr::new(std::ptr::null_mut());

/// The log of one process.
#[derive(Debug)]
pub(crate) struct Log {
    lines: Option<Lines>,
    ring: Option<ring::Ring>,
    report: Option<Report>,
    pid: u32,
}

#[derive(Debug)]
struct Lines {
    path: CString,
    level: Level,
}

/// The page of `vgpu run --report`, which other processes write to as well.
#[derive(Debug)]
struct Report(Mapping);

/// Opens the log, the ring and the report that `settings` name. `names` are the names of all functions, each with a
/// zero, for the ring. Returns a line for each file that cannot be opened.
#[must_use]
pub fn open(settings: &Settings, names: &[u8]) -> Vec<String> {
    let mut refusals = Vec::new();
    let Some(pointer) = fork::log_pointer() else {
        return refusals;
    };
    let mut log = Log {
        lines: None,
        ring: None,
        report: None,
        pid: std::process::id(),
    };
    match settings.log() {
        Ok(Some((path, level))) => log.open_lines(path, level, names, &mut refusals),
        Ok(None) => {}
        Err(reason) => refusals.push(reason),
    }
    if let Some(path) = settings.report() {
        match Report::open(path) {
            Ok(report) => log.report = Some(report),
            Err(reason) => refusals.push(reason),
        }
    }
    if log.lines.is_none() && log.report.is_none() {
        return refusals;
    }
    let log = Box::into_raw(Box::new(log));
    NEWEST.store(log, Relaxed);
    pointer.store(log.cast(), std::sync::atomic::Ordering::Release);
    stderr::also(said);
    count(Counter::Processes, 1);
    refusals
}

/// Returns true if calls are recorded.
#[must_use]
pub fn is_recording() -> bool {
    current().is_some_and(|log| log.ring.is_some())
}

/// Begins to record a call of function number `function`. Returns None if calls are not recorded.
#[must_use]
pub fn begin(function: u32) -> Option<Recorded> {
    current()?.ring.as_ref().map(|ring| ring.begin(function))
}

fn current() -> Option<&'static Log> {
    let log = fork::log_pointer()?.load(Acquire).cast::<Log>();
    // SAFETY: null, or a box that `open` leaked in this very process.
    unsafe { log.as_ref() }
}

/// Adds to a counter.
fn count(counter: Counter, more: u64) {
    if let Some(log) = current() {
        log.add(counter as usize, more);
    }
}

/// Logs a line that the user also sees on stderr.
fn said(line: &str) {
    if let Some(log) = current() {
        log.write(Level::Error, format_args!("said text={line:?}"));
    }
}

impl Log {
    fn open_lines(&mut self, path: CString, level: Level, names: &[u8], refusals: &mut Vec<String>) {
        let shown = path.to_string_lossy().into_owned();
        self.lines = Some(Lines { path, level });
        let version = env!("CARGO_PKG_VERSION");
        let start = format_args!("start version={version} level={}", level.name());
        if let Err(error) = self.append(Level::Info, start) {
            self.lines = None;
            refusals.push(format!(
                "VGPU_LOG={shown}: {error}; name a file that this user can create, the program runs without a log"
            ));
            return;
        }
        match ring::Ring::create(&shown, self.pid, names) {
            Ok(ring) => self.ring = Some(ring),
            Err(error) => refusals.push(format!(
                "{shown}.{}.ring: {error}; calls are not recorded, lines of the log are (VGPU_LOG)",
                self.pid
            )),
        }
    }

    /// Writes a line if the log has this level, or counts it as lost.
    fn write(&self, level: Level, text: Arguments<'_>) {
        if self.lines.as_ref().is_some_and(|lines| level > lines.level) {
            return;
        }
        let _kept = errno::keep();
        if self.append(level, text).is_err() {
            self.add(Counter::LostLines as usize, 1);
        }
    }

    fn append(&self, level: Level, text: Arguments<'_>) -> std::io::Result<()> {
        let Some(lines) = &self.lines else { return Ok(()) };
        let now = unix_ns();
        let (seconds, micros) = (now / 1_000_000_000, now / 1000 % 1_000_000);
        let (pid, thread, level) = (self.pid, thread_id(), level.name());
        let line = Line::of(format_args!("{seconds}.{micros:06} {pid}/{thread} {level} {text}"));
        file::append(&lines.path, line.bytes(), LONGEST_FILE)
    }

    /// Returns the pages with counters.
    fn pages(&self) -> impl Iterator<Item = &Page> {
        let own = self.ring.as_ref().map(ring::Ring::page);
        own.into_iter().chain(self.report.as_ref().map(Report::page))
    }

    fn add(&self, index: usize, more: u64) {
        for counter in self.pages().filter_map(|page| page.counters.get(index)) {
            counter.fetch_add(more, AcqRel);
        }
    }

    fn add_wait(&self, reason: Wait, ns: u64) {
        self.add(reason.index(), 1);
        self.add(reason.index() + 1, ns);
    }

    /// Returns the value of a counter.
    fn counted(&self, counter: Counter) -> u64 {
        let first = self.pages().next();
        first.map_or(0, |page| page.counters[counter as usize].load(Relaxed))
    }
}

impl Report {
    fn open(path: &std::path::Path) -> Result<Self, String> {
        let map = || {
            let file = file::open(path)?;
            if file::size(&file)? < PAGE as u64 {
                return Err(std::io::ErrorKind::InvalidData.into());
            }
            Mapping::new(&file, 0, PAGE)
        };
        let reason = |why: &dyn std::fmt::Display| {
            format!(
                "VGPU_REPORT={}: {why}; let `vgpu run --report` set it, this process is left out of the report",
                path.display()
            )
        };
        let report = Self(map().map_err(|error| reason(&error))?);
        let page = report.page();
        if page.magic.load(Relaxed) != REPORT_MAGIC || page.version.load(Relaxed) != VERSION {
            return Err(reason(&"it is no report file of this version"));
        }
        Ok(report)
    }

    fn page(&self) -> &Page {
        // SAFETY: the mapping is a whole page, aligned, and all its words are atomic.
        unsafe { self.0.start().cast::<Page>().as_ref() }
    }
}
