//! Reads which mounts processes have, each mount namespace once: a share that a process has mounted is in use.
//!
//! How it fails:
//! - A process ends while it is read: it has no mounts.
//! - The first thread of a process has ended, or has moved to its own mount namespace: the process's other threads are
//!   read too, in the second case only if the caller wants that.
//! - A namespace that may not be read is an error.

use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};

/// A tenant may have as many mounts as the kernel allows it (100,000 by default).
const MOUNTS: usize = 200_000;

/// A line of /proc/<pid>/mountinfo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mount<'a> {
    pub id: &'a str,
    /// The file system, as `major:minor`.
    pub device: &'a str,
    /// The folder of the file system that is mounted.
    pub root: &'a str,
    pub at: &'a str,
}

/// The mount namespaces that were read, each with what the caller's `wanted` has found in it.
#[derive(Debug)]
pub struct Namespaces<K>(BTreeMap<PathBuf, BTreeSet<K>>);

// === impl Mount ===

impl<'a> Mount<'a> {
    #[must_use]
    pub fn parse(line: &'a str) -> Option<Self> {
        let mut fields = line.split(' ');
        Some(Self {
            id: fields.next()?,
            device: fields.nth(1)?,
            root: fields.next()?,
            at: fields.next()?,
        })
    }
}

// === impl Namespaces ===

impl<K> Default for Namespaces<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Clone + Ord> Namespaces<K> {
    /// Leaves out the namespace of the process in `folder`.
    pub fn leave_out(&mut self, folder: &Path) {
        if let Ok(name) = fs::read_link(folder.join("ns/mnt")) {
            self.0.insert(name, BTreeSet::new());
        }
    }

    /// Returns what `wanted` finds in the mounts of the process in `folder`; None if it has ended. `all_threads`: if
    /// the first thread has nothing, the others are read.
    ///
    /// # Errors
    /// A namespace may not be read.
    pub fn of_process(
        &mut self,
        folder: &Path,
        all_threads: bool,
        wanted: impl Fn(&Mount<'_>) -> Option<K>,
    ) -> io::Result<Option<BTreeSet<K>>> {
        let (mut own, has_ended) = match self.of_thread(folder, &wanted) {
            Ok(found) => (found, false),
            // Other threads of the process may still run.
            Err(error) if is_end(&error) => (BTreeSet::new(), true),
            Err(error) => return Err(error),
        };
        let mut lives = !has_ended;
        if has_ended || all_threads && own.is_empty() {
            for thread in numbered_folders(&folder.join("task")).unwrap_or_default() {
                match self.of_thread(&thread, &wanted) {
                    Ok(more) => {
                        own.extend(more);
                        lives = true;
                    }
                    Err(error) if is_end(&error) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(lives.then_some(own))
    }

    fn of_thread(&mut self, folder: &Path, wanted: impl Fn(&Mount<'_>) -> Option<K>) -> io::Result<BTreeSet<K>> {
        let name = fs::read_link(folder.join("ns/mnt"))?;
        if let Some(found) = self.0.get(&name) {
            return Ok(found.clone());
        }
        let mut found = BTreeSet::new();
        let lines = BufReader::new(File::open(folder.join("mountinfo"))?).split(b'\n');
        for line in lines.take(MOUNTS) {
            found.extend(Mount::parse(&String::from_utf8_lossy(&line?)).and_then(|mount| wanted(&mount)));
        }
        self.0.insert(name, found.clone());
        Ok(found)
    }
}

/// Returns true if the kernel's error says that the process or thread has ended.
fn is_end(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(code, Some(Errno::NOENT | Errno::SRCH | Errno::INVAL))
}

/// The folders in `folder` whose names are numbers: processes in /proc, threads in a `task`.
///
/// # Errors
/// It cannot be listed.
pub fn numbered_folders(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let is_number = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
        if name.to_str().is_some_and(is_number) {
            found.push(folder.join(name));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A thread or process with these mounts.
    fn process(folder: &Path, namespace: &str, roots: &[&str]) {
        fs::create_dir_all(folder.join("ns")).expect("a folder");
        symlink(namespace, folder.join("ns/mnt")).expect("a link");
        let lines = roots
            .iter()
            .map(|root| format!("36 35 0:5 {root} /at ro - tmpfs vgpu rw\n"));
        fs::write(folder.join("mountinfo"), lines.collect::<String>()).expect("written");
    }

    #[test]
    fn a_process_whose_first_thread_has_ended_has_the_mounts_of_the_others() {
        let proc = tempfile::tempdir().expect("a folder");
        let at = |pid: &str| proc.path().join(pid);
        process(&at("1"), "mnt:[1]", &["/a"]);
        process(&at("2/task/3"), "mnt:[2]", &["/b"]);
        process(&at("4"), "mnt:[4]", &[]);
        process(&at("4/task/5"), "mnt:[5]", &["/c"]);
        fs::create_dir_all(at("6/task")).expect("a folder");
        fs::create_dir_all(at("self")).expect("a folder");
        assert_eq!(numbered_folders(proc.path()).expect("listed").len(), 4);
        let mut namespaces = Namespaces::default();
        let mut of = |pid: &str, all_threads: bool| {
            let found = namespaces.of_process(&at(pid), all_threads, |mount| Some(mount.root.to_owned()));
            found
                .expect("read")
                .map(|roots| roots.into_iter().collect::<Vec<_>>().concat())
        };
        let known = [
            of("1", false),
            of("2", false),
            of("4", false),
            of("4", true),
            of("6", true),
        ];
        assert_eq!(
            known.each_ref().map(Option::as_deref),
            [Some("/a"), Some("/b"), Some(""), Some("/c"), None]
        );
        let mut others = Namespaces::default();
        others.leave_out(&at("1"));
        assert_eq!(
            others.of_process(&at("1"), false, |_| Some(())).expect("read"),
            Some(BTreeSet::new())
        );
        // Stands in for a namespace that may not be read: the error differs from that of an ended process.
        fs::create_dir_all(at("7/mountinfo")).expect("a folder");
        fs::create_dir_all(at("7/ns")).expect("a folder");
        symlink("mnt:[7]", at("7/ns/mnt")).expect("a link");
        assert!(others.of_process(&at("7"), false, |_| Some(())).is_err());
    }
}
