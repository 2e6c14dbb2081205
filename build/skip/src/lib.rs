//! Skips tests that cannot run on this machine: each skip is printed, logged and counted (`build/test.sh`).
#![forbid(unsafe_code)]

use std::fs::OpenOptions;
use std::io::Write;

/// Prints on stderr that `test` is skipped and why, and appends that line to the file that `VGPU_SKIP_LOG` names. The
/// caller then returns.
///
/// # Panics
/// The file cannot be written: an uncounted skip would look like a success.
pub fn skip(test: &str, reason: &str) {
    let line = format!("{test}: {reason}\n");
    eprint!("skipped: {line}");
    if let Some(log) = std::env::var_os("VGPU_SKIP_LOG") {
        let log = OpenOptions::new().append(true).create(true).open(log);
        let written = log.and_then(|mut log| log.write_all(line.as_bytes()));
        assert!(written.is_ok(), "VGPU_SKIP_LOG: {written:?}");
    }
}
