//! Starts COMMAND, forwards signals to it, and waits for its end.
//!
//! COMMAND stays in the caller's process group, so the kernel sends it the terminal's signals directly.
//! Signals that another process sent to `vgpu run` are forwarded; siginfo tells who sent a signal. A signal
//! that kill(2) sends to the whole group reaches COMMAND twice.
//!
//! All signals are blocked before COMMAND starts and received one by one, so none is lost between fork and
//! wait, and no handler runs. COMMAND gets the caller's signal mask.
#![allow(unsafe_code)] // signal masks, sigwaitinfo and what runs between fork and exec.

use rustix::process::{Pid, Signal, WaitOptions};
use std::fs::File;
use std::io::{self, Read, Write};
use std::mem::{MaybeUninit, zeroed};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// Signals that are not forwarded: faults of this process, signals that stop a background job at the
/// terminal, and those that cannot be caught.
const LEFT_ALONE: [libc::c_int; 12] = [
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGKILL,
    libc::SIGSEGV,
    libc::SIGPIPE,
    libc::SIGSTOP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGSYS,
];
/// Lowest number for COMMAND's copy of the lock's descriptor; scripts do not use such numbers.
const LOCK_FD_MIN: RawFd = 100;

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("{program}: not found")]
    NotFound { program: String },
    #[error("{program}: cannot be executed: {source}")]
    NotExecutable { program: String, source: io::Error },
    /// The error of `prepare`.
    #[error("{0}")]
    Prepare(String),
    #[error("cannot start COMMAND: {0}")]
    System(#[from] io::Error),
}

/// Runs `command` to its end and returns its exit status as a shell would. COMMAND inherits `lock`; `prepare`
/// runs in its process before it starts.
///
/// # Errors
/// The command could not be started.
pub fn run(
    mut command: Command,
    lock: &File,
    mut prepare: impl FnMut() -> Result<(), String> + Send + Sync + 'static,
) -> Result<u8, StartError> {
    let taken = taken_signals();
    let callers = Callers::save(&taken);
    let (mut complaint, mut complain) = io::pipe()?;
    let lock = lock.as_raw_fd();
    let hook = move || {
        if let Err(text) = prepare() {
            // If this fails too, the parent still reports the error below.
            let _ = complain.write_all(text.as_bytes());
            return Err(io::Error::from_raw_os_error(libc::ECANCELED));
        }
        inherit(lock)?;
        callers.restore();
        Ok(())
    };
    // SAFETY: this process has one thread, so its child may do after fork() what it may do here.
    unsafe { command.pre_exec(hook) };
    let started = command.spawn();
    let program = command.get_program().to_string_lossy().into_owned();
    drop(command); // and with it the pipe's other end
    let child = match started {
        Ok(child) => child,
        Err(source) => {
            let mut text = String::new();
            let _ = complaint.read_to_string(&mut text);
            return Err(match source.kind() {
                _ if !text.is_empty() => StartError::Prepare(text),
                io::ErrorKind::NotFound => StartError::NotFound { program },
                _ => StartError::NotExecutable { program, source },
            });
        }
    };
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::other("a child without a PID"))?;
    Ok(attend(pid, &taken))
}

/// Forwards signals until COMMAND has ended.
fn attend(command: Pid, taken: &libc::sigset_t) -> u8 {
    loop {
        // SAFETY: an all-zero siginfo is a value of its type.
        let mut info: libc::siginfo_t = unsafe { zeroed() };
        // SAFETY: `taken` is a signal set and `info` is to be written.
        let number = unsafe { libc::sigwaitinfo(taken, &mut info) };
        // SI_USER, SI_QUEUE, SI_TKILL mean that a process sent it. The kernel's codes are positive.
        let sent = info.si_code <= 0;
        match number {
            libc::SIGCHLD => {
                if let Some(status) = reap(command) {
                    return status;
                }
            }
            libc::SIGTSTP => {
                if sent {
                    pass_on(command, number);
                }
                stop();
            }
            // The kernel sends a hangup only to the session's leader, which may be this process.
            libc::SIGCONT | libc::SIGHUP => pass_on(command, number),
            _ if number > 0 && sent => pass_on(command, number),
            _ => {}
        }
    }
}

/// Returns COMMAND's status once it has ended. Also reaps other children, which PID 1 of a container
/// inherits.
fn reap(command: Pid) -> Option<u8> {
    while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
        if pid == command {
            let code = status
                .exit_status()
                .or(status.terminating_signal().map(|signal| 128 + signal));
            return Some(code.map_or(u8::MAX, |code| code as u8));
        }
    }
    None
}

