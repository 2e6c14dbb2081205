//! Failures that a profile injects into calls, counted for each process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};

use crate::lock;

use crate::profile::Fault;

/// The failures that one library injects. A call costs one load while there are none.
pub struct Faults {
    armed: AtomicBool,
    list: OnceLock<Vec<Fault>>,
    calls: Mutex<Option<HashMap<&'static str, u64>>>,
}

impl Faults {
    pub const fn none() -> Self {
        Self {
            armed: AtomicBool::new(false),
            list: OnceLock::new(),
            calls: Mutex::new(None),
        }
    }

    /// Starts to count calls and to inject these failures.
    pub fn arm(&self, faults: &[Fault]) {
        if !faults.is_empty() {
            self.list.get_or_init(|| faults.to_vec());
            self.armed.store(true, Ordering::Release);
        }
    }

    /// Returns the code with which this call of `name` has to fail. Profiles name a function with or without its
    /// version.
    #[inline]
    pub fn hit(&self, name: &'static str) -> Option<i32> {
        if self.armed.load(Ordering::Relaxed) {
            self.look_up(name)
        } else {
            None
        }
    }

    #[cold]
    fn look_up(&self, name: &'static str) -> Option<i32> {
        let base = name.rsplit_once("_v").map_or(name, |(base, _)| base);
        let fault = self
            .list
            .get()?
            .iter()
            .find(|fault| fault.function == name || fault.function == base)?;
        let mut calls = lock(&self.calls);
        let count = calls.get_or_insert_default().entry(name).or_default();
        *count += 1;
        fault.hits(*count).then_some(fault.code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_hits_its_function_alone() {
        let faults = Faults::none();
        assert_eq!(faults.hit("cuMemAlloc_v2"), None);
        faults.arm(&[Fault {
            function: "cuMemAlloc".into(),
            code: 2,
            after: 1,
            every: 1,
        }]);
        let codes: Vec<Option<i32>> = (0..3).map(|_| faults.hit("cuMemAlloc_v2")).collect();
        assert_eq!(codes, [None, Some(2), Some(2)]);
        assert_eq!(faults.hit("cuMemAllocAsync"), None);
    }
}
