//! Which shares were started in each container and each pod: a file for each pod. The hook of each claim runs alone and
//! knows its own claim, so this is where the sums come from.
//!
//! ```text
//! <records>/<pod UID>.pod      or <container's ID>.container, if it is in no pod
//!
//! vgpu-driver-limits 1
//! cgroup /kubepods/pod<UID>
//! share <claim UID> <share> <GPU UUID> <bytes> /kubepods/pod<UID>/<container>
//! ```
//!
//! A share stays until its pod's cgroup is gone: a pod's limit never goes down while it runs. The folder is locked while it
//! is used. Files are replaced whole.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};
use vgpu_abi::limits::TOLERANCE;
use vgpu_node::files;

use crate::{claim::Share, hierarchy::Leaf};

const HEADER: &str = "vgpu-driver-limits 1";
/// Room for some thousand shares.
const MAX_SIZE: usize = 1 << 20;

/// The folder, locked until this value is dropped.
#[derive(Debug)]
pub(crate) struct Records {
    folder: PathBuf,
    _lock: File,
}

/// What was started in a pod, or in a container without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// The pod's cgroup, or the container's.
    cgroup: String,
    /// Each share with the cgroup of the container that has it.
    shares: Vec<(String, Share)>,
}

/// The hard limit of a cgroup on a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) cgroup: String,
    pub(crate) gpu: String,
    pub(crate) bytes: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("--records {path}: {source}; it must be a folder of root's on the node", path = .path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{path}: {damage}; delete the pod, and then this file", path = .path.display())]
    Damaged { path: PathBuf, damage: Damage },
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    #[error("its first line is {0:?}, not {HEADER:?}: another release wrote it")]
    Version(String),
    #[error("its line {0:?} cannot be read")]
    Line(String),
}

impl Records {
    /// Waits until no other hook uses the folder. Creates it if it is missing.
    pub(crate) fn lock(folder: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Io {
            path: folder.to_path_buf(),
            source,
        };
        files::private_folder(folder).map_err(failed)?;
        let lock = File::open(folder).map_err(failed)?;
        rustix::io::retry_on_intr(|| flock(&lock, FlockOperation::LockExclusive))
            .map_err(|errno| failed(errno.into()))?;
        Ok(Self {
            folder: folder.to_path_buf(),
            _lock: lock,
        })
    }

