//! Calls a function of the loader so that the function sees a different caller than this library.
//!
//! dlsym derives the meaning of RTLD_DEFAULT and RTLD_NEXT from the object at its return address. To examine its answer
//! before the program gets it, this library has to call dlsym, which would then see this library as the caller. So the
//! call gets as its return address a `ret` instruction in the object of the real caller:
//!
//! ```text
//!  program ─► our dlsym ─► libc's dlsym ─► a `ret` in the program ─► our dlsym ─► program
//! ```
//!
//! How it fails: if no such instruction is found (code that may not be read), there is no answer. A process with a
//! shadow stack would end at the `ret`; the loader turns those off if it loads a library that is not marked for them,
//! as this one is not.
#![allow(unsafe_code)] // A naked function.

use core::arch::naked_asm;

use crate::loader::{object_at, objects};

/// The instruction `ret`.
const RET: u8 = 0xc3;

/// Calls `function` with `arguments` as if the code at `caller` had called it.
///
/// # Safety
/// `function` is a C function of three or fewer words that returns a word, and `arguments` are valid for it.
pub(crate) unsafe fn call_as(caller: usize, function: usize, arguments: [usize; 3]) -> Option<usize> {
    let ret = ret_in_object_of(caller)?;
    let [a, b, c] = arguments;
    // SAFETY: as promised; `ret` is a `ret` instruction in an object that runs, so it stays.
    Some(unsafe { through(a, b, c, function, ret) })
}

fn ret_in_object_of(caller: usize) -> Option<usize> {
    let mut found = None;
    if !object_at(caller, &mut |report| found = report.find_code(RET)) {
        // The code belongs to no object: dlsym takes it for the program's, which is the first in the list.
        objects(&mut |report| {
            found = report.find_code(RET);
            true
        });
    }
    found
}

/// Calls `function(a, b, c)` with the return address `ret`.
#[unsafe(naked)]
unsafe extern "C" fn through(a: usize, b: usize, c: usize, function: usize, ret: usize) -> usize {
    naked_asm!(
        "sub rsp, 16",
        "lea rax, [rip + 2f]",
        "push rax", // where `ret` returns to
        "push r8",  // where `function` returns to
        "jmp rcx",  // with the stack as after a call
        "2:",
        "add rsp, 16",
        "ret",
    )
}
