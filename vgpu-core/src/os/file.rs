//! Files that are opened for a moment only, so that a program finds no descriptor of ours to close, inherit or write
//! to.
//!
//! How it fails: in a program that has closed its standard streams, open() would return one of their numbers, and the
//! next output would go into the ledger; so a low number is moved up at once. A fork between open and close would give
//! the child a descriptor that keeps a lock alive, so both happen under [`super::fork::guard`]. A program that has
//! changed its root or its mounts, or has no descriptor left, can no longer open the file: it can still charge memory,
//! but no longer reap; other processes reap. Another file with the same path is refused: nobody holds locks on it, so
//! every living neighbour would look dead. The same holds if a program closes all descriptors while one of ours is
//! open, and reuses its number: see [`Opened`].
#![allow(unsafe_code)] // libc calls on a descriptor of our own.

use super::fork::Guard;
use std::ffi::{CStr, CString};
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A file that was opened once and can be opened again. Another file with its path is refused.
#[derive(Debug)]
pub struct Known {
    path: PathBuf,
    identity: Identity,
}

/// Device and inode.
type Identity = (u64, u64);

/// A descriptor of ours, unless a thread of the program closes it or reuses its number.
///
/// The result of a system call is valid if [`Opened::check`] succeeds afterwards: all our opens are made under the
/// guard, so while the guard is held a lost number does not become ours again.
#[derive(Debug)]
pub struct Opened {
    file: ManuallyDrop<OwnedFd>,
    identity: Identity,
}

impl Known {
    /// Opens `path` and remembers which file it is.
    ///
    /// # Errors
    /// Errors of open(2) and fstat(2).
    pub fn new(path: &Path, _guard: &Guard) -> io::Result<(Self, Opened)> {
        let opened = Opened::of(open(path)?)?;
        let known = Self {
            path: path.to_owned(),
            identity: opened.identity,
        };
        Ok((known, opened))
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the file system of the file.
    #[must_use]
    pub fn device(&self) -> u64 {
        self.identity.0
    }

    /// Opens the file again.
    ///
    /// # Errors
    /// Errors of open(2) and fstat(2), another file of that name, and a guard that is not held.
    pub fn open(&self, guard: &Guard) -> io::Result<Opened> {
        if !guard.is_held() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let file = open(&self.path)?;
        if identity(&file)? != self.identity {
            return Err(io::Error::new(io::ErrorKind::NotFound, "another file is in its place"));
        }
        Ok(Opened {
            file: ManuallyDrop::new(file),
            identity: self.identity,
        })
    }
}

impl Opened {
    fn of(file: OwnedFd) -> io::Result<Self> {
        let identity = identity(&file)?;
        Ok(Self {
            file: ManuallyDrop::new(file),
            identity,
        })
    }

    /// Opens the file of a descriptor once more, as a separate open file.
    ///
    /// # Errors
    /// Errors of open(2) and fstat(2).
    pub fn again(descriptor: RawFd) -> io::Result<Self> {
        // Not O_NOFOLLOW: this name is a link, which the kernel follows to the file itself.
        let path = CString::new(format!("/proc/self/fd/{descriptor}"))?;
        Self::of(open_as(&path, libc::O_RDWR | libc::O_CLOEXEC)?)
    }

    /// Succeeds if the descriptor still refers to the opened file.
    ///
    /// # Errors
    /// Errors of fstat(2), and another file.
    pub fn check(&self) -> io::Result<()> {
        if identity(&self.file)? == self.identity {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::NotFound, "the descriptor was closed"))
    }

    /// Closes it if it still refers to that file. Takes one fstat(2) less than [`Opened::check`] and a drop.
    ///
    /// # Errors
    /// As for [`Opened::check`].
    pub fn close(self) -> io::Result<()> {
        let mut this = ManuallyDrop::new(self);
        this.check()?;
        // SAFETY: dropped once, here: `this` itself is never dropped.
        unsafe { ManuallyDrop::drop(&mut this.file) };
        Ok(())
    }
}

