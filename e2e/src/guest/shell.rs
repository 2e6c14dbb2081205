//! Runs commands of the guest's user over a serial line, one command per line (rootfs.sh has the other end).
//!
//! The guest answers with the command's output, then a record separator and its status.

use std::io::{Read, Write};
use std::process::{ChildStdin, ChildStdout};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

const SEPARATOR: u8 = 0x1e;
/// Limit of a command; a terminal in the guest buffers 4096 bytes for a slow reader.
const LONGEST: usize = 3000;

#[derive(Debug)]
pub(super) struct Shell {
    input: ChildStdin,
    output: Receiver<Vec<u8>>,
    /// Output received after the last separator's line.
    rest: Vec<u8>,
}

impl Shell {
    pub(super) fn new(input: ChildStdin, mut from: ChildStdout) -> Self {
        let (sender, output) = channel();
        thread::spawn(move || {
            let mut buffer = vec![0; 65536];
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                if sender.send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self {
            input,
            output,
            rest: Vec::new(),
        }
    }

    /// Waits until the guest's end of the line is ready.
    pub(super) fn ready(&mut self, limit: Duration) -> Result<()> {
        match self.until_separator(limit, &mut |_| {})?.as_str() {
            "ready" => Ok(()),
            other => bail!("the guest greets with {other:?}"),
        }
    }

    /// Runs the command, passes its output to `hear`, and returns its status.
    pub(super) fn run(&mut self, command: &str, limit: Duration, hear: &mut dyn FnMut(&[u8])) -> Result<i32> {
        ensure!(
            command.len() <= LONGEST && !command.contains('\n'),
            "not one line of at most {LONGEST} bytes: {command}"
        );
        writeln!(self.input, "{command}").context("the guest has ended")?;
        self.input.flush().context("the guest has ended")?;
        let status = self.until_separator(limit, hear).with_context(|| command.to_owned())?;
        status
            .parse()
            .with_context(|| format!("the guest ends a command with {status:?}"))
    }

    fn until_separator(&mut self, limit: Duration, hear: &mut dyn FnMut(&[u8])) -> Result<String> {
        let end = Instant::now() + limit;
        let mut line: Option<Vec<u8>> = None; // the line after the separator
        loop {
            let bytes = std::mem::take(&mut self.rest);
            let said = match line.as_mut() {
                Some(line) => {
                    line.extend(bytes);
                    None
                }
                None => match bytes.iter().position(|byte| *byte == SEPARATOR) {
                    Some(at) => {
                        line = Some(bytes[at + 1..].to_vec());
                        Some(bytes[..at].to_vec())
                    }
                    None => Some(bytes),
                },
            };
            if let Some(said) = said.filter(|said| !said.is_empty()) {
                hear(&said);
            }
            if let Some(line) = &line
                && let Some(at) = line.iter().position(|byte| *byte == b'\n')
            {
                self.rest = line[at + 1..].to_vec();
                return Ok(String::from_utf8_lossy(&line[..at]).trim().to_owned());
            }
            match self.output.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(bytes) => self.rest = bytes,
                Err(RecvTimeoutError::Disconnected) => bail!("the guest has ended"),
                Err(RecvTimeoutError::Timeout) => bail!("no end after {} s", limit.as_secs()),
            }
        }
    }
}
