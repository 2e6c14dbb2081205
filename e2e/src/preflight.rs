//! Checks, before long builds start, that a cluster can be created on this machine, and names what is missing.
//!
//! ```text
//! probe.rs: tries as root what a cluster does (namespaces, mounts, cgroups), measures memory and disk ─► Facts
//! missing(Facts): one line each, with the missing right or size and how to get it ─► Nowhere, exit status 3
//! ```
//! Rights are tried, never guessed from signs of a container. Nothing is left behind: mounts are made in namespaces
//! that end with the probe, a cgroup folder is removed at once.
//!
//! How it fails: a probe that is killed between creating a cgroup folder and removing it leaves that empty folder,
//! named with its PID; the next probe removes folders of dead processes.

mod facts;
mod probe;

use std::fmt;
use std::path::Path;

use anyhow::Result;

use facts::{Disk, Facts, Failure, GI, Memory, Root, Step};
pub(crate) use probe::{as_root, in_namespaces, memory_limit};

/// Memory that a cluster needs; the build of Kubernetes needs half of it.
const MEMORY: u64 = 4 * GI;

/// The exit status if no cluster can be created.
pub const STATUS: u8 = 3;

/// No cluster can be created here, for these reasons.
#[derive(Debug, PartialEq, Eq)]
pub struct Nowhere(pub Vec<String>);

