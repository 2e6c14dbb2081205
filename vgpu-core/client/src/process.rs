//! Steps that a program may do to itself and to its children.

use crate::client::Client;
use crate::library::{call, size};
use crate::storm::enter;
use std::ffi::{CString, c_int, c_long};
use std::io::Write;

pub(crate) fn step(client: &mut Client, name: &str, value: &str) -> Option<String> {
    let number = size(value);
    Some(match name {
        // The child continues with the steps; the parent waits for it and then continues too.
        "fork" => waited(client, fork()),
        // The same by the system call, which no library notices.
        "rawclone" => waited(client, clone(0)),
        "clonefiles" => waited(client, clone(libc::CLONE_FILES)),
        // The child continues with the steps; the parent ends at once.
        "orphan" => match fork() {
            0 => "child".into(),
            // SAFETY: ends this process without a word.
            _ => unsafe { libc::_exit(0) },
        },
        // Prints a child's answer to cuInit.
        "forked" => forked(client).to_string(),
        // Starts a child that does nothing and is left behind.
        "sleeper" => sleeper(fork()),
        "rawsleeper" => sleeper(clone(0)),
        "forks" => forks(client, number).to_string(),
        "spawns" => (0..number).filter(|_| !spawn()).count().to_string(),
        "exec" => exec(value),
        "dlclose" => {
            // SAFETY: a handle from dlopen, given back once.
            let result = unsafe { libc::dlclose(client.cuda()) };
            client.cuda = std::ptr::null_mut();
            result.to_string()
        }
        "closefrom" => close_from().to_string(),
        "cover" => cover(),
        // Starts a thread that repeatedly closes descriptors and replaces them with /dev/null.
        "closing" => {
            std::thread::spawn(|| {
                loop {
                    close_from();
                    cover();
                    std::thread::yield_now();
                }
            });
            "0".into()
        }
        "fill" => fill(number),
        "space" => space(number),
        "deny" => deny(value),
        "chroot" => {
            let path = CString::new(value).expect("a path");
            // SAFETY: C strings.
            unsafe { libc::chroot(path.as_ptr()) + libc::chdir(c"/".as_ptr()) }.to_string()
        }
        "here" => {
            // SAFETY: for whoever traces this program; nothing is changed.
            #[cfg(target_arch = "x86_64")]
            unsafe {
                std::arch::asm!("int3")
            };
            // SAFETY: the same.
            #[cfg(target_arch = "aarch64")]
            unsafe {
                std::arch::asm!("brk #0")
            };
            "0".into()
        }
        _ => return None,
    })
}

fn fork() -> c_int {
    std::io::stdout().flush().expect("stdout");
    // SAFETY: the child goes on as a program of its own.
    unsafe { libc::fork() }
}

fn clone(flags: c_int) -> c_int {
    std::io::stdout().flush().expect("stdout");
    let flags = c_long::from(flags | libc::SIGCHLD);
    // SAFETY: without CLONE_VM the child has memory of its own, and goes on with a copy of this stack.
    unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) as c_int }
}

fn waited(client: &mut Client, child: c_int) -> String {
    if child == 0 {
        client.pointers.clear();
        return "child".into();
    }
    let mut status = 0;
    // SAFETY: the child just made.
    unsafe { libc::waitpid(child, &mut status, 0) };
    format!("parent {status}")
}

fn forked(client: &mut Client) -> c_int {
    let (cuda, child, mut status) = (client.cuda(), fork(), 0);
    if child == 0 {
        let result = call!(cuda, "cuInit"(u32)(0));
        // SAFETY: ends the child without what the parent would do at its end.
        unsafe { libc::_exit(result) };
    }
    // SAFETY: the child just made.
    unsafe { libc::waitpid(child, &mut status, 0) };
    libc::WEXITSTATUS(status)
}

fn sleeper(child: c_int) -> String {
    if child == 0 {
        // SAFETY: ends this process after minutes, should its test be gone by then.
        unsafe { libc::alarm(300) };
        loop {
            // SAFETY: waits for the signal that ends it.
            unsafe { libc::pause() };
        }
    }
    child.to_string()
}

