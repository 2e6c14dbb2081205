//! Libraries that were loaded while the process had no context. The driver takes nothing then; each context that is made
//! afterwards may load their code.
//!
//! How it fails: a library that is unloaded between a context's reservation and its creation stays reserved for until
//! that context is measured or gone.

use super::expected::Code;
use super::told::Told;
use crate::os::spin::Spin;
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub struct Libraries(Spin<BTreeMap<usize, u64>>);

impl Libraries {
    /// Notes a library that was loaded without a context.
    pub fn note(&self, handle: usize, code: &Code) {
        self.0.lock().insert(handle, code.bytes);
    }

    pub fn forget(&self, handle: usize) {
        self.0.lock().remove(&handle);
    }

    /// Returns what to charge for them with a new context: what their files tell and, once, as much as code of unknown
    /// size.
    #[must_use]
    pub fn charge(&self) -> u64 {
        let libraries = self.0.lock();
        libraries.values().copied().fold(Told::default(), Told::with).charge()
    }
}

#[cfg(test)]
mod tests {
    use super::super::told::UNKNOWN_CODE;
    use super::*;

    #[test]
    fn libraries_are_charged_together_until_they_are_unloaded() {
        let libraries = Libraries::default();
        let code = |bytes| Code {
            mark: 1,
            bytes,
            is_told: false,
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