    /// Removes the records whose cgroup is gone. What cannot be read or removed stays: it concerns other pods.
    pub(crate) fn remove_ended(&self, exists: impl Fn(&str) -> bool) {
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            // Of a hook that was killed: nobody else writes while this one has the lock.
            let is_left = entry.file_name().as_encoded_bytes().ends_with(b".new");
            let has_ended = is_left || Record::read(&entry.path()).is_ok_and(|record| !exists(&record.cgroup));
            if has_ended {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// Adds a container's shares to its pod's record, and writes that.
    pub(crate) fn add(&self, leaf: &Leaf, id: &str, shares: &[Share]) -> Result<Record, Error> {
        let (name, cgroup) = match &leaf.pod {
            Some(pod) => (format!("{}.pod", pod.uid), &pod.path),
            None => (format!("{id}.container"), &leaf.path),
        };
        let path = self.folder.join(name);
        let before = match Record::read(&path) {
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => None,
            read => Some(read?),
        };
        // Of a pod with the same UID elsewhere: a static pod that was made again with other resources.
        let before = before.filter(|record| record.cgroup == *cgroup);
        let mut record = before.unwrap_or_else(|| Record {
            cgroup: cgroup.clone(),
            shares: Vec::new(),
        });
        for share in shares {
            let is_it = |(of, known): &(String, Share)| {
                (of, &known.claim, &known.name) == (&leaf.path, &share.claim, &share.name)
            };
            record.shares.retain(|known| !is_it(known));
            record.shares.push((leaf.path.clone(), share.clone()));
        }
        files::replace(&path, record.render().as_bytes(), 0o600).map_err(|source| Error::Io { path, source })?;
        Ok(record)
    }
}

impl Record {
    fn read(path: &Path) -> Result<Self, Error> {
        let bytes = files::read_bounded(path, MAX_SIZE).map_err(|source| Error::Io {
            path: path.to_path_buf(),
            source,
        })?;
        Self::parse(&String::from_utf8_lossy(&bytes)).map_err(|damage| Error::Damaged {
            path: path.to_path_buf(),
            damage,
        })
    }

    fn render(&self) -> String {
        let mut text = format!("{HEADER}\ncgroup {}\n", self.cgroup);
        for (leaf, share) in &self.shares {
            let Share {
                claim,
                name,
                gpu,
                memory,
            } = share;
            // Writing to a String cannot fail.
            let _ = writeln!(text, "share {claim} {name} {gpu} {memory} {leaf}");
        }
        text
    }

    fn parse(text: &str) -> Result<Self, Damage> {
        let shortened = |line: &str| line.chars().take(64).collect();
        let mut lines = text.lines();
        let first = lines.next().unwrap_or_default();
        if first != HEADER {
            return Err(Damage::Version(shortened(first)));
        }
        let line = lines.next().unwrap_or_default();
        let cgroup = line.strip_prefix("cgroup ").filter(|path| path.starts_with('/'));
        let cgroup = cgroup.ok_or_else(|| Damage::Line(shortened(line)))?.to_owned();
        let shares = lines.map(|line| share(line).ok_or_else(|| Damage::Line(shortened(line))));
        Ok(Self {
            cgroup,
            shares: shares.collect::<Result<_, _>>()?,
        })
    }

    /// The limits that follow: of the container, the sum of its shares of a GPU; of its pod, the sum of all that were
    /// started in it. A share that several containers of a pod have is in the pod's sum once. The tolerance is granted once to a
    /// container, whose shares are judged together, and once for each share to a pod.
    pub(crate) fn limits(&self, leaf: &Leaf) -> Vec<Limit> {
        let own = self.sums(|of| of == leaf.path);
        let all = self.sums(|_| true);
        let limit = |cgroup: &str, gpu: &str, sum: &Sum, tolerances: u64| Limit {
            cgroup: cgroup.to_owned(),
            gpu: gpu.to_owned(),
            bytes: sum.bytes.saturating_add(tolerances.saturating_mul(TOLERANCE)),
        };
        // The pod first: it must not be in the way of the container.
        let of_pod = leaf.pod.iter().flat_map(|pod| {
            let gpus = all.iter().filter(|(gpu, _)| own.contains_key(*gpu));
            gpus.map(|(gpu, sum)| limit(&pod.path, gpu, sum, sum.shares))
        });
        of_pod
            .chain(own.iter().map(|(gpu, sum)| limit(&leaf.path, gpu, sum, 1)))
            .collect()
    }

    /// Adds up the distinct shares of each GPU that are in the containers that `wanted` accepts.
    fn sums(&self, wanted: impl Fn(&str) -> bool) -> BTreeMap<&str, Sum> {
        let mut seen = BTreeSet::new();
        let mut sums: BTreeMap<&str, Sum> = BTreeMap::new();
        for (_, share) in self.shares.iter().filter(|(of, _)| wanted(of)) {
            if seen.insert((&share.claim, &share.name)) {
                let sum = sums.entry(&share.gpu).or_default();
                sum.shares += 1;
                sum.bytes = sum.bytes.saturating_add(share.memory);
            }
        }
        sums
    }
}

#[derive(Default)]
struct Sum {
    shares: u64,
    bytes: u64,
}

fn share(line: &str) -> Option<(String, Share)> {
    let mut words = line.strip_prefix("share ")?.splitn(5, ' ');
    let mut word = || words.next().map(str::to_owned);
    let share = Share {
        claim: word()?,
        name: word()?,
        gpu: word()?,
        memory: word()?.parse().ok()?,
    };
    let leaf = word().filter(|leaf| leaf.starts_with('/'))?;
    Some((leaf, share))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hierarchy::Pod;

    const GIB: u64 = 1 << 30;

    fn leaf(name: &str) -> Leaf {
        Leaf {
            path: format!("/kubepods/pod1/{name}"),
            pod: Some(Pod {
                uid: "uid-1".into(),
                path: "/kubepods/pod1".into(),
            }),
        }
    }

    fn share(claim: &str, name: &str, gpu: &str, memory: u64) -> Share {
        Share {
            claim: claim.into(),
            name: name.into(),
            gpu: gpu.into(),
            memory,
        }
    }

    fn limit(cgroup: &str, gpu: &str, memory: u64, tolerances: u64) -> Limit {
        Limit {
            cgroup: cgroup.into(),
            gpu: gpu.into(),
            bytes: memory + tolerances * TOLERANCE,
        }
    }

    fn started(folder: &Path, leaf: &Leaf, shares: &[Share]) -> Vec<Limit> {
        let records = Records::lock(folder).expect("a folder");
        records.add(leaf, "c1", shares).expect("a record").limits(leaf)
    }

    #[test]
    fn a_pod_gets_what_was_started_in_it_and_each_container_its_claims() {
        let folder = tempfile::tempdir().expect("a folder");
        let (pod, one, two) = ("/kubepods/pod1", leaf("one"), leaf("two"));
        let a = share("a", "s", "GPU-1", 10 * GIB);
        let first = started(folder.path(), &one, std::slice::from_ref(&a));
        let expected = [limit(pod, "GPU-1", 10 * GIB, 1), limit(&one.path, "GPU-1", 10 * GIB, 1)];
        assert_eq!(first, expected);
        // Another container of the same claim.
        let second = started(folder.path(), &two, std::slice::from_ref(&a));
        let expected = [limit(pod, "GPU-1", 10 * GIB, 1), limit(&two.path, "GPU-1", 10 * GIB, 1)];
        assert_eq!(second, expected);
        // A second claim in the second container, with two shares of the GPU and one of another.
        let b = [
            share("b", "s", "GPU-1", 5 * GIB),
            share("b", "t", "GPU-1", GIB),
            share("b", "u", "GPU-2", 2 * GIB),
        ];
        let third = started(folder.path(), &two, &b);
        let expected = [
            limit(pod, "GPU-1", 16 * GIB, 3),
            limit(pod, "GPU-2", 2 * GIB, 1),
            limit(&two.path, "GPU-1", 16 * GIB, 1),
            limit(&two.path, "GPU-2", 2 * GIB, 1),
        ];
        assert_eq!(third, expected);
        // The first container again: it has its own claim alone.
        let again = started(folder.path(), &one, std::slice::from_ref(&a));
        let expected = [limit(pod, "GPU-1", 16 * GIB, 3), limit(&one.path, "GPU-1", 10 * GIB, 1)];
        assert_eq!(again, expected);
    }

    #[test]
    fn a_container_in_no_pod_has_its_own_limit_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let leaf = Leaf {
            path: "/machine.slice/libpod-c1.scope".into(),
            pod: None,
        };
        let found = started(folder.path(), &leaf, &[share("a", "s", "GPU-1", GIB)]);
        assert_eq!(found, [limit(&leaf.path, "GPU-1", GIB, 1)]);
        assert!(folder.path().join("c1.container").is_file());
    }

    #[test]
    fn records_of_ended_pods_are_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        started(folder.path(), &leaf("one"), &[share("a", "s", "GPU-1", GIB)]);
        let records = Records::lock(folder.path()).expect("a folder");
        fs::write(folder.path().join("uid-2.pod.new"), "half").expect("of a hook that was killed");
        records.remove_ended(|cgroup| cgroup == "/kubepods/pod1");
        assert!(folder.path().join("uid-1.pod").is_file());
        records.remove_ended(|_| false);
        assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 0);
    }

    #[test]
    fn a_pod_that_was_made_again_elsewhere_begins_anew() {
        let folder = tempfile::tempdir().expect("a folder");
        started(folder.path(), &leaf("one"), &[share("a", "s", "GPU-1", GIB)]);
        let mut moved = leaf("one");
        moved.pod.as_mut().expect("a pod").path = "/kubepods/burstable/pod1".into();
        let found = started(folder.path(), &moved, &[share("b", "s", "GPU-1", GIB)]);
        assert_eq!(found[0], limit("/kubepods/burstable/pod1", "GPU-1", GIB, 1));
    }

    #[test]
    fn sums_do_not_overflow() {
        let record = Record {
            cgroup: "/a".into(),
            shares: vec![
                ("/a/b".into(), share("a", "s", "GPU-1", u64::MAX)),
                ("/a/b".into(), share("b", "s", "GPU-1", 1)),
            ],
        };
        let leaf = Leaf {
            path: "/a/b".into(),
            pod: None,
        };
        assert_eq!(record.limits(&leaf)[0].bytes, u64::MAX);
    }

    #[test]
    fn a_record_reads_back_and_every_other_text_is_refused() {
        let record = Record {
            cgroup: "/kubepods/pod1".into(),
            shares: vec![("/kubepods/pod1/a b".into(), share("a", "s", "GPU-1", GIB))],
        };
        let text = record.render();
        assert_eq!(Record::parse(&text), Ok(record));
        for (text, expected) in [
            (String::new(), Damage::Version(String::new())),
            (
                text.replace(" 1\n", " 2\n"),
                Damage::Version("vgpu-driver-limits 2".into()),
            ),
            (
                text.replace("cgroup /", "cgroup "),
                Damage::Line("cgroup kubepods/pod1".into()),
            ),
            (format!("{HEADER}\n"), Damage::Line(String::new())),
            (
                format!("{HEADER}\ncgroup /a\nshare a s GPU-1 many /b\n"),
                Damage::Line("share a s GPU-1 many /b".into()),
            ),
            (
                format!("{HEADER}\ncgroup /a\nshare a s GPU-1 1\n"),
                Damage::Line("share a s GPU-1 1".into()),
            ),
            (format!("{HEADER}\ncgroup /a\n\n"), Damage::Line(String::new())),
        ] {
            assert_eq!(Record::parse(&text), Err(expected), "{text}");
        }
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("uid-1.pod"), "vgpu-driver-limits 2\n").expect("written");
        let records = Records::lock(folder.path()).expect("a folder");
        let error = records
            .add(&leaf("one"), "c1", &[])
            .expect_err("another release")
            .to_string();
        assert!(
            error.contains("uid-1.pod: ") && error.contains("another release"),
            "{error}"
        );
        records.remove_ended(|_| false);
        assert!(folder.path().join("uid-1.pod").is_file(), "not ours to remove");
    }

    #[test]
    fn any_record_reads_back_and_no_bytes_panic() {
        use proptest::prelude::*;
        let word = "[a-zA-Z0-9-]{1,40}";
        let one = ("/[a-z0-9./ -]{0,40}", word, word, word, any::<u64>());
        let shares = proptest::collection::vec(one, 0..5);
        proptest!(|(cgroup in "/[a-z0-9./ -]{0,40}", shares in shares, text in "(vgpu-driver-limits 1|cgroup|share|/|\n| |[0-9]{1,30}|.){0,30}")| {
            let share = |(leaf, claim, name, gpu, memory): (String, String, String, String, u64)| {
                (leaf, Share { claim, name, gpu, memory })
            };
            let record = Record { cgroup, shares: shares.into_iter().map(share).collect() };
            prop_assert_eq!(Record::parse(&record.render()), Ok(record));
            let _ = Record::parse(&text);
        });
    }
}
