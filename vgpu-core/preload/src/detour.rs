//! The plans of the four exported functions, and the constructor. Each export (`machine`) computes a plan, replaces one
//! argument by the planned one, and jumps to the planned function.
//!
//! It jumps, because a call would put this library's address where the loader expects the return address of its caller.
//! Everything that was put on the stack for the plan is removed before the jump.
//!
//! How it fails: if no real function exists, the exports return null, as when they fail.
#![allow(unsafe_code)] // The real functions; a section of its own.

use core::ffi::c_int;

use crate::{
    bound,
    caller::call_as,
    driver,
    loader::{Function, LinkMap},
    machine::entry_points,
    name::{self, Text},
    namespace, shim,
};

/// Returned in two registers.
#[repr(C)]
pub(crate) struct Plan {
    /// The address to jump to.
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

entry_points!();

/// The constructor: runs after the start-up objects are bound and before the program.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = bound::redirect_at_start;

pub(crate) extern "C" fn plan_open(file: *const u8, mode: c_int, caller: usize) -> Plan {
    bound::redirect_new();
    Plan {
        function: real(Function::Open),
        argument: path_for(file, mode, caller),
    }
}

pub(crate) extern "C" fn plan_open_in_namespace(file: *const u8, mode: c_int, caller: usize) -> Plan {
    bound::redirect_new();
    namespace::note_used();
    Plan {
        function: real(Function::OpenInNamespace),
        argument: path_for(file, mode, caller),
    }
}

pub(crate) extern "C" fn plan_symbol(handle: usize, name: *const u8, caller: usize) -> Plan {
    look_again(handle);
    plan_look_up(Function::Symbol, [handle, name.expose_provenance(), 0], caller)
}

pub(crate) extern "C" fn plan_versioned_symbol(
    handle: usize,
    name: *const u8,
    version: *const u8,
    caller: usize,
) -> Plan {
    look_again(handle);
    let arguments = [handle, name.expose_provenance(), version.expose_provenance()];
    plan_look_up(Function::VersionedSymbol, arguments, caller)
}

/// dlsym or dlvsym. If the real one finds a function of a driver, or one of libc that this library interposes, the
/// answer is the shim's or ours. Only the real function checks versions: the shim's functions and ours have none.
fn plan_look_up(function: Function, arguments: [usize; 3], caller: usize) -> Plan {
    let function = real(function);
    let [handle, name, _] = arguments;
    // SAFETY: the caller passes a name, as dlsym demands.
    let name = unsafe { Text::new(core::ptr::with_exposed_provenance(name)) };
    let instead = name.and_then(|name| {
        if name::is_driver_function(name) {
            shims_answer(name, function, arguments, caller)
        } else {
            own_answer(name, function, arguments)
        }
    });
    match instead {
        Some(answer) => Plan {
            function: given as *const () as usize,
            argument: answer,
        },
        None => Plan {
            function,
            argument: handle,
        },
    }
}

/// Redirects the slots of newly loaded objects, which may be used next. Not for the pseudo handles: allocators and
/// tracers look up their next definition by these, and may hold locks under which the loader's lock must not be taken.
fn look_again(handle: usize) {
    if !PSEUDO_HANDLES.contains(&handle) {
        bound::redirect_new();
        namespace::redirect(handle, in_other_namespaces);
    }
}

/// Returns our own function if the look-up of `name` would find the same real function that ours calls. Not for other
/// objects: an interposer that comes after this library in the chain and looks up the next definition must not get
/// ours.
fn own_answer(name: Text, look: usize, arguments: [usize; 3]) -> Option<usize> {
    let (function, own) = ours(name)?;
    let [handle, ..] = arguments;
    if PSEUDO_HANDLES.contains(&handle) {
        return None;
    }
    // SAFETY: a handle is an open object's record, as dlsym demands; it reads the same fields.
    let map = unsafe { core::ptr::with_exposed_provenance::<LinkMap>(handle).as_ref()? };
    if map.object()?.function(name)? != function.find()? {
        return None;
    }
    // SAFETY: the real function, with the caller's arguments. It knows the versions.
    (unsafe { call(look, arguments) } != 0).then_some(own)
}

/// Returns the shim's function if the real look-up finds a driver's; null if a shim is required but missing. The handle
/// does not show this: a look-up by the handle of the program or of a library that is linked with a driver, or by
/// RTLD_DEFAULT or RTLD_NEXT, finds a driver if one is in its scope.
fn shims_answer(name: Text, look: usize, arguments: [usize; 3], caller: usize) -> Option<usize> {
    let [handle, ..] = arguments;
    if shim::is_handle(handle) {
        return None;
    }
    let is_pseudo = PSEUDO_HANDLES.contains(&handle);
    if shim::is_caller(caller) {
        if !is_pseudo {
            driver::note_of_shim(handle);
        }
        return None;
    }
    if driver::is_caller(caller) {
        return None;
    }
    // SAFETY: the real function, with the caller's arguments.
    let found = unsafe {
        match is_pseudo {
            // A call from here searches another scope. That is better than no look-up.
            true => call_as(caller, look, arguments).unwrap_or_else(|| call(look, arguments)),
            false => call(look, arguments),
        }
    };
    if found == 0 || !driver::holds(found) {
        return None;
    }
    match shim::find(true) {
        Some(shim) => shim.object()?.function(name),
        None => shim::is_demanded().then_some(0),
    }
}

/// Calls the real dlsym or dlvsym.
///
/// # Safety
/// `look` is one of them or `absent`, and the arguments are valid for it.
unsafe fn call(look: usize, [handle, name, version]: [usize; 3]) -> usize {
    type Look = unsafe extern "C" fn(usize, usize, usize) -> usize;
    // SAFETY: dlvsym has this type; dlsym ignores the third argument, `absent` all.
    unsafe { core::mem::transmute::<usize, Look>(look)(handle, name, version) }
}

/// Returns the function that a plugin in another namespace calls under `name` instead of that of its libc.
fn in_other_namespaces(name: Text) -> Option<usize> {
    if name.is(Text::literal(c"dlerror")) {
        // dlerror must be that of the libc that made our calls, because their messages are there.
        return Function::Error.find();
    }
    ours(name).map(|(_, own)| own)
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

/// Returns the path to open instead of `file`, or `file` itself if it is no driver library or no shim is needed. If the
/// shim has to be there and cannot be opened, returns its path: the loader's message then names it and the reason.
fn path_for(file: *const u8, mode: c_int, caller: usize) -> usize {
    // SAFETY: the caller passes a path or null, as dlopen demands.
    let Some(path) = (unsafe { Text::new(file) }) else {
        return file.expose_provenance();
    };
    let asked_for_driver = name::is_driver_library(path) && !name::is_private(path) && !name::is_spelled_by_shim(path);
    if !asked_for_driver || shim::is_caller(caller) || driver::is_caller(caller) {
        return file.expose_provenance();
    }
    // RTLD_NOLOAD only asks if a library is loaded, so the shim must not be loaded for it.
    let load = mode & RTLD_NOLOAD == 0;
    let instead = match shim::find(load).and_then(LinkMap::name) {
        Some(shim) => shim,
        None if load && shim::is_demanded() => shim::SHIM_IN_CONTAINERS,
        None => path,
    };
    instead.pointer().expose_provenance()
}
