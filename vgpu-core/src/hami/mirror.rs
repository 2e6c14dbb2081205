//! Writes HAMi's region file, so that HAMi's monitor still shows what a container uses.
//!
//! Each process writes the figures of all processes, from the ledgers. It reads only the file's size and first word,
//! and takes none of the file's locks. Each write leaves out processes that have died. The file is opened for each
//! write and never mapped, so truncating it crashes nobody.
//!
//! When: at once if the charges have changed by 1/[`PART`] of the limits, which a monitor would show; otherwise at most
//! every [`INTERVAL`]. There is no thread, so a smaller change is written by the next call that changes or reads
//! figures. After the last process has ended, its figures stay until the next process starts.
//!
//! How it fails: if two processes write at the same time, the file contains a mixture until the next write. If the file
//! cannot be written, one line on stderr says so; limits still hold.

use super::region::{self, Device};
use crate::os::spin::Word;
use crate::os::{coarse_millis, errno, file, stderr};
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Maximum age of figures that have changed only a little.
const INTERVAL: Duration = Duration::from_millis(500);
/// A change by 1/PART of the limits is written at once.
const PART: u64 = 64;

/// Writes the region file of one container.
#[derive(Debug)]
pub struct Mirror {
    path: PathBuf,
    devices: Vec<Device>,
    /// The sum of all limits.
    limit: u64,
    busy: Word,
    written: AtomicU64,
    charged: AtomicU64,
    told: AtomicBool,
    /// True once this process has written its limits.
    presented: AtomicBool,
}

/// Bytes used by each process, by place of the GPU. The key is PID namespace and PID.
pub type Processes = BTreeMap<(u64, u32), Vec<u64>>;

impl Mirror {
    #[must_use]
    pub fn new(path: &Path, devices: Vec<Device>) -> Self {
        let limit = devices
            .iter()
            .fold(0, |sum: u64, device| sum.saturating_add(device.limit));
        Self {
            path: path.to_owned(),
            devices,
            limit,
            busy: Word::new(),
            written: AtomicU64::new(0),
            charged: AtomicU64::new(0),
            told: AtomicBool::new(false),
            presented: AtomicBool::new(false),
        }
    }

    /// Writes the result of `processes` if a write is due. `charged` is the sum of all charges.
    pub fn refresh(&self, charged: u64, processes: impl FnOnce() -> Processes) {
        let changed = self.charged.load(Relaxed).abs_diff(charged);
        let age = u128::from(coarse_millis().saturating_sub(self.written.load(Relaxed)));
        if changed < (self.limit / PART).max(1) && age < INTERVAL.as_millis() {
            return;
        }
        self.write(charged, processes);
    }

    /// Writes now.
    pub fn write(&self, charged: u64, processes: impl FnOnce() -> Processes) {
        // Another thread of this process is writing. These figures are written by that thread or by the next call.
        if !self.busy.try_lock() {
            return;
        }
        let _kept = errno::keep();
        self.charged.store(charged, Relaxed);
        self.written.store(coarse_millis(), Relaxed);
        let outcome = self.put(&processes());
        self.busy.unlock();
        if let Err(error) = outcome
            && !self.told.swap(true, Relaxed)
        {
            stderr::say(&format!(
                "region file {} (CUDA_DEVICE_MEMORY_SHARED_CACHE): {error}; limits hold, HAMi's monitor does not see this process",
                self.path.display()
            ));
        }
    }

    fn put(&self, processes: &Processes) -> io::Result<()> {
        let raw = file::open(&self.path)?;
        let size = file::size(&raw)?;
        let file = std::fs::File::from(raw);
        let mut magic = [0; 4];
        if size == 0 {
            file.set_len(region::SIZE)?;
            file.write_all_at(&1_u64.to_le_bytes(), region::LAST_SEMAPHORE_AT)?;
        } else {
            file.read_exact_at(&mut magic, region::MAGIC_AT)?;
        }
        let magic = u32::from_le_bytes(magic);
        if size != 0 && !region::is_region(size, magic) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("no HAMi region of version 1.2 ({size} bytes)"),
            ));
        }
        let header = region::header(&self.devices);
        if magic != region::MAGIC {
            file.write_all_at(&header, region::HEADER_AT)?;
        } else if !self.presented.swap(true, Relaxed) {
            // Everything except the lock, which only its holder may write.
            file.write_all_at(
                &header[region::DEVICES_AT - region::HEADER_AT as usize..],
                region::DEVICES_AT as u64,
            )?;
        }
        let shown = processes.iter().take(region::MAX_PROCESSES);
        let count = u32::try_from(shown.len()).unwrap_or(0);
        for (slot, ((_, pid), used)) in shown.enumerate() {
            file.write_all_at(&region::process(*pid, used), region::process_at(slot))?;
        }
        file.write_all_at(&count.to_le_bytes(), region::PROCESS_COUNT_AT)?;
        if magic != region::MAGIC {
            file.write_all_at(&region::MAGIC.to_le_bytes(), region::MAGIC_AT)?;
        }
        Ok(())
    }
}

