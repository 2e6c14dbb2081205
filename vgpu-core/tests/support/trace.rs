//! Runs a client under ptrace through one call of libvgpu.so, and stops at each instruction of the library and at the
//! entry and exit of each system call. Code of other libraries runs without stops until it returns to the address that
//! the library's call left on the stack.
#![allow(unsafe_code)] // ptrace, and symbols of a library that is opened for their addresses.

use libc::{c_int, c_long, pid_t, user_regs_struct};
use std::ffi::CString;
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

pub(crate) struct Traced {
    child: Child,
    text: Vec<Range<u64>>,
    /// The address to which the library's call returns.
    end: u64,
    outside: Option<Breakpoint>,
}

struct Breakpoint {
    at: u64,
    /// The word that the trap replaced.
    word: c_long,
    /// The stack pointer after the return that is waited for. It distinguishes this return from others at the same
    /// address.
    stack: u64,
}

/// The state of a traced client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Instruction,
    SystemCall,
    End,
}

impl Traced {
    /// Starts `command`, stopped at its first instruction.
    pub(crate) fn start(mut command: Command) -> std::io::Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::null());
        // SAFETY: one system call between fork and exec.
        unsafe {
            command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        let traced = Self {
            child: command.spawn()?,
            text: Vec::new(),
            end: 0,
            outside: None,
        };
        assert_eq!(traced.wait(), libc::SIGTRAP, "stopped by its exec");
        let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL;
        traced.request(libc::PTRACE_SETOPTIONS, 0, options as u64);
        Ok(traced)
    }

    /// Runs it to its step `here`.
    pub(crate) fn run_to_here(&mut self) {
        self.request(libc::PTRACE_CONT, 0, 0);
        assert_eq!(self.wait(), libc::SIGTRAP, "a step `here`");
    }

    /// Runs it into the library's function `symbol`.
    pub(crate) fn run_into(&mut self, library: &Path, symbol: &str) {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.pid())).expect("maps");
        let mut base = None;
        for line in maps.lines().filter(|line| line.ends_with(&*library.to_string_lossy())) {
            let mut words = line.split(' ');
            let (range, rights) = (words.next().expect("a range"), words.next().expect("rights"));
            let (from, to) = range.split_once('-').expect("a range");
            let parse = |hex| u64::from_str_radix(hex, 16).expect("an address");
            base.get_or_insert(parse(from));
            if rights.contains('x') {
                self.text.push(parse(from)..parse(to));
            }
        }
        let function = base.expect("the library is loaded") + offset(library, symbol);
        let word = self.plant(function);
        self.request(libc::PTRACE_CONT, 0, 0);
        assert_eq!(self.wait(), libc::SIGTRAP, "{symbol} is called");
        let mut registers = self.registers();
        assert_eq!(registers.rip, function + 1, "{symbol}");
        self.request(libc::PTRACE_POKEDATA, function, word as u64);
        registers.rip = function;
        self.set(&registers);
        self.end = self.peek(registers.rsp);
    }

    /// Goes on to the next stop.
    pub(crate) fn advance(&mut self) -> At {
        if self.outside.is_none() {
            self.request(libc::PTRACE_SINGLESTEP, 0, 0);
            assert_eq!(self.wait(), libc::SIGTRAP);
            let registers = self.registers();
            if registers.rip == self.end {
                return At::End;
            }
            if self.text.iter().any(|text| text.contains(&registers.rip)) {
                return At::Instruction;
            }
            let at = self.peek(registers.rsp);
            self.outside = Some(Breakpoint {
                at,
                word: self.plant(at),
                stack: registers.rsp + 8,
            });
        }
        self.run_outside()
    }

    fn run_outside(&mut self) -> At {
        loop {
            self.request(libc::PTRACE_SYSCALL, 0, 0);
            match self.wait() {
                libc::SIGTRAP => {}
                signal if signal == libc::SIGTRAP | 0x80 => return At::SystemCall,
                other => panic!("stopped by signal {other}"),
            }
            let Some(Breakpoint { at, word, stack }) = self.outside.take() else {
                panic!("a trap that nobody has set");
            };
            let mut registers = self.registers();
            assert_eq!(registers.rip, at + 1, "the way back");
            self.request(libc::PTRACE_POKEDATA, at, word as u64);
            registers.rip = at;
            self.set(&registers);
            if registers.rsp == stack {
                return if at == self.end { At::End } else { At::Instruction };
            }
            // The same address deeper in the stack: the return of another call.
            self.request(libc::PTRACE_SINGLESTEP, 0, 0);
            assert_eq!(self.wait(), libc::SIGTRAP);
            let word = self.plant(at);
            self.outside = Some(Breakpoint { at, word, stack });
        }
    }

    /// Kills it and waits for its end.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it lives");
        self.child.wait().expect("it ends");
    }

    fn pid(&self) -> pid_t {
        self.child.id().try_into().expect("a PID")
    }

    /// The signal that stopped it.
    fn wait(&self) -> c_int {
        let mut status = 0;
        // SAFETY: our own child; its status is to be written.
        let pid = unsafe { libc::waitpid(self.pid(), &mut status, libc::__WALL) };
        assert!(pid == self.pid() && libc::WIFSTOPPED(status), "it ended: {status:#x}");
        libc::WSTOPSIG(status)
    }

    fn request(&self, what: libc::c_uint, address: u64, data: u64) -> c_long {
        // SAFETY: our own stopped child; `data` is a value, or lives in the caller.
        let result = unsafe { libc::ptrace(what, self.pid(), address, data) };
        assert!(
            result != -1 || what == libc::PTRACE_PEEKDATA,
            "ptrace {what}: {}",
            std::io::Error::last_os_error()
        );
        result
    }

    fn registers(&self) -> user_regs_struct {
        // SAFETY: an all-zero user_regs_struct is a value of its type.
        let mut registers: user_regs_struct = unsafe { std::mem::zeroed() };
        self.request(
            libc::PTRACE_GETREGS,
            0,
            std::ptr::from_mut(&mut registers).addr() as u64,
        );
        registers
    }

    fn set(&self, registers: &user_regs_struct) {
        self.request(libc::PTRACE_SETREGS, 0, std::ptr::from_ref(registers).addr() as u64);
    }

    fn peek(&self, at: u64) -> u64 {
        self.request(libc::PTRACE_PEEKDATA, at, 0) as u64
    }

    /// Puts a trap at `at`. Returns the replaced word.
    fn plant(&self, at: u64) -> c_long {
        let word = self.peek(at);
        self.request(libc::PTRACE_POKEDATA, at, word & !0xff | 0xcc);
        word as c_long
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the offset of `symbol` in the library.
fn offset(library: &Path, symbol: &str) -> u64 {
    let path = CString::new(library.as_os_str().as_encoded_bytes()).expect("a path");
    let name = CString::new(symbol).expect("a name");
    // SAFETY: C strings; the library has no constructors; `info` is to be written.
    unsafe {
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL);
        let address = libc::dlsym(handle, name.as_ptr());
        let mut info: libc::Dl_info = std::mem::zeroed();
        assert!(
            !handle.is_null() && !address.is_null() && libc::dladdr(address, &mut info) != 0,
            "{symbol}"
        );
        (address.addr() - info.dli_fbase.addr()) as u64
    }
}
