//! Recognises a driver by its code: by functions that every libcuda and every libnvidia-ml exports. Names say little:
//! an image may have a driver under any file name and DT_SONAME, and a program may have a libcuda.so.7 of its own.
//!
//! The shim has all these functions too. It is known by its identity (`shim::is`), because exports can be imitated: a
//! driver with a few more symbols is not the shim.
//!
//! Only the driver in which the shim has looked up functions may call without us. Other objects that look like a driver
//! may be a program's own library, or a copy of a driver.
//!
//! How it fails: an interposer that exports these functions too is taken for a driver, so its callers get the shim. An
//! interposer that exports fewer functions, such as a tracer of single functions, keeps its place. A driver whose
//! symbol table was edited is not recognised. Outside of containers, a driver whose constructor looks up its own
//! functions gets the shim's, because the shim has not used that driver yet.
#![allow(unsafe_code)] // The loader's records, by pointer.

use core::{
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

use crate::{
    elf::Object,
    loader::{LinkMap, Report, object_at},
    name::{self, Text},
    shim,
};

/// Functions that programs do not define: cuGetExportTable and nvmlInternalGetExportTable have no documentation.
const CUDA: [Text; 3] = [
    Text::literal(c"cuInit"),
    Text::literal(c"cuDriverGetVersion"),
    Text::literal(c"cuGetExportTable"),
];
const NVML: [Text; 2] = [
    Text::literal(c"nvmlInit_v2"),
    Text::literal(c"nvmlInternalGetExportTable"),
];

/// The drivers in which the shim has looked up functions: libcuda and NVML. It never closes them.
static OF_SHIM: [AtomicPtr<LinkMap>; 2] = [const { AtomicPtr::new(ptr::null_mut()) }; 2];

/// Returns true if an object has the functions that only drivers and the shim have.
pub(crate) fn looks_like_driver(object: &Object) -> bool {
    object.has_all(&CUDA) || object.has_all(&NVML)
}

/// Returns true if an object is libcuda or libnvidia-ml, and not the shim.
pub(crate) fn is_driver(report: &Report) -> bool {
    report.object().is_some_and(|object| looks_like_driver(&object)) && !shim::is(report)
}

/// Returns true if the code at `address` is a driver's.
pub(crate) fn holds(address: usize) -> bool {
    let mut driver = false;
    object_at(address, &mut |report| driver = is_driver(report));
    driver
}

/// Notes that the shim looks up a function in the object of `handle`.
pub(crate) fn note_of_shim(handle: usize) {
    // Relaxed: it is harmless if two threads note the same object at once.
    if OF_SHIM
        .iter()
        .any(|known| known.load(Ordering::Relaxed).addr() == handle)
    {
        return;
    }
    let record = ptr::with_exposed_provenance_mut::<LinkMap>(handle);
    // SAFETY: a handle is an open object's record, as dlsym demands.
    let object = unsafe { record.as_ref() }.and_then(LinkMap::object);
    if object.is_some_and(|object| looks_like_driver(&object)) {
        let note = |place: &AtomicPtr<LinkMap>| {
            let first = place.compare_exchange(ptr::null_mut(), record, Ordering::Release, Ordering::Relaxed);
            first.is_ok()
        };
        OF_SHIM.iter().any(note);
    }
}

/// Returns true if an object is the driver that the shim uses, or another of the driver's files in the private folder.
/// These files may find each other.
pub(crate) fn is_of_shim(report: &Report) -> bool {
    let noted = |known: &AtomicPtr<LinkMap>| {
        // SAFETY: null, or a record of an object that the shim keeps open.
        let known = unsafe { known.load(Ordering::Acquire).as_ref() };
        known.is_some_and(|known| report.is_of(known))
    };
    report.name().is_some_and(name::is_private) || OF_SHIM.iter().any(noted)
}

/// Returns true if the code at `address` is of the driver that the shim uses.
pub(crate) fn is_caller(address: usize) -> bool {
    let mut of_shim = false;
    object_at(address, &mut |report| of_shim = is_of_shim(report));
    of_shim
}