impl Deref for Opened {
    type Target = OwnedFd;
    fn deref(&self) -> &OwnedFd {
        &self.file
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if self.check().is_ok() {
            // SAFETY: dropped once, here. A number that is the program's by now is left alone.
            unsafe { ManuallyDrop::drop(&mut self.file) };
        }
    }
}

fn identity(file: &OwnedFd) -> io::Result<Identity> {
    let status = status(file.as_raw_fd())?;
    Ok((status.st_dev, status.st_ino))
}

/// Returns device and inode of a descriptor's file if it is a regular file without a name: no other process can open it
/// by a path.
#[must_use]
pub fn nameless(descriptor: RawFd) -> Option<(u64, u64)> {
    let stat = status(descriptor).ok()?;
    (stat.st_mode & libc::S_IFMT == libc::S_IFREG && stat.st_nlink == 0).then_some((stat.st_dev, stat.st_ino))
}

/// Opens `path`, read and write, as a descriptor above the standard streams.
///
/// # Errors
/// Errors of open(2).
pub fn open(path: &Path) -> io::Result<OwnedFd> {
    let flags = libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    open_as(&CString::new(path.as_os_str().as_bytes())?, flags)
}

fn open_as(path: &CStr, flags: libc::c_int) -> io::Result<OwnedFd> {
    /// Mode of a file that is created.
    const OWNER_ONLY: libc::c_uint = 0o600;
    // SAFETY: `path` is a C string.
    let raw = unsafe { libc::open(path.as_ptr(), flags, OWNER_ONLY) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    let file = unsafe { OwnedFd::from_raw_fd(raw) };
    if raw > libc::STDERR_FILENO {
        return Ok(file);
    }
    // SAFETY: `file` is open; the answer is a new descriptor.
    let higher = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, libc::STDERR_FILENO + 1) };
    if higher < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(higher) })
}

