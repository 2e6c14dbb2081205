//! Libraries that were loaded while the process had no context. The driver takes no memory then; each later context may
//! load their code.
//!
//! How it fails: if a library is unloaded between a context's reservation and its creation, its memory stays charged
//! until that context is measured or destroyed.

use super::expected::Code;
use super::known_code::KnownCode;
use crate::os::spin::Spin;
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub struct Libraries(Spin<BTreeMap<usize, u64>>);

impl Libraries {
    /// Records a library that was loaded without a context.
    pub fn note(&self, handle: usize, code: &Code) {
        self.0.lock().insert(handle, code.bytes);
    }

    pub fn forget(&self, handle: usize) {
        self.0.lock().remove(&handle);
    }

    /// Returns the bytes to charge for the libraries when a context is created: the sizes in their files and, once, the
    /// size of unknown code.
    #[must_use]
    pub fn charge(&self) -> u64 {
        let libraries = self.0.lock();
        libraries
            .values()
            .copied()
            .fold(KnownCode::default(), KnownCode::with)
            .charge()
    }
}

#[cfg(test)]
mod tests {
    use super::super::known_code::UNKNOWN_CODE;
    use super::*;

    #[test]
    fn libraries_are_charged_together_until_they_are_unloaded() {
        let libraries = Libraries::default();
        let code = |bytes| Code {
            fingerprint: 1,
            bytes,
            is_known: false,
        };
        assert_eq!(libraries.charge(), 0);
        libraries.note(1, &code(0));
        libraries.note(2, &code(2 << 20));
        assert_eq!(libraries.charge(), UNKNOWN_CODE + (2 << 20));
        libraries.forget(2);
        libraries.forget(3);
        assert_eq!(libraries.charge(), UNKNOWN_CODE);
        libraries.forget(1);
        assert_eq!(libraries.charge(), 0);
    }
}
