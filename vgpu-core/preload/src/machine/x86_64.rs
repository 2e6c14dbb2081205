//! x86-64.

use core::arch::{asm, naked_asm};

/// Defines the entry points, in the module that has their plans.
macro_rules! entry_points {
    () => {
        /// void *dlopen(const char *file, int mode)
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn dlopen() {
            core::arch::naked_asm!(
                "push rdi",
                "push rsi",
                "sub rsp, 8",
                "mov rdx, qword ptr [rsp + 24]", // the caller
                "call {plan}",
                "add rsp, 8",
                "pop rsi",
                "pop rdi",
                "mov rdi, rdx",
                "jmp rax",
                plan = sym plan_open,
            )
        }

        /// void *dlmopen(Lmid_t namespace, const char *file, int mode)
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn dlmopen() {
            core::arch::naked_asm!(
                "push rdi",
                "push rdx",
                "sub rsp, 8",
                "mov rdi, rsi",
                "mov rsi, rdx",
                "mov rdx, qword ptr [rsp + 24]", // the caller
                "call {plan}",
                "add rsp, 8",
                "mov rsi, rdx",
                "pop rdx",
                "pop rdi",
                "jmp rax",
                plan = sym plan_open_in_namespace,
            )
        }

        /// void *dlsym(void *handle, const char *name)
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn dlsym() {
            core::arch::naked_asm!(
                "push rsi",
                "sub rsp, 16",
                "mov rdx, qword ptr [rsp + 24]", // the caller
                "call {plan}",
                "add rsp, 16",
                "pop rsi",
                "mov rdi, rdx",
                "jmp rax",
                plan = sym plan_symbol,
            )
        }

        /// void *dlvsym(void *handle, const char *name, const char *version)
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn dlvsym() {
            core::arch::naked_asm!(
                "push rsi",
                "push rdx",
                "sub rsp, 8",
                "mov rcx, qword ptr [rsp + 24]", // the caller
                "call {plan}",
                "add rsp, 8",
                "mov rdi, rdx",
                "pop rdx",
                "pop rsi",
                "jmp rax",
                plan = sym plan_versioned_symbol,
            )
        }
    };
}
pub(crate) use entry_points;

/// The instruction `ret`: a function that returns to it returns to the next address on the stack.
pub(crate) struct CodeEnd {
    ret: usize,
}

impl CodeEnd {
    /// Finds one in the code from `start` to `end`.
    ///
    /// # Safety
    /// The range is mapped and readable.
    pub(crate) unsafe fn find(start: usize, end: usize) -> Option<Self> {
        const RET: u8 = 0xc3;
        // SAFETY: as promised.
        let is_ret = |at: &usize| unsafe { core::ptr::with_exposed_provenance::<u8>(*at).read() } == RET;
        (start..end).find(is_ret).map(|ret| Self { ret })
    }

    /// Calls `function` so that it returns through these instructions.
    ///
    /// # Safety
    /// `function` is a C function of three or fewer words that returns a word, and the arguments are valid for it. The
    /// object that has these instructions stays loaded.
    pub(crate) unsafe fn call(&self, function: usize, [a, b, c]: [usize; 3]) -> usize {
        // SAFETY: as promised.
        unsafe { through(a, b, c, function, self.ret) }
    }
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

pub(crate) const SYS_OPENAT: usize = 257;
pub(crate) const SYS_CLOSE: usize = 3;
pub(crate) const SYS_LSEEK: usize = 8;
pub(crate) const SYS_PREAD: usize = 17;
pub(crate) const SYS_SENDFILE: usize = 40;
pub(crate) const SYS_MEMFD_CREATE: usize = 319;
pub(crate) const SYS_MPROTECT: usize = 10;
pub(crate) const SYS_FACCESSAT: usize = 269;

/// Makes a system call and returns the kernel's result. errno is not changed.
pub(crate) fn call(number: usize, [a, b, c, d]: [usize; 4]) -> isize {
    let answer;
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

/// Returns the addresses of glibc's `_r_debug` and of musl's `_dl_debug_addr`, or 0.
pub(crate) fn imports() -> (usize, usize) {
    let (glibc, musl);
    // SAFETY: reads two words of this library's own table, which the loader has filled before.
    unsafe {
        asm!(
            ".weak _r_debug",
            ".weak _dl_debug_addr",
            "mov {}, qword ptr [rip + _r_debug@GOTPCREL]",
            "mov {}, qword ptr [rip + _dl_debug_addr@GOTPCREL]",
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
            "lea {}, [rip + _DYNAMIC]",
            out(reg) address,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    address
}
