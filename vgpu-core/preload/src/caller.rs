//! Calls a function of the loader so that the function sees a different caller than this library.
//!
//! dlsym derives the meaning of RTLD_DEFAULT and RTLD_NEXT from the object at its return address. To examine its answer
//! before the program gets it, this library has to call dlsym, which would then see this library as the caller. So the
//! call gets as its return address the end of a function (`machine::CodeEnd`) in the object of the real caller:
//!
//! ```text
//!  program ─► our dlsym ─► libc's dlsym ─► a function's end in the program ─► our dlsym ─► program
//! ```
//!
//! How it fails: if no such instructions are found (code that may not be read), there is no answer. A process with a
//! shadow stack would end at the `ret`; the loader turns those off if it loads a library that is not marked for them,
//! as this one is not.
#![allow(unsafe_code)] // A call of a function by its address.

use crate::loader::{object_at, objects};
use crate::machine::CodeEnd;

/// Calls `function` with `arguments` as if the code at `caller` had called it.
///
/// # Safety
/// `function` is a C function of three or fewer words that returns a word, and `arguments` are valid for it.
pub(crate) unsafe fn call_as(caller: usize, function: usize, arguments: [usize; 3]) -> Option<usize> {
    let end = end_in_object_of(caller)?;
    // SAFETY: as promised; the instructions are of an object that runs, so it stays.
    Some(unsafe { end.call(function, arguments) })
}

fn end_in_object_of(caller: usize) -> Option<CodeEnd> {
    let mut found = None;
    if !object_at(caller, &mut |report| found = report.code_end()) {
        // The code belongs to no object: dlsym takes it for the program's, which is the first in the list.
        objects(&mut |report| {
            found = report.code_end();
            true
        });
    }
    found
}
