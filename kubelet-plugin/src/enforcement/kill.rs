//! Ends a process that breaks its share's limit, and no other one.
//!
//! Between the reading and the signal, the PID may have been reused. So a pidfd is opened first, and then the process
//! is compared again: it must have started at the same time, and its mounts must have the share. Only then is the
//! signal sent, through the pidfd.
//!
//! How it fails: if the process has ended, or is not the same any more, nothing is done, and the next turn reports what it
//! finds. Without the right to send signals the breach stays reported.

use super::processes::{Extent, Processes};
use super::verdicts::memory::Offender;
use crate::dra::mount_users::ShareMount;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::BTreeSet;

/// Sends SIGKILL to an offender.
///
/// # Errors
/// Why nothing was sent.
pub(super) fn kill(processes: &Processes, mounts: &[ShareMount], offender: &Offender) -> Result<(), String> {
    let pid = i32::try_from(offender.pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| format!("{} is no PID", offender.pid))?;
    let process = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| format!("it cannot be held: {error}"))?;
    let seen = processes.read(mounts, &BTreeSet::from([offender.pid]), Extent::Asked)?;
    let now = seen.processes.get(&offender.pid).ok_or("it has ended")?;
    if now.started != offender.started {
        return Err("its PID is another process' now".into());
    }
    if !now.shares.contains(&offender.share) {
        return Err("it does not have the share's mounts any more".into());
    }
    pidfd_send_signal(&process, Signal::KILL).map_err(|error| format!("the signal cannot be sent: {error}"))
}

#[cfg(test)]
mod tests {
    use super::super::processes::tests::{in_pod, mount, process};
    use super::*;
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Child, Command};

    fn sleeper() -> Child {
        Command::new("sleep").arg("600").spawn().expect("sleep")
    }

    #[test]
    fn only_the_process_that_was_seen_is_killed() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut child = sleeper();
        let path = folder.path().join(child.id().to_string());
        process(&path, 9, &[1], &in_pod('a', '1'));
        let (processes, mounts) = (Processes::in_folder(folder.path()), [mount("u", "s", 1)]);
        let offender = Offender {
            share: ("u".into(), "s".into()),
            pid: child.id(),
            started: 4711,
            name: "x".into(),
            bytes: 1,
            container: None,
        };
        let others: [fn(&mut Offender); 4] = [
            |other| other.started = 4712,
            |other| other.share.0 = "v".into(),
            |other| other.pid = u32::MAX,
            |other| other.pid = 0,
        ];
        let refused = others.map(|change| {
            let mut other = offender.clone();
            change(&mut other);
            kill(&processes, &mounts, &other)
        });
        let lives = child.try_wait().expect("a state").is_none();
        let killed = kill(&processes, &mounts, &offender);
        let ended = child.wait().expect("ended");
        assert!(refused.iter().all(Result::is_err) && lives, "{refused:?}");
        assert!(refused[0].as_ref().is_err_and(|why| why.contains("another process")));
        assert_eq!((killed, ended.signal()), (Ok(()), Some(9)));
    }
}