fn pass_on(command: Pid, number: libc::c_int) {
    // SAFETY: `number` came from the kernel, so it is a signal.
    let signal = unsafe { Signal::from_raw_unchecked(number) };
    // COMMAND may have ended: its SIGCHLD is next.
    let _ = rustix::process::kill_process(command, signal);
}

/// Stops this process as SIGTSTP does: not if no other process could continue it.
fn stop() {
    let set = set_of(&[libc::SIGTSTP]);
    let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::TSTP);
    change_mask(libc::SIG_UNBLOCK, &set);
    change_mask(libc::SIG_BLOCK, &set);
}

/// Duplicates the lock's descriptor for COMMAND, without close-on-exec.
fn inherit(lock: RawFd) -> io::Result<()> {
    // SAFETY: `lock` is open in this child of the process that owns it; the copy stays open on purpose.
    let copy = |least: RawFd| unsafe { libc::fcntl(lock, libc::F_DUPFD, least) };
    if copy(LOCK_FD_MIN) >= 0 || copy(libc::STDERR_FILENO + 1) >= 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

// === Signal sets ===

/// The caller's signal settings, which are restored for COMMAND.
#[derive(Clone, Copy)]
struct Callers {
    mask: libc::sigset_t,
    child_ignored: bool,
    pipe_ignored: bool,
}

/// True if the caller ignored SIGPIPE. Rust's runtime ignores it before main, and `Command` resets that in
/// COMMAND, so it is read before the runtime starts.
static PIPE_IGNORED: AtomicBool = AtomicBool::new(false);

// SAFETY: run by the loader before main, as a function without arguments, in one thread.
#[unsafe(link_section = ".init_array")]
#[used]
static ASK_PIPE: extern "C" fn() = {
    extern "C" fn ask() {
        // SAFETY: an all-zero action is a value of its type, to be written.
        let mut action: libc::sigaction = unsafe { zeroed() };
        // SAFETY: only reads the action.
        let asked = unsafe { libc::sigaction(libc::SIGPIPE, std::ptr::null(), &mut action) } == 0;
        PIPE_IGNORED.store(asked && action.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
    }
    ask
};

impl Callers {
    /// Blocks `taken`, and resets SIGCHLD so that the end of a child is reported.
    fn save(taken: &libc::sigset_t) -> Self {
        let mask = change_mask(libc::SIG_BLOCK, taken);
        // SAFETY: SIG_DFL is an action for SIGCHLD.
        let before = unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
        Self {
            mask,
            child_ignored: before == libc::SIG_IGN,
            pipe_ignored: PIPE_IGNORED.load(Ordering::Relaxed),
        }
    }

    fn restore(&self) {
        if self.child_ignored {
            // SAFETY: SIG_IGN is an action for SIGCHLD.
            unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        }
        if self.pipe_ignored {
            // SAFETY: SIG_IGN is an action for SIGPIPE.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
        }
        change_mask(libc::SIG_SETMASK, &self.mask);
    }
}

fn taken_signals() -> libc::sigset_t {
    let all = 1..=libc::SIGRTMAX();
    // libc reserves the signals between the two for itself.
    let ours = |number: &libc::c_int| *number < 32 || *number >= libc::SIGRTMIN();
    let taken: Vec<_> = all.filter(ours).filter(|number| !LEFT_ALONE.contains(number)).collect();
    set_of(&taken)
}

fn set_of(signals: &[libc::c_int]) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set.
    let mut set = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    };
    for signal in signals {
        // SAFETY: `set` is initialised; a number that is no signal is refused.
        unsafe { libc::sigaddset(&mut set, *signal) };
    }
    set
}

/// Changes the signal mask of this thread and returns the former one.
fn change_mask(how: libc::c_int, set: &libc::sigset_t) -> libc::sigset_t {
    // SAFETY: an all-zero set is a value of its type, to be written.
    let mut before: libc::sigset_t = unsafe { zeroed() };
    // SAFETY: both sets are initialised.
    unsafe { libc::pthread_sigmask(how, set, &mut before) };
    before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_and_libcs_own_signals_are_not_taken() {
        let taken = taken_signals();
        // SAFETY: the set is initialised.
        let has = |signal| unsafe { libc::sigismember(&taken, signal) } == 1;
        for signal in [
            libc::SIGINT,
            libc::SIGTERM,
            libc::SIGHUP,
            libc::SIGQUIT,
            libc::SIGUSR1,
            libc::SIGUSR2,
            libc::SIGWINCH,
            libc::SIGTSTP,
            libc::SIGCONT,
            libc::SIGCHLD,
            libc::SIGALRM,
            libc::SIGRTMAX(),
        ] {
            assert!(has(signal), "{signal}");
        }
        for signal in LEFT_ALONE.into_iter().chain([32, 33]) {
            assert!(!has(signal), "{signal}");
        }
    }
}
