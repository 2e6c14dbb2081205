//! Stops one thread of a child process at each system call that changes something, to kill the process there or to make
//! the call fail. It uses ptrace, so that no call has to be marked.
//!
//! A call that is in neither of the two tables fails the test that made it.

use nix::libc::{self, c_long};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::process::Child;

/// A system call that is about to change something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) name: &'static str,
    pub(super) path: String,
    /// It may need room on the file system.
    pub(super) allocates: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Go,
    /// Kills the process before the call does anything.
    Kill,
    /// The call does nothing and returns this error.
    Fail(i32),
}

/// Follows thread `tid` of `child`, which waits for a byte that `go` writes, until it ends. `decide` is asked at each call
/// that changes something.
pub(super) fn trace(child: &mut Child, tid: i32, go: impl FnOnce(), mut decide: impl FnMut(&Call) -> Action) {
    let tid = Pid::from_raw(tid);
    let all = Some(WaitPidFlag::__WALL);
    ptrace::seize(tid, Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_EXITKILL).expect("ptrace");
    ptrace::interrupt(tid).expect("interrupted");
    waitpid(tid, all).expect("stopped");
    go();
    let mut failing: Option<i32> = None;
    let mut deliver: Option<Signal> = None;
    loop {
        ptrace::syscall(tid, deliver.take()).expect("continued");
        match waitpid(tid, all).expect("an event") {
            WaitStatus::PtraceSyscall(_) => {}
            WaitStatus::Stopped(_, signal) => {
                deliver = Some(signal);
                continue;
            }
            WaitStatus::Exited(..) | WaitStatus::Signaled(..) => return,
            _ => continue,
        }
        let mut registers = ptrace::getregs(tid).expect("registers");
        let is_entry = ptrace::syscall_info(tid).expect("what it is").op == libc::PTRACE_SYSCALL_INFO_ENTRY;
        if !is_entry {
            if let Some(errno) = failing.take() {
                registers.rax = i64::from(-errno).cast_unsigned();
                ptrace::setregs(tid, registers).expect("registers");
            }
            continue;
        }
        let Some(call) = changing(tid, &registers) else {
            continue;
        };
        match decide(&call) {
            Action::Go => {}
            Action::Kill => {
                child.kill().expect("killed");
                // The kernel reports the end of the leader only after the end of this thread.
                while !matches!(waitpid(tid, all), Ok(WaitStatus::Signaled(..)) | Err(_)) {}
                return;
            }
            Action::Fail(errno) => {
                failing = Some(errno);
                registers.orig_rax = u64::MAX;
                ptrace::setregs(tid, registers).expect("registers");
            }
        }
    }
}

/// Where a call has its path.
#[derive(Clone, Copy)]
enum Named {
    /// In the first argument.
    First,
    /// In the second argument, relative to the descriptor in the first.
    At,
    /// The file of the descriptor in the first argument.
    Descriptor,
    /// In the second argument (`mount`).
    Second,
    /// In the address of a socket, the second argument.
    Address,
}

/// Calls that change something: number, name, where the path is, whether they may need room.
const CHANGING: [(c_long, &str, Named, bool); 34] = [
    (libc::SYS_creat, "creat", Named::First, true),
    (libc::SYS_mkdir, "mkdir", Named::First, true),
    (libc::SYS_mkdirat, "mkdirat", Named::At, true),
    (libc::SYS_mknod, "mknod", Named::First, true),
    (libc::SYS_mknodat, "mknodat", Named::At, true),
    (libc::SYS_rename, "rename", Named::First, false),
    (libc::SYS_renameat, "renameat", Named::At, false),
    (libc::SYS_renameat2, "renameat2", Named::At, false),
    (libc::SYS_unlink, "unlink", Named::First, false),
    (libc::SYS_unlinkat, "unlinkat", Named::At, false),
    (libc::SYS_rmdir, "rmdir", Named::First, false),
    (libc::SYS_link, "link", Named::First, true),
    (libc::SYS_linkat, "linkat", Named::At, true),
    (libc::SYS_symlink, "symlink", Named::Second, true),
    (libc::SYS_chmod, "chmod", Named::First, false),
    (libc::SYS_fchmod, "fchmod", Named::Descriptor, false),
    (libc::SYS_fchmodat, "fchmodat", Named::At, false),
    (libc::SYS_chown, "chown", Named::First, false),
    (libc::SYS_fchown, "fchown", Named::Descriptor, false),
    (libc::SYS_write, "write", Named::Descriptor, true),
    (libc::SYS_writev, "writev", Named::Descriptor, true),
    (libc::SYS_pwrite64, "pwrite64", Named::Descriptor, true),
    (libc::SYS_truncate, "truncate", Named::First, true),
    (libc::SYS_ftruncate, "ftruncate", Named::Descriptor, true),
    (libc::SYS_fallocate, "fallocate", Named::Descriptor, true),
    (libc::SYS_utimensat, "utimensat", Named::At, false),
    (libc::SYS_mount, "mount", Named::Second, true),
    (libc::SYS_umount2, "umount2", Named::First, false),
    (libc::SYS_bind, "bind", Named::Address, true),
    (libc::SYS_fsync, "fsync", Named::Descriptor, true),
    (libc::SYS_fdatasync, "fdatasync", Named::Descriptor, true),
    (libc::SYS_syncfs, "syncfs", Named::Descriptor, true),
    (libc::SYS_copy_file_range, "copy_file_range", Named::Descriptor, true),
    (libc::SYS_sendfile, "sendfile", Named::Descriptor, true),
];

