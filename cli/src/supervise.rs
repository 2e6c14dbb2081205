//! COMMAND's life: started, signalled, waited for.
//!
//! COMMAND stays in the caller's process group, so that the terminal's signals reach it once, from the
//! kernel. Everything else that `vgpu run` is sent is passed on; who sent it tells the two apart
//! (siginfo). A signal that was sent to the whole group by kill(2) reaches COMMAND twice.
//!
//! All signals are blocked before COMMAND starts and taken one by one, so none is lost between fork and
//! wait, and no handler runs. COMMAND gets the caller's mask back.
#![allow(unsafe_code)] // signal masks, sigwaitinfo and what runs between fork and exec.

use rustix::process::{Pid, Signal, WaitOptions};
use std::fs::File;
use std::io::{self, Read, Write};
use std::mem::{MaybeUninit, zeroed};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// Signals that are not taken: faults of this process, those that stop a background job at the
/// terminal, and what nobody can take.
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
/// COMMAND's copy of the share's lock gets a number that no script names.
const LOCK_FD_MIN: RawFd = 100;

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("{program}: not found")]
    NotFound { program: String },
    #[error("{program}: cannot be executed: {source}")]
    NotExecutable { program: String, source: io::Error },
    /// What `prepare` said.
    #[error("{0}")]
    Prepare(String),
    #[error("cannot start COMMAND: {0}")]
    System(#[from] io::Error),
}

/// Runs `command` to its end and gives its exit status as a shell would. COMMAND inherits `lock`;
/// `prepare` runs in its process before it starts.
///
/// # Errors
/// It did not start.
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
            // Nothing is lost if this fails too: the parent then tells of the error below.
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

/// Passes signals on until COMMAND is gone.
fn attend(command: Pid, taken: &libc::sigset_t) -> u8 {
    loop {
        // SAFETY: an all-zero siginfo is a value of its type.
        let mut info: libc::siginfo_t = unsafe { zeroed() };
        // SAFETY: `taken` is a signal set and `info` is to be written.
        let number = unsafe { libc::sigwaitinfo(taken, &mut info) };
        // SI_USER, SI_QUEUE, SI_TKILL: a process sent it. The kernel's own are positive.
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
            // A hangup reaches the leader of the session alone, which may be this process.
            libc::SIGCONT | libc::SIGHUP => pass_on(command, number),
            _ if number > 0 && sent => pass_on(command, number),
            _ => {}
        }
    }
}

/// COMMAND's status once it is gone. Whatever else was given to this process as a child (PID 1 of a
/// container) is reaped too.
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
    // COMMAND may be gone: its SIGCHLD is next.
    let _ = rustix::process::kill_process(command, signal);
}

/// Stops this process as SIGTSTP does: not at all where nobody could continue it.
fn stop() {
    let set = set_of(&[libc::SIGTSTP]);
    let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::TSTP);
    change_mask(libc::SIG_UNBLOCK, &set);
    change_mask(libc::SIG_BLOCK, &set);
}

/// Gives COMMAND the lock: a copy that exec does not close.
fn inherit(lock: RawFd) -> io::Result<()> {
    // SAFETY: `lock` is open in this child of the process that owns it; the copy stays open on purpose.
    let copy = |least: RawFd| unsafe { libc::fcntl(lock, libc::F_DUPFD, least) };
    if copy(LOCK_FD_MIN) >= 0 || copy(libc::STDERR_FILENO + 1) >= 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

// === Signal sets ===

/// What the caller gave this process: COMMAND gets it back.
#[derive(Clone, Copy)]
struct Callers {
    mask: libc::sigset_t,
    child_ignored: bool,
    pipe_ignored: bool,
}

/// Whether the caller ignored SIGPIPE. Rust's runtime ignores it before main, and `Command` undoes
/// that in COMMAND, so it is asked before the runtime starts.
static PIPE_IGNORED: AtomicBool = AtomicBool::new(false);

// SAFETY: run by the loader before main, as a function without arguments, in one thread.
#[unsafe(link_section = ".init_array")]
#[used]
static ASK_PIPE: extern "C" fn() = {
    extern "C" fn ask() {
        // SAFETY: an all-zero action is a value of its type, to be written.
        let mut action: libc::sigaction = unsafe { zeroed() };
        // SAFETY: only asks.
        let asked = unsafe { libc::sigaction(libc::SIGPIPE, std::ptr::null(), &mut action) } == 0;
        PIPE_IGNORED.store(asked && action.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
    }
    ask
};

impl Callers {
    /// Blocks `taken`, and makes sure that the end of a child is told.
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
    // Between the two, libc keeps a few for itself.
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

/// Changes the mask of this thread and gives what it was.
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