/// Appends `bytes` to the file at `path` by one write, and creates the file if it is missing. The file never becomes
/// longer than `most` or than the process's file size limit: beyond that the kernel ends the process.
///
/// # Errors
/// Errors of open(2), fstat(2) and write(2), a file that is not a regular one or is full, and a write that was cut off.
pub fn append(path: &CStr, bytes: &[u8], most: u64) -> io::Result<()> {
    // O_NONBLOCK: a FIFO without a reader is an error, and not a wait.
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = open_as(path, flags | libc::O_CLOEXEC | libc::O_NOFOLLOW)?;
    let opened = Opened::of(file)?;
    if size(&opened)?.saturating_add(bytes.len() as u64) > most.min(longest_file()) {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    // SAFETY: pointer and length are those of `bytes`.
    let written = unsafe { libc::write(opened.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
    match usize::try_from(written) {
        Ok(written) if written == bytes.len() => Ok(()),
        Ok(_) => Err(io::ErrorKind::WriteZero.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Creates the file at `path` with `size` zero bytes, all allocated on disk, so that no store to a mapping of it fails
/// because the disk is full. An existing file is unlinked and not changed: another process may have mapped it.
///
/// # Errors
/// Errors of unlink(2), open(2) and posix_fallocate(3), and a size above the process's limit.
pub fn create(path: &CStr, size: u64) -> io::Result<Opened> {
    if size > longest_file() {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    remove(path)?;
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    let file = open_as(path, flags)?;
    let size = libc::off_t::try_from(size).map_err(|_| io::ErrorKind::InvalidInput)?;
    let allocated = loop {
        // SAFETY: `file` is open.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, size) } {
            libc::EINTR => {}
            0 => break Ok(()),
            error => break Err(io::Error::from_raw_os_error(error)),
        }
    };
    if let Err(error) = allocated {
        // An empty file is of no use.
        let _ = remove(path);
        return Err(error);
    }
    Opened::of(file)
}

fn remove(path: &CStr) -> io::Result<()> {
    // SAFETY: `path` is a C string.
    if unsafe { libc::unlink(path.as_ptr()) } == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::NotFound => Ok(()),
        error => Err(error),
    }
}

/// Returns the size beyond which a write to a file ends the process, by SIGXFSZ.
fn longest_file() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is to be written.
    match unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } {
        0 => limit.rlim_cur,
        _ => u64::MAX,
    }
}

/// Size of a regular file.
///
/// # Errors
/// Errors of fstat(2), and another kind of file.
pub fn size(file: &OwnedFd) -> io::Result<u64> {
    let stat = status(file.as_raw_fd())?;
    if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(u64::try_from(stat.st_size).unwrap_or(0))
}

/// Returns the status of a descriptor's file.
///
/// # Errors
/// Errors of fstat(2).
pub fn status(descriptor: RawFd) -> io::Result<libc::stat> {
    // SAFETY: an all-zero stat is a value of its type.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is to be written; the descriptor may be anything.
    if unsafe { libc::fstat(descriptor, &mut stat) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(stat)
}

/// Takes the open file description's write lock on the byte at `offset`. Returns false if another one holds it.
///
/// # Errors
/// Errors of fcntl(2) other than a held lock.
pub fn try_lock(file: &OwnedFd, offset: usize) -> io::Result<bool> {
    try_lock_as(file, offset, libc::F_WRLCK)
}

/// Takes the read lock on the byte, which several files may have at once. Returns false if another has the write lock.
///
/// # Errors
/// As for [`try_lock`].
pub fn try_share(file: &OwnedFd, offset: usize) -> io::Result<bool> {
    try_lock_as(file, offset, libc::F_RDLCK)
}

/// Takes the read lock on the byte at `offset` for the open file of a descriptor that is not ours.
///
/// # Errors
/// Errors of fcntl(2).
pub fn share_of(descriptor: RawFd, offset: usize) -> io::Result<()> {
    let mut lock = byte(offset)?;
    lock.l_type = libc::F_RDLCK as libc::c_short;
    control(descriptor, libc::F_OFD_SETLK, &mut lock)
}

fn try_lock_as(file: &OwnedFd, offset: usize, kind: libc::c_int) -> io::Result<bool> {
    let mut lock = byte(offset)?;
    lock.l_type = kind as libc::c_short;
    match control(file.as_raw_fd(), libc::F_OFD_SETLK, &mut lock) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns true if another open file description holds a lock on the byte at `offset`.
///
/// # Errors
/// Errors of fcntl(2), and an unchanged flock: a seccomp filter may report success without making the call.
pub fn is_locked(file: &OwnedFd, offset: usize) -> io::Result<bool> {
    let mut lock = byte(offset)?;
    control(file.as_raw_fd(), libc::F_OFD_GETLK, &mut lock)?;
    match (i32::from(lock.l_type), lock.l_pid) {
        (libc::F_UNLCK, _) => Ok(false),
        // The kernel writes a PID here, or -1 for the lock of an open file description; never 0.
        (_, 0) => Err(no_effect()),
        _ => Ok(true),
    }
}

/// The remedy for [`no_descriptor`].
pub const MORE_FILES: &str = "raise the limit of open files (ulimit -n), or close files before the first call of CUDA";

/// Returns true if the process has no file descriptor left.
#[must_use]
pub fn no_descriptor(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EMFILE)
}

/// The error for a fcntl(2) that succeeds but does nothing.
pub fn no_effect() -> io::Error {
    io::Error::other("locks of fcntl have no effect: a seccomp filter answers in the kernel's place")
}

fn byte(offset: usize) -> io::Result<libc::flock> {
    // SAFETY: an all-zero flock is a value of its type.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
    lock.l_len = 1;
    Ok(lock)
}

fn control(file: RawFd, command: libc::c_int, lock: &mut libc::flock) -> io::Result<()> {
    loop {
        // SAFETY: the OFD commands read and write the flock that is given.
        if unsafe { libc::fcntl(file, command, std::ptr::from_mut(lock)) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