/// Calls that change nothing that outlives the process. A lock ends with it.
const HARMLESS: [c_long; 53] = [
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_close,
    libc::SYS_stat,
    libc::SYS_fstat,
    libc::SYS_lstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_access,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_lseek,
    libc::SYS_getdents64,
    libc::SYS_readlink,
    libc::SYS_readlinkat,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_dup,
    libc::SYS_socket,
    libc::SYS_listen,
    libc::SYS_epoll_ctl,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_futex,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    libc::SYS_getrandom,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getcwd,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_prctl,
    libc::SYS_rseq,
    libc::SYS_set_robust_list,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

fn changing(tid: Pid, registers: &libc::user_regs_struct) -> Option<Call> {
    let number = registers.orig_rax.cast_signed();
    let (first, second) = (registers.rdi, registers.rsi);
    if number == libc::SYS_open || number == libc::SYS_openat || number == libc::SYS_openat2 {
        let (path, flags) = match number {
            libc::SYS_open => (string(tid, first), second),
            libc::SYS_openat => (path_at(tid, first, second), registers.rdx),
            _ => (path_at(tid, first, second), word(tid, registers.rdx)),
        };
        let changes = flags & u64::from((libc::O_CREAT | libc::O_TRUNC).cast_unsigned()) != 0;
        return changes.then_some(Call {
            name: "open",
            path,
            allocates: true,
        });
    }
    let Some((_, name, named, allocates)) = CHANGING.iter().find(|known| known.0 == number) else {
        assert!(HARMLESS.contains(&number), "does system call {number} change anything?");
        return None;
    };
    let path = match named {
        Named::First => string(tid, first),
        Named::At => path_at(tid, first, second),
        Named::Descriptor => descriptor(tid, first),
        Named::Second => string(tid, second),
        // The path follows the address family, which has two bytes.
        Named::Address => string(tid, second + 2),
    };
    // Pipes, sockets and terminals carry messages only.
    let is_file = path.starts_with('/') && !path.starts_with("/dev/pts");
    is_file.then_some(Call {
        name,
        path,
        allocates: *allocates,
    })
}

fn memory(tid: Pid, at: u64, bytes: &mut [u8]) -> usize {
    let memory = File::open(format!("/proc/{tid}/mem")).expect("its memory");
    memory.read_at(bytes, at).unwrap_or_default()
}

fn string(tid: Pid, at: u64) -> String {
    // Ends at a page boundary, because the page after it may not be mapped.
    let mut bytes = vec![0; 4096 + (4096 - usize::try_from(at % 4096).expect("small"))];
    let count = memory(tid, at, &mut bytes);
    let end = bytes[..count].iter().position(|byte| *byte == 0).unwrap_or(count);
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn word(tid: Pid, at: u64) -> u64 {
    let mut bytes = [0; 8];
    memory(tid, at, &mut bytes);
    u64::from_ne_bytes(bytes)
}

fn path_at(tid: Pid, folder: u64, name: u64) -> String {
    let name = string(tid, name);
    if name.starts_with('/') {
        return name;
    }
    format!("{}/{name}", descriptor(tid, folder))
}

fn descriptor(tid: Pid, number: u64) -> String {
    // The kernel reads an int.
    let number = number as u32 as i32;
    let link = std::fs::read_link(format!("/proc/{tid}/fd/{number}"));
    link.map_or_else(|_| String::new(), |path| path.to_string_lossy().into_owned())
}
