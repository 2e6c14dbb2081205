//! Decides which library and function names are the driver's. Pure functions of NUL-terminated text.
#![allow(unsafe_code)] // Text comes from C as a pointer without a length.

/// Text that ends with a NUL, as in C.
#[derive(Clone, Copy)]
pub(crate) struct Text(*const u8);

impl Text {
    /// # Safety
    /// `pointer` is null, or points to text that ends with a NUL and outlives the value.
    pub(crate) unsafe fn new(pointer: *const u8) -> Option<Self> {
        (!pointer.is_null()).then_some(Self(pointer))
    }

    /// A constant; the type of `literal` guarantees the NUL.
    pub(crate) const fn literal(literal: &'static core::ffi::CStr) -> Self {
        Self(literal.as_ptr().cast())
    }

    /// A constant that ends with a NUL, for paths that are composed at compile time.
    pub(crate) const fn constant(text: &'static str) -> Self {
        match core::ffi::CStr::from_bytes_with_nul(text.as_bytes()) {
            Ok(text) => Self::literal(text),
            Err(_) => panic!("a text with one NUL, at its end"),
        }
    }

    pub(crate) fn pointer(self) -> *const u8 {
        self.0
    }

    pub(crate) fn bytes(self) -> impl Iterator<Item = u8> {
        let mut at = self.0;
        core::iter::from_fn(move || {
            // SAFETY: by `new`, text goes on up to its NUL, and `at` never moves past that.
            let byte = unsafe { *at };
            if byte == 0 {
                return None;
            }
            // SAFETY: `at` is not at the NUL yet, so one further is still inside the text.
            at = unsafe { at.add(1) };
            Some(byte)
        })
    }

    /// Returns the rest after `prefix`, or None if the text does not start with it.
    fn strip(self, prefix: &[u8]) -> Option<Self> {
        let mut bytes = self.bytes();
        for expected in prefix {
            if bytes.next() != Some(*expected) {
                return None;
            }
        }
        // SAFETY: all of `prefix` was found before the NUL.
        Some(Self(unsafe { self.0.add(prefix.len()) }))
    }

    fn first(self) -> u8 {
        self.bytes().next().unwrap_or(0)
    }

    /// Returns the part after the last slash.
    fn file(self) -> Self {
        let mut start = self;
        for (index, byte) in self.bytes().enumerate() {
            if byte == b'/' {
                // SAFETY: `index` is before the NUL, so `index + 1` is at most the NUL.
                start = Self(unsafe { self.0.add(index + 1) });
            }
        }
        start
    }

    /// Returns the length of the folder with its slash, or None if there is no slash.
    pub(crate) fn folder_len(self) -> Option<usize> {
        self.bytes()
            .enumerate()
            .filter(|(_, byte)| *byte == b'/')
            .last()
            .map(|(index, _)| index + 1)
    }

    /// Returns true if the last part of the path is `name`.
    pub(crate) fn is_file(self, name: Self) -> bool {
        self.file().is(name)
    }

    pub(crate) fn is(self, other: Self) -> bool {
        self.bytes().eq(other.bytes())
    }
}

/// The folder of the real driver in containers (docs/architecture.md).
const PRIVATE: &[u8] = b"/dev/vgpu/.driver/";
/// The beginning of paths as the shim spells them; the path means the same as with one slash. If its call comes to us
/// through another library's dlopen (a sanitizer's, linked into the program), we cannot see that the shim is the caller.
const SHIMS_SPELLING: &[u8] = b"///";

/// Returns true for a path or name of libcuda or libnvidia-ml, of any version.
pub(crate) fn is_driver_library(path: Text) -> bool {
    let file = path.file();
    let rest = file.strip(b"libcuda.so").or_else(|| file.strip(b"libnvidia-ml.so"));
    // Also libcuda.so.535.104.05, but neither libcuda.sock nor libcudart.so.
    rest.is_some_and(|rest| matches!(rest.first(), 0 | b'.'))
}

/// Returns true for a path of the real driver that only the shim opens. A program that opens it gets a handle of the driver,
/// but not its functions. The loader keeps a path as it was given, so a longer path below the folder may lead out of it.
pub(crate) fn is_private(path: Text) -> bool {
    let Some(file) = path.strip(PRIVATE) else { return false };
    let special = file.bytes().eq(*b".") || file.bytes().eq(*b"..");
    file.first() != 0 && !special && file.bytes().all(|byte| byte != b'/')
}

/// Returns true for a path as the shim spells it. This says nothing about the object that is opened.
pub(crate) fn is_spelled_by_shim(path: Text) -> bool {
    path.strip(SHIMS_SPELLING).is_some()
}

/// Returns true for a function of the driver API or of NVML. The prefix `cu` alone would match cuDNN and cuBLAS too.
pub(crate) fn is_driver_function(name: Text) -> bool {
    if let Some(rest) = name.strip(b"nvml").or_else(|| name.strip(b"cu")) {
        return rest.first().is_ascii_uppercase() || rest.strip(b"dbg").is_some();
    }
    false
}
