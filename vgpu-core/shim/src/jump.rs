//! Functions that are not hooked: each is one jump through a table to the real function, which is looked up at the
//! first call. If this process's GPU time is limited, launches and waits jump to a hook instead; otherwise they cost
//! nothing more.

use crate::codes::{refused_cuda, refused_nvml};
use crate::detour::guarded;
use crate::names::{COUNT, CUDA};
use crate::{real, start, table};
use core::arch::naked_asm;
use core::sync::atomic::{AtomicPtr, Ordering};

/// The target of each name: [`bind`], until the first call has found the real function.
pub(crate) static TABLE: [AtomicPtr<()>; COUNT] = [const { AtomicPtr::new(bind as *const () as *mut ()) }; COUNT];

/// Exports a public name as a jump. On x86-64, r11 is not used for arguments in this ABI; it passes the index of the called name
/// to `bind`.
#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    ($name:ident, $index:literal) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "mov r11d, {index}",
                "jmp qword ptr [rip + {table} + 8 * {index}]",
                index = const $index,
                table = sym $crate::jump::TABLE,
            )
        }
    };
}

/// On arm64, x16 passes the index. The ABI reserves x16 and x17 for jumps between libraries.
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    ($name:ident, $index:literal) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "mov w16, {index}",
                "adrp x17, {table}",
                "add x17, x17, :lo12:{table}",
                "add x17, x17, x16, lsl #3",
                "ldar x17, [x17]", // what was written before the address was stored is seen
                "br x17",
                index = const $index,
                table = sym $crate::jump::TABLE,
            )
        }
    };
}

/// A public object of the debugger interface: it exists and is zero, as without a debugger.
macro_rules! object {
    ($name:ident) => {
        #[unsafe(no_mangle)]
        pub static $name: $crate::jump::Object = $crate::jump::Object::new();
    };
}

pub(crate) use {jump, object};

/// As large as the largest object of the debugger, a path.
#[allow(dead_code)] // Read by debuggers alone.
pub struct Object(core::cell::UnsafeCell<[u8; 4096]>);

// SAFETY: the library never uses it; only a debugger in another process does.
unsafe impl Sync for Object {}

impl Object {
    pub(crate) const fn new() -> Self {
        Self(core::cell::UnsafeCell::new([0; 4096]))
    }
}

/// Looks up the real function and jumps there with all arguments unchanged.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn bind() {
    naked_asm!(
        "stp x29, x30, [sp, #-224]!",
        "mov x29, sp",
        "stp x0, x1, [sp, #16]",
        "stp x2, x3, [sp, #32]",
        "stp x4, x5, [sp, #48]",
        "stp x6, x7, [sp, #64]",
        "str x8, [sp, #80]",
        "stp q0, q1, [sp, #96]",
        "stp q2, q3, [sp, #128]",
        "stp q4, q5, [sp, #160]",
        "stp q6, q7, [sp, #192]",
        "mov w0, w16",
        "bl {resolve}",
        "mov x16, x0",
        "ldp q6, q7, [sp, #192]",
        "ldp q4, q5, [sp, #160]",
        "ldp q2, q3, [sp, #128]",
        "ldp q0, q1, [sp, #96]",
        "ldr x8, [sp, #80]",
        "ldp x6, x7, [sp, #64]",
        "ldp x4, x5, [sp, #48]",
        "ldp x2, x3, [sp, #32]",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #224",
        "br x16",
        resolve = sym resolve,
    )
}

/// Does the same on x86-64.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn bind() {
    naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "push rax",
        "push r10",
        "sub rsp, 128",
        "movups [rsp], xmm0",
        "movups [rsp + 16], xmm1",
        "movups [rsp + 32], xmm2",
        "movups [rsp + 48], xmm3",
        "movups [rsp + 64], xmm4",
        "movups [rsp + 80], xmm5",
        "movups [rsp + 96], xmm6",
        "movups [rsp + 112], xmm7",
        "mov edi, r11d",
        "call {resolve}",
        "mov r11, rax",
        "movups xmm0, [rsp]",
        "movups xmm1, [rsp + 16]",
        "movups xmm2, [rsp + 32]",
        "movups xmm3, [rsp + 48]",
        "movups xmm4, [rsp + 64]",
        "movups xmm5, [rsp + 80]",
        "movups xmm6, [rsp + 96]",
        "movups xmm7, [rsp + 112]",
        "add rsp, 128",
        "pop r10",
        "pop rax",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "pop rbp",
        "jmp r11",
        resolve = sym resolve,
    )
}

extern "C" fn resolve(index: u32) -> *const () {
    let index = index as usize;
    let _kept = vgpu_core::os::errno::keep();
    let found = guarded(|| {
        let ready = start::ready()?;
        let hook = || table::granted::bound(index).or_else(|| table::compute::bound(index));
        if let Some(hook) = ready.hooks_launches().then(hook).flatten() {
            if let Some(place) = TABLE.get(index) {
                place.store(hook.cast_mut(), Ordering::Release);
            }
            return Some(hook);
        }
        let address = real::address(index);
        // Stored only when the address will not change any more.
        if let (Some(known), Some(place)) = (real::known(index), TABLE.get(index)) {
            place.store(known.cast_mut(), Ordering::Release);
        }
        Some(address)
    });
    match found.flatten() {
        Some(address) => address,
        None if index < CUDA => refused_cuda as *const (),
        None => refused_nvml as *const (),
    }
}