/// Forks a process with threads; each child tries the API. Returns how many were ended by a signal.
fn forks(client: &mut Client, number: u64) -> usize {
    let cuda = client.cuda();
    let child = || {
        let child = fork();
        if child == 0 {
            let mut pointer = 0_u64;
            // SAFETY: a hang becomes a death by SIGALRM.
            unsafe { libc::alarm(60) };
            call!(cuda, "cuInit"(u32)(0));
            call!(cuda, "cuMemAlloc_v2" (*mut u64, usize) (&mut pointer, 2 << 20));
            // SAFETY: as a fork child of a program with threads should.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: the child just made.
        unsafe { libc::waitpid(child, &mut status, 0) };
        status == 0
    };
    (0..number).filter(|_| !child()).count()
}

/// Does vfork and exec, as the standard library does.
fn spawn() -> bool {
    let status = std::process::Command::new("/bin/true").status();
    status.is_ok_and(|status| status.success())
}

/// Executes this program again, with the steps in `value` (spaces written as commas).
fn exec(value: &str) -> String {
    use std::os::unix::process::CommandExt;
    let own = std::env::current_exe().expect("a path");
    std::process::Command::new(own)
        .args(value.split(','))
        .exec()
        .to_string()
}

fn close_from() -> c_long {
    // SAFETY: closes what this client does not use any more.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) }
}

/// Puts /dev/null on every descriptor from 3 to 63, whatever was there.
fn cover() -> String {
    // SAFETY: descriptors that this client does not use.
    unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        (3..64).map(|number| libc::dup2(null, number)).max().unwrap_or(-1)
    }
    .to_string()
}

/// Leaves only `left` descriptors free. Returns how many were taken.
fn fill(left: u64) -> String {
    let limit = libc::rlimit {
        rlim_cur: 64,
        rlim_max: 64,
    };
    // SAFETY: a limit in; copies of stdin.
    unsafe {
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
        let taken: Vec<c_int> = std::iter::repeat_with(|| libc::dup(0))
            .take_while(|new| *new >= 0)
            .collect();
        for last in taken.iter().rev().take(left as usize) {
            libc::close(*last);
        }
        taken.len().to_string()
    }
}

/// Lets the address space grow by `more` bytes at most.
fn space(more: u64) -> String {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("statm");
    let pages: u64 = pages.split(' ').next().and_then(|n| n.parse().ok()).expect("pages");
    // SAFETY: takes a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    let limit = libc::rlimit {
        rlim_cur: pages * page + more,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: a limit in.
    unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }.to_string()
}

/// Makes the system calls in `value` fail with EPERM, by a seccomp filter; for `NAME=0`, return 0 without being made.
fn deny(value: &str) -> String {
    let number = |name: &str| match name {
        "madvise" => libc::SYS_madvise,
        "fcntl" => libc::SYS_fcntl,
        "sched_yield" => libc::SYS_sched_yield,
        "clock_nanosleep" => libc::SYS_clock_nanosleep,
        "statx" => libc::SYS_statx,
        "pread64" => libc::SYS_pread64,
        "process_vm_readv" => libc::SYS_process_vm_readv,
        "getrandom" => libc::SYS_getrandom,
        "rt_sigprocmask" => libc::SYS_rt_sigprocmask,
        _ => panic!("unknown system call {name}"),
    };
    let jump = |code: u32, truth: u8, lie: u8, value: u32| libc::sock_filter {
        code: code as u16,
        jt: truth,
        jf: lie,
        k: value,
    };
    // The first word that a filter gets is the system call's number.
    let mut program = vec![jump(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0)];
    for denied in value.split(',') {
        let (name, errno) = denied.split_once('=').unwrap_or((denied, "1"));
        let errno = errno.parse::<u32>().expect("a number");
        let is = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        program.push(jump(is, 0, 1, number(name) as u32));
        program.push(jump(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | errno));
    }
    program.push(jump(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW));
    let mut filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the filter is copied by the kernel.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1_u64, 0_u64, 0_u64, 0_u64), 0);
        let filter = std::ptr::from_mut(&mut filter);
        libc::prctl(libc::PR_SET_SECCOMP, u64::from(libc::SECCOMP_MODE_FILTER), filter)
    }
    .to_string()
}

/// Ends the program's first thread; another thread continues with the steps.
pub(crate) fn leave(client: Client, go_on: impl FnOnce(&mut Client) + Send + 'static) {
    struct Moved(Client);
    // SAFETY: its pointers are library handles, which belong to the process.
    unsafe impl Send for Moved {}
    impl Moved {
        fn run(mut self, go_on: impl FnOnce(&mut Client)) -> ! {
            println!("leave 0");
            enter(self.0.cuda());
            go_on(&mut self.0);
            std::process::exit(0)
        }
    }
    let moved = Moved(client);
    std::thread::spawn(move || moved.run(go_on));
    // SAFETY: ends this thread alone; what lies on its stack is not used any more.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
}
