//! arm64.
//!
//! A called function returns to the address in x30, and nothing on the stack tells its caller. The frame of each entry
//! point has x30 while the plan is computed.

use core::arch::{asm, naked_asm};

/// An entry point: passes the caller to `$plan` in the register `$caller`, and the planned argument in `$planned`. `$before`
/// moves arguments for the plan.
macro_rules! entry {
    ($(#[$about:meta])* $name:ident, $plan:ident($($before:literal),*; $caller:literal), $planned:literal) => {
        $(#[$about])*
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "stp x29, x30, [sp, #-48]!",
                "mov x29, sp",
                "stp x0, x1, [sp, #16]",
                "str x2, [sp, #32]",
                $($before,)*
                concat!("mov ", $caller, ", x30"),
                "bl {plan}",
                "mov x16, x0",
                "mov x17, x1",
                "ldp x0, x1, [sp, #16]",
                "ldr x2, [sp, #32]",
                "ldp x29, x30, [sp], #48",
                concat!("mov ", $planned, ", x17"),
                "br x16",
                plan = sym $plan,
            )
        }
    };
}

pub(crate) use entry;

/// Defines the entry points, in the module that has their plans.
macro_rules! entry_points {
    () => {
        $crate::machine::entry! {
            /// void *dlopen(const char *file, int mode)
            dlopen, plan_open(; "x2"), "x0"
        }
        $crate::machine::entry! {
            /// void *dlmopen(Lmid_t namespace, const char *file, int mode)
            dlmopen, plan_open_in_namespace("mov x0, x1", "mov x1, x2"; "x2"), "x1"
        }
        $crate::machine::entry! {
            /// void *dlsym(void *handle, const char *name)
            dlsym, plan_symbol(; "x2"), "x0"
        }
        $crate::machine::entry! {
            /// void *dlvsym(void *handle, const char *name, const char *version)
            dlvsym, plan_versioned_symbol(; "x3"), "x0"
        }
    };
}
pub(crate) use entry_points;

/// The end of a function that restores x29 and x30 from the stack and returns. A bare `ret` is not enough: x30 would
/// still have its own address, so it would jump to itself forever.
pub(crate) struct CodeEnd {
    start: usize,
    /// The bytes by which it moves the stack pointer.
    frame: usize,
    /// It authenticates x30 (pointer authentication), with the stack pointer that it leaves.
    is_signed: bool,
}

impl CodeEnd {
    /// Finds one in the code from `start` to `end`.
    ///
    /// # Safety
    /// The range is mapped and readable.
    pub(crate) unsafe fn find(start: usize, end: usize) -> Option<Self> {
        const SIZE: usize = 4;
        const RET: u32 = 0xd65f_03c0;
        const AUTIASP: u32 = 0xd503_23bf;
        const RETAA: u32 = 0xd65f_0bff;
        // SAFETY: as promised.
        let word = |at: usize| unsafe { core::ptr::with_exposed_provenance::<u32>(at).read() };
        let start = start.next_multiple_of(SIZE);
        let last = end.checked_sub(3 * SIZE)?;
        (start..=last).step_by(SIZE).find_map(|at| {
            let frame = frame(word(at))?;
            let (next, after) = (word(at + SIZE), word(at + 2 * SIZE));
            let is_signed = next == RETAA || next == AUTIASP && after == RET;
            (is_signed || next == RET).then_some(Self {
                start: at,
                frame,
                is_signed,
            })
        })
    }

    /// Calls `function` so that it returns through these instructions.
    ///
    /// # Safety
    /// `function` is a C function of three or fewer words that returns a word, and the arguments are valid for it. The
    /// object that has these instructions stays loaded.
    pub(crate) unsafe fn call(&self, function: usize, [a, b, c]: [usize; 3]) -> usize {
        // SAFETY: as promised.
        unsafe { through(a, b, c, function, self.start, self.frame, self.is_signed.into()) }
    }
}

/// Returns n of the instruction `ldp x29, x30, [sp], #n`, if it is one that leaves the stack pointer aligned.
fn frame(instruction: u32) -> Option<usize> {
    const FRAME: u32 = 0x7f << 15;
    const LDP: u32 = 0xa8c0_7bfd;
    // Seven bits with a sign, in words. No frame is larger than 504 bytes.
    let words = (instruction & FRAME) >> 15;
    let bytes = words as usize * size_of::<usize>();
    (instruction & !FRAME == LDP && words < 64 && bytes > 0 && bytes.is_multiple_of(16)).then_some(bytes)
}

/// Calls `function(a, b, c)` with the return address `end`, where `frame` bytes are taken from the stack, and from them x29
/// and x30. If it authenticates x30, x30 is signed here with the stack pointer that it will see. Processors without pointer
/// authentication ignore both instructions.
#[unsafe(naked)]
unsafe extern "C" fn through(
    a: usize,
    b: usize,
    c: usize,
    function: usize,
    end: usize,
    frame: usize,
    is_signed: usize,
) -> usize {
    naked_asm!(
        "stp x29, x30, [sp, #-16]!",
        "mov x29, sp",
        "adr x30, 2f",
        "cbz x6, 3f",
        "hint #25", // paciasp
        "3:",
        "mov x16, x3",
        "sub sp, sp, x5",
        "stp x29, x30, [sp]",
        "mov x30, x4", // where `function` returns to
        "br x16",
        "2:",
        "ldp x29, x30, [sp], #16",
        "ret",
    )
}

pub(crate) const SYS_OPENAT: usize = 56;
pub(crate) const SYS_CLOSE: usize = 57;
pub(crate) const SYS_LSEEK: usize = 62;
pub(crate) const SYS_PREAD: usize = 67;
pub(crate) const SYS_SENDFILE: usize = 71;
pub(crate) const SYS_MEMFD_CREATE: usize = 279;
pub(crate) const SYS_MPROTECT: usize = 226;
pub(crate) const SYS_FACCESSAT: usize = 48;

/// Makes a system call and returns the kernel's result. errno is not changed.
pub(crate) fn call(number: usize, [a, b, c, d]: [usize; 4]) -> isize {
    let answer;
    // SAFETY: each caller passes the arguments of that system call: descriptors, and pointers to memory that lives
    // longer than the call.
    unsafe {
        asm!(
            "svc #0",
            in("x8") number,
            inlateout("x0") a => answer,
            in("x1") b,
            in("x2") c,
            in("x3") d,
            options(nostack)
        );
    }
    answer
}

/// Returns the addresses of glibc's `_r_debug` and of musl's `_dl_debug_addr`, or 0.
pub(crate) fn imports() -> (usize, usize) {
    let (glibc, musl);
    // SAFETY: reads two words of this library's own table, which the loader has filled before.
    unsafe {
        asm!(
            ".weak _r_debug",
            ".weak _dl_debug_addr",
            "adrp {0}, :got:_r_debug",
            "ldr {0}, [{0}, :got_lo12:_r_debug]",
            "adrp {1}, :got:_dl_debug_addr",
            "ldr {1}, [{1}, :got_lo12:_dl_debug_addr]",
            out(reg) glibc,
            out(reg) musl,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    (glibc, musl)
}

/// Returns the address of this library's dynamic section.
pub(crate) fn own_dynamic() -> usize {
    let address;
    // SAFETY: computes an address.
    unsafe {
        asm!(
            ".hidden _DYNAMIC",
            "adrp {0}, _DYNAMIC",
            "add {0}, {0}, :lo12:_DYNAMIC",
            out(reg) address,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    address
}
