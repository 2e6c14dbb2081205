//! The child process with NVML: started, asked twice, killed, and asked again.

use crate::nvml::Nvml;
use crate::publish::inventory::{Gpus as _, List};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use std::fs;
use std::time::Instant;

/// Three answers of children to the same question.
#[derive(Debug, Serialize)]
pub(super) struct Checked {
    /// The answer of a new child, which loads NVML first.
    first: Answered,
    /// The same child's answer to the second question.
    again: Answered,
    /// The child's resident memory after both answers, in bytes.
    resident: u64,
    /// The answer of the child that was started after the first one was killed.
    replaced: Answered,
}

#[derive(Debug, Serialize)]
struct Answered {
    /// The PID of the child that is there after the answer.
    child: u32,
    seconds: f64,
    list: List,
}

pub(super) fn check(nvml: &Nvml) -> Result<Checked, String> {
    let first = ask(nvml)?;
    let again = ask(nvml)?;
    let resident = resident(again.child)?;
    let pid = i32::try_from(again.child).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| format!("the child has the PID {}", again.child))?;
    kill_process(pid, Signal::KILL).map_err(|error| format!("the child cannot be killed: {error}"))?;
    let replaced = ask(nvml)?;
    Ok(Checked {
        first,
        again,
        resident,
        replaced,
    })
}

fn ask(nvml: &Nvml) -> Result<Answered, String> {
    let start = Instant::now();
    let list = nvml.list().map_err(|error| error.to_string())?;
    let seconds = start.elapsed().as_secs_f64();
    let child = nvml.child().ok_or("the child has ended")?;
    Ok(Answered { child, seconds, list })
}

fn resident(pid: u32) -> Result<u64, String> {
    let file = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&file).map_err(|error| format!("{file}: {error}"))?;
    resident_of(&text).ok_or_else(|| format!("{file} has no VmRSS"))
}

/// Returns the resident memory in bytes, from the text of /proc/<pid>/status.
fn resident_of(status: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_read_in_bytes() {
        let status = "Name:\tx\nVmHWM:\t   30000 kB\nVmRSS:\t   20480 kB\nThreads:\t2\n";
        assert_eq!(resident_of(status), Some(20 << 20));
        for damaged in [
            "",
            "VmRSS:\t20480\n",
            "VmRSS:\tmany kB\n",
            "VmRSS:\t18446744073709551615 kB\n",
        ] {
            assert_eq!(resident_of(damaged), None, "{damaged:?}");
        }
    }
}