impl fmt::Display for Nowhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, reason) in self.0.iter().enumerate() {
            let end = if number == 0 { "" } else { "\n" };
            write!(f, "{end}no cluster can be made on this machine: {reason}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Nowhere {}

/// Fails with `Nowhere` if something is missing. If sudo would ask for a password and `may_ask` is false, root's
/// rights are assumed without a test. `program` is vgpu-e2e, which runs the probe.
pub fn check(program: &Path, may_ask: bool) -> Result<()> {
    let missing = missing(&probe::facts(program, may_ask)?);
    if missing.is_empty() {
        return Ok(());
    }
    Err(Nowhere(missing).into())
}

/// Returns a line for each missing thing.
fn missing(facts: &Facts) -> Vec<String> {
    let mut lines = Vec::new();
    match &facts.root {
        Root::NoSudo { user } => lines.push(format!(
            "user {user} is not root, and sudo is missing: run as root, or install sudo and allow it to this user"
        )),
        Root::Refused { user, said } => lines.push(format!(
            "user {user} is not root, and sudo does not help ({said}): run as root, or allow sudo to this user, \
             without a password where there is no terminal"
        )),
        Root::Tried(tried) => {
            let all = [&tried.namespaces, &tried.cgroups, &tried.kernel_log, &tried.state];
            let mut failures: Vec<&Failure> = all.into_iter().flatten().collect();
            if failures.first().is_some_and(|first| first.step == Step::Mount) {
                failures.truncate(1); // without the right to mount the rest fails as well
            }
            lines.extend(failures.into_iter().map(of_root));
        }
    }
    lines.extend(of_memory(&facts.memory));
    lines.extend(facts.disks.iter().filter_map(of_disk));
    lines
}

fn of_root(failure: &Failure) -> String {
    let said = &failure.said;
    match failure.step {
        Step::Mount => format!(
            "root has no right to make namespaces and mounts, CAP_SYS_ADMIN ({said}): run outside of the container, \
             or start it with --privileged"
        ),
        Step::Overlay => format!("the kernel mounts no overlayfs ({said}): load it with `modprobe overlay`"),
        Step::Bridge => format!(
            "no network bridge can be made, CAP_NET_ADMIN and the kernel's bridge ({said}): load it with \
             `modprobe bridge`, run outside of the container, or start it with --privileged"
        ),
        Step::Veth => format!(
            "no pair of network devices can be made, which pods are connected by ({said}): load it with \
             `modprobe veth`"
        ),
        Step::Forward => format!(
            "packets cannot be passed on between pods ({said}): run outside of the container, or start it with \
             --privileged"
        ),
        Step::NoCgroups => "no cgroup hierarchy is mounted under /sys/fs/cgroup: run outside of the container, or \
                            mount one, as systemd does"
            .to_owned(),
        Step::ReadOnlyCgroups => format!(
            "cgroups are mounted read-only ({said}): run outside of the container, or start it with --privileged"
        ),
        Step::MakeCgroup => format!(
            "root has no right to make cgroups ({said}): run outside of the container, or start it with --privileged"
        ),
        Step::BusyCgroup => format!(
            "the container's own processes lie in the root of its cgroups, which so cannot give controllers on \
             ({said}): run outside of the container, or move them to a child cgroup first"
        ),
        Step::KernelLog => format!(
            "kubelet needs to read the kernel's log ({said}): run outside of the container, or give it /dev/kmsg and \
             CAP_SYSLOG"
        ),
        Step::State => {
            format!("a cluster keeps its files there, and root cannot write them ({said}): make it writable")
        }
    }
}

fn of_memory(memory: &Memory) -> Option<String> {
    // The kernel reserves some memory that the machine's total does not show.
    let enough = if memory.limit.is_some() { MEMORY } else { MEMORY / 8 * 7 };
    if memory.bytes >= enough {
        return None;
    }
    let (has, give) = (gib(memory.bytes), gib(MEMORY));
    Some(match &memory.limit {
        Some(file) => format!(
            "{} allows {has} of memory, and {give} are needed: raise that limit",
            file.display()
        ),
        None => format!("the machine has {has} of memory, and {give} are needed: give it more"),
    })
}

fn of_disk(disk: &Disk) -> Option<String> {
    if disk.free >= disk.needed {
        return None;
    }
    let folders: Vec<String> = disk.folders.iter().map(|folder| folder.display().to_string()).collect();
    Some(format!(
        "{} are free on the disk of {}, and {} are needed: free some, or put them elsewhere (XDG_CACHE_HOME and \
         CARGO_TARGET_DIR name folders)",
        gib(disk.free),
        folders.join(", "),
        gib(disk.needed)
    ))
}

fn gib(bytes: u64) -> String {
    let tenths = bytes * 10 / GI;
    format!("{}.{} GiB", tenths / 10, tenths % 10).replace(".0 ", " ")
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::facts::Tried;
    use super::*;

    fn able() -> Facts {
        Facts {
            root: Root::Tried(Tried::default()),
            memory: Memory {
                bytes: 16 * GI,
                limit: None,
            },
            disks: vec![Disk {
                folders: vec!["/var/lib".into()],
                free: 100 * GI,
                needed: 8 * GI,
            }],
        }
    }

    fn failed(step: Step, said: &str) -> Option<Failure> {
        let said = said.to_owned();
        Some(Failure { step, said })
    }

    /// One line that names what is missing and what to do.
    fn only(facts: &Facts, wanted: &[&str]) {
        let lines = missing(facts);
        assert_eq!(lines.len(), 1, "{lines:?}");
        for word in wanted {
            assert!(lines[0].contains(word), "{word:?} in {}", lines[0]);
        }
        assert!(!lines[0].contains('\n'), "{}", lines[0]);
    }

    #[test]
    fn nothing_is_missing_on_an_able_machine() {
        assert_eq!(missing(&able()), [] as [String; 0]);
    }

    #[test]
    fn a_user_who_cannot_become_root_is_told_so() {
        let with = |root| Facts { root, ..able() };
        only(
            &with(Root::NoSudo { user: 1000 }),
            &["user 1000 is not root", "sudo is missing", "install sudo"],
        );
        let said = "sudo: a password is required".to_owned();
        only(
            &with(Root::Refused { user: 1000, said }),
            &["a password is required", "without a password", "terminal"],
        );
    }

    #[test]
    fn each_right_is_named() {
        let with = |tried| Facts {
            root: Root::Tried(tried),
            ..able()
        };
        for (step, wanted) in [
            (Step::Mount, "CAP_SYS_ADMIN"),
            (Step::Overlay, "modprobe overlay"),
            (Step::Bridge, "CAP_NET_ADMIN"),
            (Step::Veth, "modprobe veth"),
            (Step::Forward, "packets cannot be passed on"),
        ] {
            let namespaces = failed(step, "the answer");
            only(
                &with(Tried {
                    namespaces,
                    ..Tried::default()
                }),
                &[wanted, "the answer"],
            );
        }
        for (step, wanted) in [
            (Step::NoCgroups, "no cgroup hierarchy is mounted"),
            (Step::ReadOnlyCgroups, "mounted read-only (the answer)"),
            (Step::MakeCgroup, "no right to make cgroups (the answer)"),
            (Step::BusyCgroup, "cannot give controllers on (the answer)"),
        ] {
            let cgroups = failed(step, "the answer");
            only(
                &with(Tried {
                    cgroups,
                    ..Tried::default()
                }),
                &[wanted],
            );
        }
        let kernel_log = failed(Step::KernelLog, "the answer");
        only(
            &with(Tried {
                kernel_log,
                ..Tried::default()
            }),
            &["/dev/kmsg", "CAP_SYSLOG", "the answer"],
        );
        let state = failed(Step::State, "the answer");
        only(
            &with(Tried {
                state,
                ..Tried::default()
            }),
            &["root cannot write", "the answer"],
        );
    }

    #[test]
    fn what_follows_from_the_right_to_mount_is_left_out_and_the_rest_is_not() {
        let all = |step| Tried {
            namespaces: failed(step, "no"),
            cgroups: failed(Step::ReadOnlyCgroups, "no"),
            kernel_log: failed(Step::KernelLog, "no"),
            state: failed(Step::State, "no"),
        };
        let with = |tried| Facts {
            root: Root::Tried(tried),
            ..able()
        };
        only(&with(all(Step::Mount)), &["CAP_SYS_ADMIN"]);
        assert_eq!(missing(&with(all(Step::Overlay))).len(), 4);
    }

    #[test]
    fn memory_below_4_gib_is_too_little() {
        let with = |bytes, limit: Option<&str>| Facts {
            memory: Memory {
                bytes,
                limit: limit.map(PathBuf::from),
            },
            ..able()
        };
        only(
            &with(2 * GI, None),
            &["the machine has 2 GiB of memory", "4 GiB are needed"],
        );
        let file = "/sys/fs/cgroup/memory.max";
        only(
            &with(4 * GI - 1, Some(file)),
            &["/sys/fs/cgroup/memory.max allows 3.9 GiB", "raise that limit"],
        );
        assert!(missing(&with(4 * GI, Some(file))).is_empty());
        // A machine that is sold as 4 GiB.
        assert!(missing(&with(4 * GI - 400 * (1 << 20), None)).is_empty());
    }

    #[test]
    fn each_disk_that_is_too_full_is_named() {
        let mut facts = able();
        facts.disks[0].free = 8 * GI - 1;
        only(
            &facts,
            &["7.9 GiB are free on the disk of /var/lib", "8 GiB are needed"],
        );
        facts.disks.push(Disk {
            folders: vec!["/home/a".into(), "/home/b".into()],
            free: 0,
            needed: 6 * GI,
        });
        let lines = missing(&facts);
        assert!(
            lines.len() == 2 && lines[1].starts_with("0 GiB are free on the disk of /home/a, /home/b"),
            "{lines:?}"
        );
    }

    #[test]
    fn every_reason_is_a_line_of_its_own() {
        let error = Nowhere(vec!["a".to_owned(), "b".to_owned()]).to_string();
        assert_eq!(
            error,
            "no cluster can be made on this machine: a\nno cluster can be made on this machine: b"
        );
    }
}
