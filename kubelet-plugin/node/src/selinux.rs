//! Labels by which SELinux lets containers use files of the node. The container runtime does not relabel what CDI mounts.
//!
//! The types are those of the policy container-selinux. Failure modes: a node with another policy does not know them,
//! and a file system may have no labels. In both cases the kernel returns an error, and the caller reports it and
//! continues. `restorecon` on the node removes the labels, and the plugin's next start sets them again. Not tested on a
//! machine with SELinux.

use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::io;
use std::path::{Path, PathBuf};

/// Where the kernel's SELinux is mounted, if it has one.
const SELINUX: &str = "/sys/fs/selinux";
/// The attribute of a file that has its label.
const ATTRIBUTE: &str = "security.selinux";
/// Containers may read and write such files. Without categories, so that the containers of every pod may.
pub(crate) const WRITABLE: &CStr = c"system_u:object_r:container_file_t:s0";
/// Containers may read, map and execute such files, and not write them.
pub const READABLE: &CStr = c"system_u:object_r:container_ro_file_t:s0";
/// Types of files that containers may read and execute.
const READABLE_TYPES: [&str; 2] = ["container_ro_file_t", "container_file_t"];

/// Returns the label for mounts; None if the kernel has no SELinux, or it is off.
pub(crate) fn label_of_mounts() -> Option<&'static CStr> {
    is_on(Path::new(SELINUX)).then_some(WRITABLE)
}

fn is_on(selinux: &Path) -> bool {
    selinux.join("enforce").exists()
}

/// Lets containers read and execute these files, if the kernel has SELinux. Files that they may read already keep their labels,
/// which an administrator may have chosen. Stops at the first failure.
///
/// # Errors
/// The file, and why its label cannot be set.
pub fn let_containers_read(files: &[PathBuf]) -> Result<(), (PathBuf, io::Error)> {
    if is_on(Path::new(SELINUX)) {
        label(&Kernel, files)?;
    }
    Ok(())
}

/// Reads and writes labels.
trait Labels {
    fn get(&self, file: &Path) -> Result<String, Errno>;
    fn set(&self, file: &Path, label: &CStr) -> Result<(), Errno>;
}

fn label(labels: &impl Labels, files: &[PathBuf]) -> Result<(), (PathBuf, io::Error)> {
    for file in files {
        let is_readable = labels.get(file).is_ok_and(|label| {
            let of_file = label.split(':').nth(2);
            READABLE_TYPES
                .iter()
                .any(|of_containers| of_file == Some(of_containers))
        });
        if !is_readable {
            labels
                .set(file, READABLE)
                .map_err(|errno| (file.clone(), errno.into()))?;
        }
    }
    Ok(())
}

struct Kernel;

// === impl Kernel ===

impl Labels for Kernel {
    fn get(&self, file: &Path) -> Result<String, Errno> {
        let mut bytes = [0; 4096];
        let length = getxattr(file, ATTRIBUTE, &mut bytes)?;
        let label = CString::new(bytes[..length].split(|byte| *byte == 0).next().unwrap_or_default());
        Ok(label.unwrap_or_default().to_string_lossy().into_owned())
    }

    fn set(&self, file: &Path, label: &CStr) -> Result<(), Errno> {
        // With the final NUL, as chcon writes it.
        setxattr(file, ATTRIBUTE, label.to_bytes_with_nul(), XattrFlags::empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    /// Labels by file name. Knows the types of `policy` only.
    struct Fake {
        labels: RefCell<BTreeMap<PathBuf, String>>,
        policy: &'static str,
    }

    impl Labels for Fake {
        fn get(&self, file: &Path) -> Result<String, Errno> {
            self.labels.borrow().get(file).cloned().ok_or(Errno::NODATA)
        }

        fn set(&self, file: &Path, label: &CStr) -> Result<(), Errno> {
            let label = label.to_str().expect("text");
            if !label.contains(self.policy) {
                return Err(Errno::INVAL);
            }
            self.labels.borrow_mut().insert(file.to_owned(), label.to_owned());
            Ok(())
        }
    }

    #[test]
    fn only_files_that_containers_cannot_read_get_another_label() {
        let before = [
            ("store", "system_u:object_r:var_lib_t:s0"),
            ("mine", "system_u:object_r:container_file_t:s0:c1,c2"),
        ];
        let before = before.map(|(file, label)| (PathBuf::from(file), label.to_owned()));
        let fake = Fake {
            labels: RefCell::new(before.into()),
            policy: "container_ro_file_t",
        };
        label(&fake, &["store", "mine", "new"].map(PathBuf::from)).expect("set");
        let readable = READABLE.to_str().expect("text");
        let expected = [
            ("mine", "system_u:object_r:container_file_t:s0:c1,c2"),
            ("new", readable),
            ("store", readable),
        ];
        let labels = fake.labels.borrow();
        let labels: Vec<_> = labels
            .iter()
            .map(|(file, label)| (file.to_str().unwrap(), label.as_str()))
            .collect();
        assert_eq!(labels, expected);
    }

    #[test]
    fn a_policy_that_does_not_know_the_type_is_an_error_that_names_the_file() {
        let fake = Fake {
            labels: RefCell::default(),
            policy: "talos_t",
        };
        let (file, error) = label(&fake, &[PathBuf::from("store")]).expect_err("unknown");
        assert_eq!(
            (file, error.raw_os_error()),
            ("store".into(), Some(Errno::INVAL.raw_os_error()))
        );
    }

    #[test]
    fn a_kernel_has_selinux_if_its_folder_has_a_switch() {
        let selinux = tempfile::tempdir().expect("a folder");
        assert!(!is_on(selinux.path()));
        std::fs::write(selinux.path().join("enforce"), "0").expect("written");
        assert!(is_on(selinux.path()));
    }

    /// Without SELinux the kernel stores this attribute like any other. So this tests the calls, not the policy.
    #[test]
    fn the_kernel_gives_back_the_label_that_was_set() {
        let folder = tempfile::tempdir().expect("a folder");
        match Kernel.set(folder.path(), READABLE) {
            Ok(()) => assert_eq!(
                Kernel.get(folder.path()).as_deref(),
                Ok(READABLE.to_str().expect("text"))
            ),
            Err(errno) => vgpu_skip::skip(
                "the_kernel_gives_back_the_label_that_was_set",
                &format!("no label can be set here: {errno}"),
            ),
        }
    }
}
