//! Memory that was exported by a descriptor. It stays charged while any process has the descriptor.
//!
//! As NVIDIA documents it, such memory is freed when its handles, its mappings and all of its descriptors are gone. No
//! call reports that the last descriptor was closed. So the charge is kept with a watch ([`LastClose`]). Charges whose
//! descriptor is closed are released before a call is refused, when a program asks for sizes, and at each export,
//! release and unmapping of such memory.
//!
//! How it fails: memory whose descriptor cannot be watched stays charged until this process ends: too much, never too
//! little. An importer has a charge of its own, or a reference to this one, before the descriptor is closed.

use crate::os::last_close::LastClose;
use crate::os::spin::Spin;
use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

/// Anything that holds a charge until it is dropped.
pub type Keeps = Box<dyn Any + Send + Sync>;

/// The exported memory of one GPU.
#[derive(Default)]
pub struct Exported {
    list: Spin<Vec<(LastClose, Keeps)>>,
    /// True once something was exported.
    used: AtomicBool,
}

impl fmt::Debug for Exported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exported")
            .field("count", &self.list.lock().len())
            .finish()
    }
}

impl Exported {
    /// Keeps `memory` until the descriptor of `watch` is closed everywhere. None: until this process ends.
    pub fn keep(&self, watch: Option<LastClose>, memory: Keeps) {
        match watch {
            Some(watch) => {
                self.list.lock().push((watch, memory));
                self.used.store(true, Ordering::Release);
            }
            None => core::mem::forget(memory),
        }
    }

    /// Drops memory whose descriptors are all closed. Returns true if there was any.
    #[inline(always)]
    pub fn collect(&self) -> bool {
        self.used.load(Ordering::Acquire) && self.collect_closed()
    }

    #[cold]
    fn collect_closed(&self) -> bool {
        let mut gone = Vec::new();
        let mut list = self.list.lock();
        let mut index = 0;
        while let Some((watch, _)) = list.get(index) {
            if watch.is_closed() {
                gone.push(list.swap_remove(index));
            } else {
                index += 1;
            }
        }
        drop(list);
        // The charges are released when `gone` is dropped, without the lock.
        !gone.is_empty()
    }
}

#[cfg(all(test, not(miri)))] // The tests lock files.
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::sync::Arc;

    #[test]
    fn memory_is_kept_until_its_descriptor_is_closed() {
        let (exported, memory) = (Exported::default(), Arc::new(()));
        let files = [(); 2].map(|()| tempfile::tempfile().expect("a file"));
        for file in &files {
            exported.keep(LastClose::new(file.as_raw_fd()), Box::new(memory.clone()));
        }
        exported.keep(None, Box::new(memory.clone()));
        assert!(!exported.collect());
        let [one, two] = files;
        // A child of another test has copies of the descriptor until it execs.
        let collect = || {
            while !exported.collect() {
                std::thread::yield_now();
            }
        };
        drop(one);
        collect();
        assert_eq!(Arc::strong_count(&memory), 3);
        drop(two);
        collect();
        assert!(!exported.collect());
        assert_eq!(Arc::strong_count(&memory), 2, "what cannot be watched stays");
    }
}
