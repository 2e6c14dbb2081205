//! Each thread's stack of current contexts, independent of the type of a context.
//!
//! It can be used at any moment of a thread: also after its thread-local variables were destroyed, that is in static
//! destructors, in functions of atexit, and in destructors of pthread keys. So the thread-local variable is a pointer
//! without a destructor. A destructor of a pthread key frees the stack instead: if a later destructor of the thread
//! makes a new stack, pthread calls ours again (a few times; then it is leaked). The main thread's stack is never
//! freed.

#![allow(unsafe_code)] // A pointer to the stack, and pthread's keys.

use std::any::Any;
use std::cell::Cell;
use std::ffi::c_void;
use std::sync::OnceLock;

type Stack = Vec<&'static (dyn Any + Send + Sync)>;

thread_local! {
    static STACK: Cell<*mut Stack> = const { Cell::new(std::ptr::null_mut()) };
}

/// Runs `body` with the calling thread's stack. `body` must not call this function.
#[inline]
pub(crate) fn with<T>(body: impl FnOnce(&mut Stack) -> T) -> T {
    let mut stack = STACK.get();
    if stack.is_null() {
        stack = make();
    }
    // SAFETY: the thread's own box, which its key's destructor alone frees, and nobody else refers to it meanwhile.
    body(unsafe { &mut *stack })
}

#[cold]
fn make() -> *mut Stack {
    let stack = Box::into_raw(Box::default());
    STACK.set(stack);
    if let Some(key) = key() {
        // SAFETY: the key exists, and is never deleted.
        unsafe { libc::pthread_setspecific(key, stack.cast_const().cast()) };
    }
    stack
}

/// Returns the pthread key. None: there are no more keys, so the stacks of threads that end are leaked.
fn key() -> Option<libc::pthread_key_t> {
    static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();
    *KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: `key` is to be written; the library is never unloaded (-z nodelete), so the function stays.
        (unsafe { libc::pthread_key_create(&mut key, Some(free)) } == 0).then_some(key)
    })
}

extern "C" fn free(stack: *mut c_void) {
    STACK.set(std::ptr::null_mut());
    // SAFETY: `make` stored it for this thread, and nothing refers to it any more.
    drop(unsafe { Box::from_raw(stack.cast::<Stack>()) });
}
