//! The fast path of a launch within the budget: asks [`question`], then jumps to the driver with all arguments
//! unchanged. Any other launch jumps to its hook.
//!
//! How it fails: [`question`] makes no system call, and calls nothing that could throw or be cancelled, so no frame of
//! these functions is ever unwound.

use super::compute::functions;
use crate::hooks::compute::may_go;
use crate::names::slot;
use crate::real;
use core::arch::naked_asm;
use core::ptr::null;
use vgpu_core::arbiter::per_thread;

/// Returns the function to bind for a slot instead of its hook, if there is such a fast path.
pub(crate) fn bound(slot: usize) -> Option<*const ()> {
    match slot {
        slot::cuLaunchKernel => Some(kernel as *const ()),
        slot::cuLaunchKernel_ptsz => Some(kernel_ptsz as *const ()),
        _ => None,
    }
}

/// The stream is the third argument on the stack. Six arguments are in registers, and kept; the stack is aligned to 16.
#[cfg(target_arch = "x86_64")]
macro_rules! granted {
    ($name:ident, $question:ident, $hook:path) => {
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push r8",
                "push r9",
                "mov rdi, [rsp + 48 + 24]",
                "sub rsp, 8",
                "call {question}",
                "add rsp, 8",
                "pop r9",
                "pop r8",
                "pop rcx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "test rax, rax",
                "je {hook}",
                "jmp rax",
                question = sym $question,
                hook = sym $hook,
            )
        }
    };
}

/// The stream is the first argument on the stack. Eight arguments are in registers, and kept.
#[cfg(target_arch = "aarch64")]
macro_rules! granted {
    ($name:ident, $question:ident, $hook:path) => {
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                "stp x29, x30, [sp, #-80]!",
                "mov x29, sp",
                "stp x0, x1, [sp, #16]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "ldr x0, [sp, #80]",
                "bl {question}",
                "mov x16, x0",
                "ldp x6, x7, [sp, #64]",
                "ldp x4, x5, [sp, #48]",
                "ldp x2, x3, [sp, #32]",
                "ldp x0, x1, [sp, #16]",
                "ldp x29, x30, [sp], #80",
                "cbz x16, 2f",
                "br x16",
                "2:",
                "b {hook}",
                question = sym $question,
                hook = sym $hook,
            )
        }
    };
}

granted!(kernel, question, functions::cuLaunchKernel);
granted!(kernel_ptsz, question_ptsz, functions::cuLaunchKernel_ptsz);

/// Returns the real function if a launch in this stream may start at once, and counts the launch. Null otherwise.
extern "C" fn question(stream: usize) -> *const () {
    if may_go(stream) {
        real::address(slot::cuLaunchKernel)
    } else {
        null()
    }
}

extern "C" fn question_ptsz(stream: usize) -> *const () {
    if may_go(per_thread(stream)) {
        real::address(slot::cuLaunchKernel_ptsz)
    } else {
        null()
    }
}
