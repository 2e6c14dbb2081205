//! System calls of Linux on x86-64, without a libc.
#![allow(unsafe_code)] // An instruction.

use core::arch::asm;

use crate::name::Text;

const SYS_ACCESS: usize = 21;
const ENOENT: isize = -2;
const ENOTDIR: isize = -20;

/// Makes a system call and returns the kernel's result. errno is not changed.
pub(crate) fn call(number: usize, arguments: [usize; 4]) -> isize {
    let answer;
    let [a, b, c, d] = arguments;
    // SAFETY: each caller passes the arguments of that system call: descriptors, and pointers to memory that lives
    // longer than the call.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => answer,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack)
        );
    }
    answer
}

/// Returns true if there is a file at `path`, even if this process may not reach it.
pub(crate) fn exists(path: Text) -> bool {
    const ANY: usize = 0;
    let answer = call(SYS_ACCESS, [path.pointer().expose_provenance(), ANY, 0, 0]);
    !matches!(answer, ENOENT | ENOTDIR)
}
