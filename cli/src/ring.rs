//! `vgpu log FILE.<pid>.ring`: prints the last calls of a process, which libvgpu.so has recorded (`VGPU_LOG`). It may still
//! run.
//!
//! How it fails: a file that is not a ring gets one line that says so. The file's writer may be hostile, so names are
//! shown without control characters, and no more is read than the size of a ring.
#![forbid(unsafe_code)]

use crate::exit;
use crate::report;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;
use std::process::ExitCode;
use vgpu_abi::log::{Entry, RING_SIZE, Ring};

/// Prints the ring in `file`; on an error prints one line.
#[must_use]
pub fn main(file: &Path) -> ExitCode {
    let ring = match read(file) {
        Ok(ring) => ring,
        Err(reason) => {
            let _ = writeln!(io::stderr(), "vgpu log: {}: {reason}", file.display());
            return ExitCode::from(exit::USAGE);
        }
    };
    // Fails if the reader closed the pipe, which is not an error.
    let _ = print(&ring, &mut BufWriter::new(io::stdout().lock()));
    ExitCode::SUCCESS
}

fn read(file: &Path) -> Result<Ring, String> {
    let open = || {
        let mut bytes = Vec::new();
        File::open(file)?.take(RING_SIZE as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = open().map_err(|error: io::Error| format!("{error}; name a file FILE.<pid>.ring beside the log"))?;
    Ring::parse(&bytes).map_err(|reason| format!("{reason}; name a file FILE.<pid>.ring beside the log"))
}

fn print(ring: &Ring, out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "process={} calls={} shown={}",
        ring.pid,
        ring.begun,
        ring.calls.len()
    )?;
    for line in report::lines(&ring.counts) {
        writeln!(out, "{line}")?;
    }
    writeln!(out, "number time thread function result us charged")?;
    for call in &ring.calls {
        writeln!(out, "{}", line(call))?;
    }
    out.flush()
}

fn line(call: &Entry) -> String {
    let (seconds, micros) = (call.unix / 1_000_000_000, call.unix / 1000 % 1_000_000);
    let begin = format!(
        "{} {seconds}.{micros:06} {} {}",
        call.number, call.thread, call.function
    );
    match call.end {
        Some(end) => format!(
            "{begin} {} {}.{:03} {}",
            end.result,
            end.ns / 1000,
            end.ns % 1000,
            end.charged
        ),
        None => format!("{begin} running - -"),
    }
}
