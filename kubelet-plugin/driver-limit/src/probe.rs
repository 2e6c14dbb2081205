//! Whether the driver limits cgroups on each GPU of this node, and who keeps the limits: by one that is made, limited and removed
//! again.
//!
//! How it fails:
//! - Killed in between, it leaves an empty cgroup, which the next probe removes. With the driver's own accounting, its limit
//!   stays in the driver too, for a cgroup without processes.
//! - The driver hangs for one GPU: that GPU has no answer, and the others are asked through another child. If the first one cannot
//!   be killed, it keeps the lock, so the others have no answer either. Nor have those whose turn comes after the end of the time.

use std::{fs, io, path::PathBuf};

use vgpu_node::driver_limit::{DriverLimit, Probed};

use crate::{
    apply::{self, Driver, NO_LIMIT},
    code::Code,
    hierarchy::{Hierarchy, Leaf},
    records::Limit,
};

/// The beginning of its cgroup's name; the rest is a PID.
const NAME: &str = "vgpu-probe-";
/// Bytes. Any GPU has more.
const LIMIT: u64 = 256 << 20;

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("{path}: cannot {action} a cgroup: {source}; the program must run as root of the node", path = .path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error(transparent)]
    Hierarchy(#[from] crate::hierarchy::Error),
    #[error(transparent)]
    Apply(#[from] apply::Error),
    #[error("GPU {gpu}: the limit of cgroup {cgroup} cannot be taken back: {code}; check the GPU with nvidia-smi on the node", cgroup = .cgroup.display())]
    Clear { gpu: String, cgroup: PathBuf, code: Code },
}

impl Error {
    /// Returns true if this does not say what the driver can do.
    fn is_no_answer(&self) -> bool {
        match self {
            Self::Apply(error) => error.is_no_answer(),
            Self::Clear { code, .. } => code.is_no_answer(),
            Self::Io { .. } | Self::Hierarchy(_) => false,
        }
    }
}

/// Sets and takes back a limit on each of these GPUs, in a new cgroup. `load` loads NVML, again after it has hung.
///
/// # Errors
/// It cannot be loaded at all.
pub(crate) fn probe<D: Driver, E: std::fmt::Display>(
    hierarchy: &Hierarchy,
    gpus: &[String],
    load: impl Fn() -> Result<D, E>,
) -> Result<Vec<Probed>, E> {
    remove_former(hierarchy);
    let mut driver = Ok(load()?);
    let mut answers = Vec::new();
    for gpu in gpus {
        // NVML is loaded again only for a further GPU. The old child ends first: it holds the lock that the new one takes.
        if matches!(
            answers.last(),
            Some(Probed {
                driver_limit: DriverLimit::Unknown(_),
                ..
            })
        ) && let Ok(former) = driver
        {
            drop(former);
            driver = load();
        }
        answers.push(Probed {
            gpu: gpu.clone(),
            driver_limit: match &driver {
                Ok(driver) => one(hierarchy, driver, gpu),
                Err(error) => DriverLimit::Unknown(error.to_string()),
            },
        });
    }
    Ok(answers)
}

fn one(hierarchy: &Hierarchy, driver: &impl Driver, gpu: &str) -> DriverLimit {
    let name = format!("{NAME}{}", std::process::id());
    // Without the PID, the same failure has the same words each time.
    let said = |error: &Error| error.to_string().replace(&name, NAME.trim_end_matches('-'));
    match in_cgroup(hierarchy, driver, gpu, &name) {
        Ok(found) => found,
        Err(error) if error.is_no_answer() => DriverLimit::Unknown(said(&error)),
        Err(error) => DriverLimit::None(said(&error)),
    }
}

fn in_cgroup(hierarchy: &Hierarchy, driver: &impl Driver, gpu: &str, name: &str) -> Result<DriverLimit, Error> {
    let leaf = Leaf {
        path: format!("/{name}"),
        pod: None,
    };
    let folder = hierarchy.folder(&leaf.path);
    let failed = |action| {
        let path = folder.clone();
        move |source| Error::Io { action, path, source }
    };
    fs::create_dir(&folder).map_err(failed("make"))?;
    let found = try_limit(hierarchy, driver, &leaf, gpu);
    fs::remove_dir(&folder).map_err(failed("remove"))?;
    found
}

fn try_limit(hierarchy: &Hierarchy, driver: &impl Driver, leaf: &Leaf, gpu: &str) -> Result<DriverLimit, Error> {
    hierarchy.enable_controllers(&leaf.path)?;
    let folder = hierarchy.folder(&leaf.path);
    let limit = Limit {
        cgroup: leaf.path.clone(),
        gpu: gpu.to_owned(),
        bytes: Some(LIMIT),
    };
    let applied = apply::apply(driver, &[limit], |cgroup| hierarchy.folder(cgroup));
    // The kernel's file has the limit only if the kernel keeps it.
    let in_kernel = fs::read_to_string(folder.join("dmem.max")).unwrap_or_default();
    let in_kernel = in_kernel.split_whitespace().any(|word| word == LIMIT.to_string());
    // Also after a failure: a limit that was set and not read back is still there.
    let cleared = driver.set(gpu, &folder, NO_LIMIT);
    applied?;
    cleared.map_err(|code| Error::Clear {
        gpu: gpu.to_owned(),
        cgroup: folder,
        code,
    })?;
    Ok(if in_kernel {
        DriverLimit::Dmem
    } else {
        DriverLimit::Misc
    })
}

/// Removes the cgroups of probes that were killed.
fn remove_former(hierarchy: &Hierarchy) {
    for entry in fs::read_dir(hierarchy.folder("/")).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(NAME));
        if pid.is_some_and(|pid| !hierarchy.has_process(pid)) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::Found;
    use std::{cell::RefCell, path::Path};

    /// One process that asks the driver. Once a question has no answer, none has.
    struct Child<'a> {
        broken: RefCell<Option<Code>>,
        limits: RefCell<Option<u64>>,
        questions: &'a RefCell<Vec<String>>,
    }

    impl Child<'_> {
        fn ask(&self, gpu: &str) -> Result<(), Code> {
            self.questions.borrow_mut().push(gpu.to_owned());
            let mut broken = self.broken.borrow_mut();
            match gpu {
                "hangs" => *broken = Some(Code::HANGS),
                "crashes" => *broken = Some(Code::ENDED),
                "lost" if broken.is_none() => return Err(Code(15)),
                _ => {}
            }
            broken.map_or(Ok(()), Err)
        }
    }

    impl Driver for Child<'_> {
        fn is_mig(&self, gpu: &str) -> Result<bool, Code> {
            self.ask(gpu).map(|()| false)
        }

        fn total(&self, gpu: &str) -> Result<u64, Code> {
            self.ask(gpu).map(|()| 80 << 30)
        }

        fn set(&self, gpu: &str, _: &Path, hard: u64) -> Result<(), Code> {
            self.ask(gpu)?;
            *self.limits.borrow_mut() = Some(hard);
            Ok(())
        }

        fn get(&self, gpu: &str, _: &Path) -> Result<Found, Code> {
            self.ask(gpu)?;
            let hard = self.limits.borrow().unwrap_or(NO_LIMIT);
            Ok(Found { soft: 0, hard, used: 0 })
        }

        fn processes(&self, _: &str) -> Result<Vec<u32>, Code> {
            Ok(Vec::new())
        }
    }

    /// The answer for each GPU, and how many processes asked. `children`: how many can be started.
    fn asked(gpus: &[&str], children: usize) -> (Result<Vec<String>, String>, usize) {
        let dir = tempfile::tempdir().expect("a folder");
        let root = dir.path().join("cgroup");
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
            fs::write(path, text).expect("a file");
        };
        put(
            "proc/self/mountinfo",
            &format!("24 1 0:21 / {} rw - cgroup2 cgroup2 rw\n", root.display()),
        );
        put("proc/self/cgroup", "0::/system.slice/containerd.service\n");
        put("cgroup/cgroup.controllers", "misc\n");
        put("cgroup/cgroup.subtree_control", "misc\n");
        let hierarchy = Hierarchy::read(&dir.path().join("proc"), &root).expect("a hierarchy");
        let (questions, started) = (RefCell::new(Vec::new()), RefCell::new(0));
        let load = || {
            *started.borrow_mut() += 1;
            match *started.borrow() > children {
                true => Err("an earlier one has the lock"),
                false => Ok(Child {
                    broken: RefCell::new(None),
                    limits: RefCell::new(None),
                    questions: &questions,
                }),
            }
        };
        let gpus: Vec<String> = gpus.iter().map(|&gpu| gpu.to_owned()).collect();
        let answers = probe(&hierarchy, &gpus, load).map_err(str::to_owned);
        let answers = answers.map(|answers| {
            assert!(answers.iter().map(|answer| &answer.gpu).eq(&gpus));
            let words = answers.into_iter().map(|answer| match answer.driver_limit {
                DriverLimit::Unknown(why) => format!("unknown: {why}"),
                DriverLimit::None(why) => format!("none: {why}"),
                kept => kept.name().to_owned(),
            });
            words.collect()
        });
        let left = fs::read_dir(&root)
            .expect("listed")
            .filter(|entry| entry.as_ref().is_ok_and(|entry| entry.path().is_dir()));
        assert_eq!(left.count(), 0, "no cgroup is left");
        (answers, started.into_inner())
    }

    #[test]
    fn a_gpu_that_hangs_takes_no_answer_from_the_others() {
        let (answers, children) = asked(&["a", "hangs", "b", "crashes", "lost", "c"], 9);
        let answers = answers.expect("answers");
        for (at, begins) in [
            (0, "misc"),
            (2, "misc"),
            (4, "unknown: GPU lost: NVML_ERROR_GPU_IS_LOST"),
            (5, "misc"),
        ] {
            assert!(answers[at].starts_with(begins), "{answers:?}");
        }
        assert!(
            answers[1].starts_with("unknown: ") && answers[1].contains("NVML does not answer"),
            "{answers:?}"
        );
        assert!(
            answers[3].starts_with("unknown: ") && answers[3].contains("has ended"),
            "{answers:?}"
        );
        assert_eq!(children, 4, "one more after each that did not answer");
        assert_eq!(asked(&["a", "hangs"], 9).1, 1, "there is nobody left to ask");
    }

    #[test]
    fn a_child_that_cannot_be_killed_leaves_the_others_without_an_answer_and_not_with_a_refusal() {
        let (answers, children) = asked(&["a", "hangs", "b", "c"], 1);
        let answers = answers.expect("answers");
        let unknown = "unknown: an earlier one has the lock".to_owned();
        assert_eq!(
            (&answers[0], &answers[2], &answers[3]),
            (&"misc".to_owned(), &unknown, &unknown)
        );
        assert_eq!(children, 2);
        assert_eq!(asked(&["a"], 0).0, Err("an earlier one has the lock".into()));
    }
}
