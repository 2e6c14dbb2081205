//! The events of the log, each with its line and counters. docs/debugging.md describes the lines.

use super::{Level, Log, count, current};
use crate::account::Account;
use crate::os::monotonic_ns;
use std::fmt::Arguments;
use std::path::Path;
use vgpu_abi::ledger::refusal::Cause;
use vgpu_abi::log::{Counter, Wait};

/// Writes a line of level info.
pub fn info(text: Arguments<'_>) {
    if let Some(log) = current() {
        log.write(Level::Info, text);
    }
}

/// Logs that a library of the driver was opened.
pub fn library(path: &Path) {
    info(format_args!("driver file={path:?}"));
}

/// Logs that memory was refused to the program.
#[cold]
pub fn refused(gpu: &str, account: &Account, bytes: u64, cause: Cause) {
    let Some(log) = current() else { return };
    log.add(Counter::Refusals as usize, 1);
    log.add(Counter::RefusedBytes as usize, bytes);
    let (charged, limit) = (account.charged(), account.limit());
    let by = match cause {
        Cause::Limit => "limit",
        Cause::Driver => "driver",
    };
    log.write(
        Level::Error,
        format_args!("refused gpu={gpu} bytes={bytes} charged={charged} limit={limit} by={by}"),
    );
}

/// Logs that this process is the one that NVML lists as `pid`.
#[cold]
pub fn pid_learned(pid: u32) {
    info(format_args!("pid learned={pid}"));
}

/// Logs that the PID belongs to another process after all.
#[cold]
pub fn pid_forgotten(pid: u32) {
    info(format_args!(
        "pid forgotten={pid} reason=\"NVML shows less for it than this process is charged\""
    ));
}

/// Counts a piece of GPU work that could not be measured by events and is charged by the clock. Only the first, second,
/// fourth, eighth and so on get a line.
#[cold]
pub fn failed_event() {
    count(Counter::FailedEvents, 1);
    if let Some(log) = current() {
        let count = log.counted(Counter::FailedEvents);
        if count.is_power_of_two() {
            log.write(Level::Error, format_args!("event-failed count={count}"));
        }
    }
}

/// Logs a launch that waits for long, each time its wait has doubled. `reason`: that of its last sleep.
#[cold]
pub fn long_wait(reason: Wait, ns: u64, is_first: bool) {
    if is_first {
        count(Counter::LongWaits, 1);
    }
    if let Some(log) = current() {
        let (name, s) = (reason.name(), ns / 1_000_000_000);
        log.write(Level::Error, format_args!("long-wait reason={name} s={s}"));
    }
}

/// Runs `wait`, in which this thread waits for `reason`, and logs its duration.
pub fn waits<T>(reason: Wait, wait: impl FnOnce() -> T) -> T {
    let Some(log) = current() else { return wait() };
    let began = monotonic_ns();
    let outcome = wait();
    let ns = monotonic_ns().saturating_sub(began);
    log.add_wait(reason, ns);
    let (name, us) = (reason.name(), ns / 1000);
    log.write(Level::Debug, format_args!("wait reason={name} us={us}"));
    outcome
}

/// A measurement of this process's memory. It is logged when this is dropped.
#[derive(Debug)]
pub struct Measuring<'a>(Option<Progress<'a>>);

#[derive(Debug)]
struct Progress<'a> {
    log: &'static Log,
    gpu: &'a str,
    began: u64,
    /// Overhead that was charged ahead or measured before.
    ahead: u64,
    lists: u64,
    /// NVML's newest figure for this process.
    held: Option<u64>,
    other: u64,
    /// The bounds of the overhead, or why nothing is known yet.
    outcome: Result<(i64, i64), &'static str>,
}

impl<'a> Measuring<'a> {
    #[must_use]
    pub fn begin(gpu: &'a str, ahead: u64) -> Self {
        Self(current().map(|log| Progress {
            log,
            gpu,
            began: monotonic_ns(),
            ahead,
            lists: 0,
            held: None,
            other: 0,
            outcome: Err("NVML is not open, or does not have this GPU"),
        }))
    }

    /// Notes that NVML has this GPU.
    pub fn found_gpu(&mut self) {
        self.sees(Err("NVML lists no processes"));
    }

    /// Notes that NVML has listed the processes; ours is `pid`, or 0 if that is not known.
    pub fn listed(&mut self, list: &[(u32, u64)], pid: u32, other: u64) {
        if let Some(progress) = &mut self.0 {
            progress.lists += 1;
            progress.other = other;
        }
        self.finds(list, pid);
    }

    /// Notes that this process is `pid` in the list, or 0 if that is not known.
    pub fn finds(&mut self, list: &[(u32, u64)], pid: u32) {
        if let Some(progress) = &mut self.0 {
            let own = list.iter().find(|(listed, _)| *listed == pid && pid != 0);
            progress.held = own.map(|(_, held)| *held);
            progress.outcome = Err(match own {
                Some(_) => "the lists show less than is charged, or other threads did not pause",
                None => "the lists do not show this process",
            });
        }
    }

    pub fn unknown(&mut self) {
        self.sees(Err("nobody knows by which PID NVML lists this process"));
    }

    pub fn excess(&mut self, least: i64, most: i64) {
        self.sees(Ok((least, most)));
    }

    fn sees(&mut self, outcome: Result<(i64, i64), &'static str>) {
        if let Some(progress) = &mut self.0 {
            progress.outcome = outcome;
        }
    }
}

impl Progress<'_> {
    fn report(&self) {
        let ns = monotonic_ns().saturating_sub(self.began);
        self.log.add(Counter::Measurements as usize, 1);
        self.log.add(Counter::MeasuringNs as usize, ns);
        self.log.add(Counter::Lists as usize, self.lists);
        let Self {
            gpu,
            ahead,
            lists,
            other,
            ..
        } = self;
        let us = ns / 1000;
        let held = self.held.unwrap_or(0);
        let reason = match self.outcome {
            Ok((least, most)) => {
                return self.log.write(
                    Level::Info,
                    format_args!(
                        "measured gpu={gpu} ahead={ahead} held={held} else={other} overhead={least}..{most} lists={lists} us={us}"
                    ),
                );
            }
            Err(reason) => reason,
        };
        self.log.add(Counter::Unmeasured as usize, 1);
        self.log.write(
            Level::Error,
            format_args!(
                "unmeasured gpu={gpu} ahead={ahead} held={held} else={other} lists={lists} us={us} reason={reason:?}"
            ),
        );
    }
}

impl Drop for Measuring<'_> {
    fn drop(&mut self) {
        if let Some(progress) = &self.0 {
            progress.report();
        }
    }
}
