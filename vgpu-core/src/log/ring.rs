//! The ring of the last calls, in a mapped file, so that it survives any end of the process.
//!
//! Each call takes the next number, which determines its entry, so threads need no lock. An entry is written when its
//! call begins, so a call that hangs is in the ring too.
//!
//! How it fails: a call that returns after [`CALLS`] later ones have begun finds another call in its entry, and its
//! result is dropped. If a newer call takes the entry between this check and the last store, the newer call shows a
//! wrong result. That needs two calls that are 4,096 calls and a few ns apart.

use crate::os::pinned::Mapping;
use crate::os::{file, monotonic_ns, thread_id, unix_ns};
use std::ffi::CString;
use std::io;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::fence;
use vgpu_abi::log::{CALLS, CALLS_AT, Call, PAGE, Page, RING_MAGIC, RING_SIZE, RUNNING, VERSION};

#[derive(Debug)]
pub(super) struct Ring(Mapping);

/// A call in the ring, until it ends.
#[derive(Debug)]
#[must_use]
pub struct Recorded {
    entry: &'static Call,
    number: u64,
    began: u64,
}

impl Ring {
    /// Creates the ring of this process beside `log`.
    pub(super) fn create(log: &str, pid: u32, names: &[u8]) -> io::Result<Self> {
        let path = CString::new(format!("{log}.{pid}.ring"))?;
        let opened = file::create(&path, RING_SIZE as u64)?;
        let ring = Self(Mapping::new(&opened, 0, RING_SIZE)?);
        opened.close()?;
        let names = &names[..names.len().min(CALLS_AT - PAGE)];
        // SAFETY: the mapping is as long as a ring, nobody else knows it yet, and `names` is shorter than the room for them.
        unsafe {
            let at = ring.0.start().cast::<u8>().add(PAGE);
            at.copy_from_nonoverlapping(std::ptr::NonNull::from(names).cast(), names.len());
        }
        let page = ring.page();
        page.version.store(VERSION, Relaxed);
        page.pid.store(u64::from(pid), Relaxed);
        page.monotonic.store(monotonic_ns(), Relaxed);
        page.unix.store(unix_ns(), Relaxed);
        page.names.store(names.len() as u64, Relaxed);
        page.magic.store(RING_MAGIC, Release);
        Ok(ring)
    }

    pub(super) fn page(&self) -> &Page {
        // SAFETY: the mapping begins with a page, aligned, all of whose words are atomic.
        unsafe { self.0.start().cast::<Page>().as_ref() }
    }

    pub(super) fn begin(&'static self, function: u32) -> Recorded {
        let number = self.page().begun.fetch_add(1, Relaxed) + 1;
        let place = (number - 1) as usize % CALLS;
        // SAFETY: behind CALLS_AT the mapping has CALLS entries, aligned, all of whose words are atomic.
        let entry = unsafe { self.0.start().byte_add(CALLS_AT).cast::<Call>().add(place).as_ref() };
        let began = monotonic_ns();
        entry.number.store(0, Relaxed);
        fence(Release);
        entry.began.store(began, Relaxed);
        entry.ns.store(RUNNING, Relaxed);
        entry.charged.store(0, Relaxed);
        entry.thread.store(thread_id(), Relaxed);
        entry.function.store(function, Relaxed);
        entry.result.store(0, Relaxed);
        entry.number.store(number, Release);
        Recorded { entry, number, began }
    }
}

impl Recorded {
    /// Records that the call returns. `charged`: the present charge of its shares.
    pub fn end(self, result: i32, charged: u64) {
        if self.entry.number.load(Acquire) != self.number {
            return;
        }
        let ns = monotonic_ns().saturating_sub(self.began).min(RUNNING - 1);
        self.entry.result.store(result, Relaxed);
        self.entry.charged.store(charged, Relaxed);
        self.entry.ns.store(ns, Release);
    }
}

#[cfg(all(test, not(miri)))] // The tests map files.
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    fn ring(folder: &tempfile::TempDir) -> (&'static Ring, impl Fn() -> vgpu_abi::log::Ring) {
        let log = folder.path().join("log");
        let ring = Ring::create(&log.to_string_lossy(), 7, b"cuInit\0cuMemAlloc_v2\0").expect("a ring");
        let path = folder.path().join("log.7.ring");
        let read = move || vgpu_abi::log::Ring::parse(&std::fs::read(&path).expect("a file")).expect("a ring");
        (Box::leak(Box::new(ring)), read)
    }

    #[test]
    fn the_last_calls_are_in_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let (ring, read) = ring(&folder);
        assert_eq!((read().pid, read().calls.len()), (7, 0));
        let outer = ring.begin(0);
        ring.begin(1).end(2, 4096);
        let calls = read().calls;
        assert_eq!((calls[0].function.as_str(), calls[0].end), ("cuInit", None));
        let end = calls[1].end.expect("it has returned");
        assert_eq!(
            (calls[1].function.as_str(), end.result, end.charged),
            ("cuMemAlloc_v2", 2, 4096)
        );
        for _ in 0..CALLS {
            ring.begin(1).end(0, 0);
        }
        outer.end(700, 700);
        let calls = read().calls;
        assert_eq!((calls.len(), read().begun), (CALLS, CALLS as u64 + 2));
        assert_eq!((calls[0].number, calls[CALLS - 1].number), (3, CALLS as u64 + 2));
        assert!(calls.iter().all(|call| call.end.is_some_and(|end| end.result == 0)));
    }

    #[test]
    fn a_second_ring_of_a_name_leaves_the_first_one_mapped() {
        let folder = tempfile::tempdir().expect("a folder");
        let (first, _) = ring(&folder);
        let (_second, read) = ring(&folder);
        first.begin(0).end(0, 0);
        assert_eq!(read().calls.len(), 0);
        // A link is not followed: it is replaced.
        let other = folder.path().join("other");
        std::fs::write(&other, "mine").expect("a file");
        let path = folder.path().join("log.7.ring");
        std::fs::remove_file(&path).expect("a ring");
        std::os::unix::fs::symlink(&other, &path).expect("a link");
        let name = CString::new(path.as_os_str().as_bytes()).expect("no zero");
        drop(file::create(&name, 64).expect("a file"));
        assert_eq!(std::fs::read(&other).expect("a file"), b"mine");
    }
}
