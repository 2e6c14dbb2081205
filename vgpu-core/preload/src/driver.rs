//! Recognises a driver by its code: by functions that every libcuda and every libnvidia-ml exports. Names say little:
//! an image may have a driver under any file name and DT_SONAME, and a program may have a libcuda.so.7 of its own.
//!
//! The shim is recognised in the same way: by names of libcuda, of its debugger interface and of NVML in one file.
//! Neither a driver nor a program with a `cuInit` of its own exports all three.
//!
//! How it fails: an interposer that exports these functions too is taken for a driver, so its callers get the shim. One
//! that exports fewer, as tracers of single functions do, keeps its place. A driver whose symbol table was edited is
//! not recognised.

use crate::{elf::Object, loader::object_at, name::Text};

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

const SHIM: [Text; 3] = [
    Text::literal(c"cuInit"),
    Text::literal(c"cudbgGetAPIVersion"),
    Text::literal(c"nvmlInit_v2"),
];

fn has(object: &Object, marks: &[Text]) -> bool {
    marks.iter().all(|mark| object.function(*mark).is_some())
}

/// Returns true if an object is the shim.
pub(crate) fn is_shim(object: &Object) -> bool {
    has(object, &SHIM)
}

/// Returns true if an object is libcuda or libnvidia-ml, and not the shim.
pub(crate) fn is_driver(object: &Object) -> bool {
    (has(object, &CUDA) || has(object, &NVML)) && !is_shim(object)
}

/// Returns true if the code at `address` is a driver's.
pub(crate) fn holds(address: usize) -> bool {
    let mut driver = false;
    object_at(address, &mut |report| {
        driver = report.object().is_some_and(|object| is_driver(&object));
    });
    driver
}
