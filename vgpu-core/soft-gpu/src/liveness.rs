//! Determines which processes are alive, and their PIDs in this PID namespace.
//!
//! Each process holds a flock(2) on a file of its own, `procs/<place>`. The lock belongs to the open file. A mapping of
//! the file keeps it open after the descriptor is closed, so the lock ends exactly with the process's address space:
//! closefrom() does not release it, and MADV_DONTFORK keeps it from children. The kernel places the mapping at a high
//! address. The kernel releases mappings from the highest address down, so this lock is released before anything that a
//! program mapped at a lower address.
//!
//! Observers try a shared lock, so that they never disturb each other. `/proc/locks` lists the holders in the PID
//! namespace of its reader and leaves out processes that the namespace cannot see, which is exactly what NVML shows.

#![allow(unsafe_code)] // flock, mmap and madvise have no safe wrapper in std.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

fn path(dir: &Path, place: usize) -> PathBuf {
    dir.join("procs").join(format!("{place:04}"))
}

/// Opens a file that all users may use, and creates it if it is missing. Never with O_CREAT on an existing file: in a
/// sticky folder the kernel refuses that for files of other users (fs.protected_regular).
pub(crate) fn open_shared(path: &Path) -> io::Result<File> {
    for _ in 0..100 {
        match OpenOptions::new().read(true).write(true).open(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            done => return done,
        }
        match OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o666)
            .open(path)
        {
            Ok(file) => {
                file.set_permissions(fs::Permissions::from_mode(0o666))?; // whatever the umask
                return Ok(file);
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

fn try_lock(file: &File, how: libc::c_int) -> io::Result<bool> {
    loop {
        // SAFETY: flock takes no pointers; the descriptor is open.
        if unsafe { libc::flock(file.as_raw_fd(), how | libc::LOCK_NB) } == 0 {
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EWOULDBLOCK) => return Ok(false),
            Some(libc::EINTR) => {}
            _ => return Err(error),
        }
    }
}

/// Claims a slot for this process until it ends. Returns false if another process has the slot, or an observer is
/// testing it at this moment.
pub fn take(dir: &Path, place: usize) -> io::Result<bool> {
    let file = open_shared(&path(dir, place))?;
    if !try_lock(&file, libc::LOCK_EX)? {
        return Ok(false);
    }
    // SAFETY: a new mapping at an address that the kernel chooses; nothing reads through it. It is never unmapped,
    // because it keeps the lock.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_NONE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the range is the mapping made above.
    if unsafe { libc::madvise(address, 4096, libc::MADV_DONTFORK) } != 0 {
        let error = io::Error::last_os_error();
        // SAFETY: as above; without MADV_DONTFORK the lock would outlive this process in its children.
        unsafe { libc::munmap(address, 4096) };
        return Err(error);
    }
    Ok(true)
}

/// Whether the process in a slot is alive. While a `Dead` exists, no process can claim the slot.
pub enum Pulse {
    Alive,
    Dead(#[allow(dead_code, reason = "its shared lock keeps the place from being taken")] File),
}

/// Tests whether the process in a slot is alive. If this cannot be tested (for example without a free descriptor), it
/// counts as alive, so that nothing is released. The same if the test used another file by mistake: a program that
/// closes all descriptors also closes this one, and another file may get its number.
pub fn pulse(dir: &Path, place: usize) -> Pulse {
    let path = path(dir, place);
    match File::open(&path) {
        Ok(file) => match try_lock(&file, libc::LOCK_SH) {
            Ok(true) if is_at(&file, &path) => Pulse::Dead(file),
            _ => Pulse::Alive,
        },
        Err(_) => Pulse::Alive,
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    let inode = |found: fs::Metadata| (found.dev(), found.ino());
    match (file.metadata(), fs::metadata(path)) {
        (Ok(held), Ok(there)) => inode(held) == inode(there),
        _ => false,
    }
}

/// How long to wait for the state folder's lock. Hundreds of processes may start at once on two cores.
pub(crate) const LOCK_WAIT: Duration = Duration::from_secs(30);
/// The first and the longest sleep of a waiter between two attempts; it doubles each time. Hundreds of waiters without
/// a pause would keep the holder from its CPU.
const NAPS: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(5)];

/// The state folder's lock: held for microseconds, released by the kernel if its holder dies.
pub struct Lock(File);

impl Lock {
    /// Waits for the lock. Returns an error if other processes hold it for the whole wait.
    pub fn take(dir: &Path) -> io::Result<Self> {
        Self::take_while(dir, || true)?
            .ok_or_else(|| io::Error::new(io::ErrorKind::TimedOut, "its file lock stays locked"))
    }

    /// The same, but stops waiting once `wanted` returns false: another process has then done the work, and this
    /// process need not delay the others.
    pub fn take_while(dir: &Path, wanted: impl Fn() -> bool) -> io::Result<Option<Self>> {
        let file = open_shared(&dir.join("lock"))?;
        let mut unwanted = false;
        let tried = || {
            unwanted = !wanted();
            Ok(unwanted || try_lock(&file, libc::LOCK_EX)?)
        };
        let done = wait(tried, std::thread::sleep)?;
        Ok((done && !unwanted).then_some(Self(file)))
    }
}

/// Calls `tried` until it returns true, and `sleep` in between. Returns false after [`LOCK_WAIT`] of sleep.
///
/// The sleeps are added up instead of reading a clock: if the process was stopped or the machine suspended, the clock
/// would be far ahead although there were hardly any attempts.
fn wait(mut tried: impl FnMut() -> io::Result<bool>, mut sleep: impl FnMut(Duration)) -> io::Result<bool> {
    let ([mut nap, longest], mut slept) = (NAPS, Duration::ZERO);
    while !tried()? {
        if slept >= LOCK_WAIT {
            return Ok(false);
        }
        sleep(nap);
        slept += nap;
        nap = (nap * 2).min(longest);
    }
    Ok(true)
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Explicit: otherwise a child that was forked meanwhile shares the open file and would keep the lock.
        // SAFETY: flock takes no pointers; the descriptor is open.
        unsafe { libc::flock(self.0.as_raw_fd(), libc::LOCK_UN) };
    }
}

/// The holders of write flocks in this PID namespace: (device, inode) to PID. None if /proc cannot be read.
pub struct Holders {
    known: Option<HashMap<(u64, u64), u32>>,
    /// How many more times the list may be read.
    more: u32,
}

impl Holders {
    pub fn read() -> Self {
        Self {
            known: Self::list(),
            more: 3,
        }
    }

    fn list() -> Option<HashMap<(u64, u64), u32>> {
        fs::read_to_string("/proc/locks").ok().map(|text| parse_locks(&text))
    }

    /// Returns the PID of the process in a slot; `own` is the PID that the process recorded itself. The kernel's list
    /// may miss locks while others change, so a process counts as invisible only if it is missing in several lists.
    pub fn pid(&mut self, dir: &Path, place: usize, own: u32) -> Option<u32> {
        let Some(known) = &mut self.known else { return Some(own) };
        let meta = fs::metadata(path(dir, place)).ok()?;
        let file = (meta.dev(), meta.ino());
        while !known.contains_key(&file) && self.more > 0 {
            self.more -= 1;
            known.extend(Self::list().into_iter().flatten());
        }
        known.get(&file).copied()
    }
}

/// Lines read `1: FLOCK  ADVISORY  WRITE 4711 fe:00:5333016 0 EOF`; a waiter has `->` after its number.
fn parse_locks(text: &str) -> HashMap<(u64, u64), u32> {
    text.lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [_, "FLOCK", _, "WRITE", pid, file, ..] = words[..] else {
                return None;
            };
            let mut parts = file.split(':');
            let major = u32::from_str_radix(parts.next()?, 16).ok()?;
            let minor = u32::from_str_radix(parts.next()?, 16).ok()?;
            let inode = parts.next()?.parse().ok()?;
            Some(((libc::makedev(major, minor), inode), pid.parse().ok()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The clock jumps far ahead during each sleep, as if the process was stopped. All attempts are made nevertheless.
    #[test]
    fn a_waiter_tries_as_often_as_its_patience_allows_whatever_the_clock_shows() {
        let (mut tries, mut slept) = (0_u32, Duration::ZERO);
        let tried = || {
            tries += 1;
            Ok(false)
        };
        assert!(!wait(tried, |nap| slept += nap).expect("no error"));
        assert!(slept >= LOCK_WAIT && slept < LOCK_WAIT + NAPS[1], "{slept:?}");
        assert!(tries > 6000, "{tries}");
        let mut left = 3;
        let tried = || {
            left -= 1;
            Ok(left == 0)
        };
        assert!(wait(tried, |_| ()).expect("no error"));
    }

    #[test]
    fn proc_locks_lines() {
        let text = "1: FLOCK  ADVISORY  WRITE 4711 fe:00:77 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 5 fe:00:77 0 EOF\n\
                    2: POSIX  ADVISORY  WRITE 12 fe:00:78 0 EOF\n3: FLOCK  ADVISORY  READ 13 fe:00:79 0 EOF\nnoise\n";
        let holders = parse_locks(text);
        assert_eq!(holders.len(), 1);
        assert_eq!(holders[&(libc::makedev(0xfe, 0), 77)], 4711);
    }
}