#[cfg(all(test, not(miri)))] // The tests use files.
mod tests {
    use super::*;
    use std::fs;

    fn mirror(path: &Path) -> Mirror {
        let device = Device {
            uuid: "GPU-1".into(),
            limit: 64 << 30,
            sm_limit: 30,
        };
        Mirror::new(path, vec![device])
    }

    fn processes(used: &[(u32, u64)]) -> Processes {
        used.iter().map(|(pid, used)| ((1, *pid), vec![*used])).collect()
    }

    fn word(bytes: &[u8], at: u64) -> u64 {
        let at = at as usize;
        u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
    }

    #[test]
    fn all_processes_are_written_and_the_dead_vanish() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.cache");
        fs::write(&path, b"").expect("a file");
        let mirror = mirror(&path);
        mirror.write(0, || processes(&[(7, 100), (9, 200)]));
        let bytes = fs::read(&path).expect("a region");
        assert_eq!(bytes.len() as u64, region::SIZE);
        assert_eq!(word(&bytes, 0) as u32, region::MAGIC);
        assert_eq!(word(&bytes, region::PROCESS_COUNT_AT) as u32, 2);
        assert_eq!(word(&bytes, region::process_at(1)), 9);
        assert_eq!(word(&bytes, region::process_at(1) + 40), 200);
        mirror.write(0, || processes(&[(9, 300)]));
        let bytes = fs::read(&path).expect("a region");
        assert_eq!(word(&bytes, region::PROCESS_COUNT_AT) as u32, 1);
        assert_eq!(
            [
                word(&bytes, region::process_at(0)),
                word(&bytes, region::process_at(0) + 40)
            ],
            [9, 300]
        );
    }

    #[test]
    fn what_the_monitor_writes_stays_and_a_held_lock_holds_nobody() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.cache");
        fs::write(&path, b"").expect("a file");
        mirror(&path).write(0, || processes(&[(7, 100)]));
        let file = fs::OpenOptions::new().write(true).open(&path).expect("a file");
        // A process was killed while it held HAMi's semaphore; the monitor has set its switches.
        file.write_all_at(&0_u64.to_le_bytes(), 24).expect("a lock");
        file.write_all_at(&[1; 12], region::PROCESS_COUNT_AT + 4)
            .expect("switches");
        mirror(&path).write(0, || processes(&[(7, 200)]));
        let bytes = fs::read(&path).expect("a region");
        assert_eq!(word(&bytes, region::process_at(0) + 40), 200);
        assert_eq!(word(&bytes, 24), 0);
        assert_eq!(bytes[region::PROCESS_COUNT_AT as usize + 4..][..12], [1; 12]);
    }

    #[test]
    fn another_file_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("thesis.txt");
        for content in [b"not a region".to_vec(), vec![1; region::SIZE as usize]] {
            fs::write(&path, &content).expect("a file");
            mirror(&path).write(0, || processes(&[(7, 100)]));
            assert!(fs::read(&path).expect("a file") == content);
        }
        mirror(folder.path()).write(0, || processes(&[]));
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        fs::write(&path, b"").expect("a file");
        mirror(&link).write(0, || processes(&[(7, 100)]));
        assert_eq!(fs::read(&path).expect("a file"), b"", "a link is not followed");
    }

    #[test]
    fn much_is_written_at_once_and_little_later() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.cache");
        fs::write(&path, b"").expect("a file");
        let mirror = mirror(&path);
        let seen = || word(&fs::read(&path).expect("a region"), region::process_at(0) + 40);
        mirror.write(0, || processes(&[(7, 0)]));
        mirror.refresh(1 << 20, || processes(&[(7, 1 << 20)]));
        assert_eq!(seen(), 0, "a part that no figure shows");
        mirror.refresh(2 << 30, || processes(&[(7, 2 << 30)]));
        assert_eq!(seen(), 2 << 30);
        mirror.written.store(0, Relaxed);
        mirror.refresh(3 << 20, || processes(&[(7, 3 << 20)]));
        assert_eq!(seen(), 3 << 20);
    }
}
