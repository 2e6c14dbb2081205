//! The four exported functions and the constructor. Each export computes a plan, replaces one argument by the planned
//! one, and jumps to the planned function.
//!
//! It jumps, because a call would put this library's address where the loader expects the return address of its caller.
//! Everything that the plan put on the stack is removed before the jump.
//!
//! How it fails: if no real function exists, the exports return null, as when they fail.
#![allow(unsafe_code)] // Naked functions; exported names.

use core::{arch::naked_asm, ffi::c_int};

use crate::{
    bound,
    loader::{Function, LinkMap},
    name::{self, Text},
    shim,
};

/// Returned in rax and rdx.
#[repr(C)]
struct Plan {
    /// Where to jump.
    function: usize,
    /// The new path or handle.
    argument: usize,
}

const RTLD_NOLOAD: c_int = 4;
/// RTLD_DEFAULT and RTLD_NEXT, whose meaning depends on the caller's place in the order of objects.
const PSEUDO_HANDLES: [usize; 2] = [0, usize::MAX];

/// Returns its first argument: the planned address, passed instead of the handle.
extern "C" fn given(answer: usize) -> usize {
    answer
}

/// Used if no real function exists. Returns null, as all four functions do when they fail.
extern "C" fn absent() -> usize {
    0
}

fn real(function: Function) -> usize {
    function.find().unwrap_or(absent as *const () as usize)
}

/// The constructor: runs after the start-up objects are bound and before the program.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = bound::redirect_at_start;

/// void *dlopen(const char *file, int mode)
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlopen() {
    naked_asm!(
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
unsafe extern "C" fn dlmopen() {
    naked_asm!(
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
unsafe extern "C" fn dlsym() {
    naked_asm!(
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
unsafe extern "C" fn dlvsym() {
    naked_asm!(
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

extern "C" fn plan_open(file: *const u8, mode: c_int, caller: usize) -> Plan {
    bound::redirect_new();
    Plan {
        function: real(Function::Open),
        argument: path_for(file, mode, caller),
    }
}

extern "C" fn plan_open_in_namespace(file: *const u8, mode: c_int, caller: usize) -> Plan {
    bound::redirect_new();
    Plan {
        function: real(Function::OpenInNamespace),
        argument: path_for(file, mode, caller),
    }
}

extern "C" fn plan_symbol(handle: usize, name: *const u8, caller: usize) -> Plan {
    look_again(handle);
    if let Some(own) = own_for(handle, name) {
        return Plan {
            function: given as *const () as usize,
            argument: own,
        };
    }
    Plan {
        function: real(Function::Symbol),
        argument: shim_for(handle, name, caller).unwrap_or(handle),
    }
}

/// The shim's functions have no versions. So if the driver has the version, the shim's function is looked up by name
/// only.
extern "C" fn plan_versioned_symbol(handle: usize, name: *const u8, version: *const u8, caller: usize) -> Plan {
    type Look = unsafe extern "C" fn(usize, *const u8, *const u8) -> usize;
    look_again(handle);
    let function = real(Function::VersionedSymbol);
    let plan = own_for(handle, name)
        .map(|own| (given as *const () as usize, own))
        .or_else(|| shim_for(handle, name, caller).map(|shim| (real(Function::Symbol), shim)));
    if let Some((instead, argument)) = plan {
        // SAFETY: dlvsym has this type, and `absent` ignores its arguments. The arguments are the caller's.
        let known = unsafe { core::mem::transmute::<usize, Look>(function)(handle, name, version) };
        if known != 0 {
            return Plan {
                function: instead,
                argument,
            };
        }
    }
    Plan {
        function,
        argument: handle,
    }
}

/// Redirects the slots of newly loaded objects, which may be used next. Not for the pseudo handles: allocators and
/// tracers look up their next definition by these, and may hold locks under which the loader's lock must not be taken.
fn look_again(handle: usize) {
    if !PSEUDO_HANDLES.contains(&handle) {
        bound::redirect_new();
    }
}

/// Returns our own function if `name` is looked up in the object to whose function ours would jump. Not for another
/// object: an interposer that is after this library in the chain and looks up the next one must not get the first.
fn own_for(handle: usize, name: *const u8) -> Option<usize> {
    // SAFETY: the caller passes a name, as dlsym demands.
    let name = unsafe { Text::new(name)? };
    let (function, own) = ours(name)?;
    if PSEUDO_HANDLES.contains(&handle) {
        return None;
    }
    // SAFETY: a handle is an open object's record, as dlsym demands; it reads the same fields.
    let map = unsafe { core::ptr::with_exposed_provenance::<LinkMap>(handle).as_ref()? };
    (map.object()?.function(name)? == function.find()?).then_some(own)
}

/// Returns the function that this library interposes under `name`, and our own. No table, because each entry would need
/// a relocation.
fn ours(name: Text) -> Option<(Function, usize)> {
    let is = |own| name.is(Text::literal(own));
    if is(c"dlopen") {
        Some((Function::Open, dlopen as *const () as usize))
    } else if is(c"dlmopen") {
        Some((Function::OpenInNamespace, dlmopen as *const () as usize))
    } else if is(c"dlsym") {
        Some((Function::Symbol, dlsym as *const () as usize))
    } else if is(c"dlvsym") {
        Some((Function::VersionedSymbol, dlvsym as *const () as usize))
    } else {
        None
    }
}

/// Returns the path to open instead of `file`, or `file` itself if it is no driver library or there is no shim.
fn path_for(file: *const u8, mode: c_int, caller: usize) -> usize {
    // SAFETY: the caller passes a path or null, as dlopen demands.
    let Some(path) = (unsafe { Text::new(file) }) else {
        return file.expose_provenance();
    };
    let asked_for_driver = name::is_driver_library(path) && !name::is_private(path);
    if !asked_for_driver || shim::may_pass(caller) {
        return file.expose_provenance();
    }
    // RTLD_NOLOAD only asks if it is loaded, so it must not load the shim.
    let shim = shim::find(mode & RTLD_NOLOAD == 0).and_then(LinkMap::name);
    shim.unwrap_or(path).pointer().expose_provenance()
}

/// Returns the shim's handle if `name` is looked up in a driver library that was opened all the same and the shim has
/// this function as well.
fn shim_for(handle: usize, name: *const u8, caller: usize) -> Option<usize> {
    // SAFETY: the caller passes a name, as dlsym demands.
    let name = unsafe { Text::new(name)? };
    if PSEUDO_HANDLES.contains(&handle) || !name::is_driver_function(name) {
        return None;
    }
    // SAFETY: a handle is an open object's record, as dlsym demands; it reads the same fields.
    let map = unsafe { core::ptr::with_exposed_provenance::<LinkMap>(handle).as_ref()? };
    let object = map.object()?;
    // By its DT_SONAME too, because an image may have a driver under another file name.
    let named = [map.name(), object.own_name()]
        .into_iter()
        .flatten()
        .any(name::is_driver_library);
    let driver = named && object.function(name).is_some();
    if !driver || shim::is_shim(&object) || shim::may_pass(caller) {
        return None;
    }
    let shim = shim::find(true)?;
    shim.object()?.function(name)?;
    Some(core::ptr::from_ref(shim).expose_provenance())
}
