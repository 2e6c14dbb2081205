//! Arguments from C and results to C. Values of these types come only from C callers. By the contract of cuda.h and
//! nvml.h a pointer is null or valid for what the function documents. All such pointers are dereferenced here.

#![allow(unsafe_code)] // Reading and writing through callers' pointers.

use std::ffi::{CStr, c_char};

/// A CUresult or nvmlReturn_t other than success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code(pub i32);
pub type Res = Result<(), Code>;

/// A pointer to which a result is written. NULL is the error code for a null pointer.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Out<T, const NULL: i32>(*mut T);

/// A value, or the first of several, to read.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct In<T, const NULL: i32>(*const T);

/// A C string.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Text<const NULL: i32>(*const c_char);

impl<T: Copy, const NULL: i32> Out<T, NULL> {
    /// Returns a null pointer: the caller does not want this result.
    pub fn none() -> Self {
        Self(std::ptr::null_mut())
    }

    pub fn given(self) -> bool {
        !self.0.is_null()
    }

    pub fn set(self, value: T) -> Res {
        if self.0.is_null() {
            return Err(Code(NULL));
        }
        // SAFETY: not null, so valid (see the module); unaligned because C clients pack as they like.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Returns a pointer to another type, `offset` bytes further on in the same structure.
    pub fn inside<U>(self, offset: usize) -> Out<U, NULL> {
        if self.0.is_null() {
            return Out(std::ptr::null_mut());
        }
        Out(self.0.cast::<u8>().wrapping_add(offset).cast())
    }

    /// Sets a result that the caller may not want.
    pub fn offer(self, value: T) {
        let _ = self.set(value);
    }

    pub fn get(self) -> Result<T, Code> {
        In::<T, NULL>(self.0.cast_const()).get()
    }

    /// Reads `count` elements that the caller placed here.
    pub fn read(self, count: usize) -> Result<Vec<T>, Code> {
        (0..count)
            .map(|index| In::<T, NULL>(self.0.cast_const()).at(index))
            .collect()
    }

    /// Writes all of `values`; the caller promised room for as many.
    pub fn fill(self, values: &[T]) -> Res {
        if self.0.is_null() && !values.is_empty() {
            return Err(Code(NULL));
        }
        for (index, value) in values.iter().enumerate() {
            // SAFETY: the caller promised room for `values.len()` elements.
            unsafe { self.0.add(index).write_unaligned(*value) };
        }
        Ok(())
    }
}

impl<const NULL: i32> Out<u64, NULL> {
    /// Returns the same pointer as a pointer to an int.
    pub fn narrow(self) -> Out<i32, NULL> {
        Out(self.0.cast())
    }
}

impl<const NULL: i32> Out<u8, NULL> {
    /// Writes text and its NUL, cut at `room`.
    pub fn text(self, text: &str, room: i32) -> Res {
        let room = usize::try_from(room).ok().filter(|room| *room > 0).ok_or(Code(NULL))?;
        let mut bytes = text.as_bytes()[..text.len().min(room - 1)].to_vec();
        bytes.push(0);
        self.fill(&bytes)
    }
}

impl<T: Copy, const NULL: i32> In<T, NULL> {
    pub fn none() -> Self {
        Self(std::ptr::null())
    }

    pub fn given(self) -> bool {
        !self.0.is_null()
    }

    /// Returns a pointer to another type, `offset` bytes further on in the same structure.
    pub fn inside<U>(self, offset: usize) -> In<U, NULL> {
        if self.0.is_null() {
            return In(std::ptr::null());
        }
        In(self.0.cast::<u8>().wrapping_add(offset).cast())
    }

    pub fn get(self) -> Result<T, Code> {
        self.at(0)
    }

    /// Returns element `index`. The caller has promised more than `index` elements.
    pub fn at(self, index: usize) -> Result<T, Code> {
        if self.0.is_null() {
            return Err(Code(NULL));
        }
        // SAFETY: not null, so valid for what the function says it reads.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }
}

impl<const NULL: i32> Text<NULL> {
    /// Returns a pointer to the first bytes, for data that may or may not be text.
    pub fn bytes(self) -> In<[u8; 4], NULL> {
        In(self.0.cast())
    }

    pub fn get(self) -> Result<String, Code> {
        if self.0.is_null() {
            return Err(Code(NULL));
        }
        // SAFETY: not null, so a NUL-terminated string.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}

/// Exports functions under their C names. A body returns `Res`; the crate's `call` converts it to the code for C.
#[macro_export]
#[allow(
    clippy::crate_in_macro_def,
    reason = "`crate::call::call` is the using crate's own: each library has its rules"
)]
macro_rules! api {
    ($( $(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block )*) => { $(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        #[allow(unsafe_code, reason = "exported under its C name")]
        pub(crate) extern "C" fn $name($($arg: $type),*) -> i32 {
            crate::call::call(stringify!($name), move || -> $crate::c::Res { $body })
        }
    )* };
}
