//! Processes that use a GPU in a pod and are in none of its containers with a claim. A limit of the pod would bind them, which
//! have no share in it.
//!
//! How it fails: while the driver cannot list the processes, nobody is a stranger. A process that NVML lists by a PID of
//! another namespace is not found in /proc, and is none either.

use std::collections::{BTreeMap, BTreeSet};

use crate::{apply::Driver, hierarchy::Hierarchy, records::Record};

pub(crate) struct Strangers<'a, D> {
    hierarchy: &'a Hierarchy,
    driver: &'a D,
    /// The processes of each GPU: their PIDs and cgroups, when the driver was asked.
    processes: BTreeMap<String, Vec<(u32, String)>>,
}

impl<'a, D: Driver> Strangers<'a, D> {
    pub(crate) fn new(hierarchy: &'a Hierarchy, driver: &'a D) -> Self {
        Self {
            hierarchy,
            driver,
            processes: BTreeMap::new(),
        }
    }

    /// Notes in a pod's record that it has no limit on those of these GPUs that a stranger uses. Returns whether there was one.
    /// `known`: the cgroups of the pod's containers with a claim.
    pub(crate) fn lift(&mut self, record: &mut Record, gpus: &BTreeSet<String>, known: &BTreeSet<String>) -> bool {
        let Some(pod) = record.pod().map(str::to_owned) else {
            return false;
        };
        let mut has_lifted = false;
        for gpu in gpus.iter().filter(|gpu| !record.is_lifted(gpu)).collect::<Vec<_>>() {
            if let Some((pid, cgroup)) = self.find(gpu, &pod, known) {
                let why = format!("process {pid} in cgroup {cgroup} uses the GPU without a claim");
                record.lift(gpu, &why);
                has_lifted = true;
            }
        }
        has_lifted
    }

    fn find(&mut self, gpu: &str, pod: &str, known: &BTreeSet<String>) -> Option<(u32, String)> {
        let hierarchy = self.hierarchy;
        let is_strange = |(pid, cgroup): &&(u32, String)| {
            is_below(cgroup, pod)
                && !known.iter().any(|leaf| is_below(cgroup, leaf))
                // Its container may have ended since the driver was asked, and its record may be without it since then.
                && hierarchy.exists(cgroup)
                && hierarchy.of_process(*pid).as_ref() == Some(cgroup)
        };
        self.processes_of(gpu).iter().find(is_strange).cloned()
    }

    fn processes_of(&mut self, gpu: &str) -> &[(u32, String)] {
        self.processes.entry(gpu.to_owned()).or_insert_with(|| {
            // Without an answer, the limits fail by the same driver.
            let pids = self.driver.processes(gpu).unwrap_or_default();
            let known = |pid: u32| Some((pid, self.hierarchy.of_process(pid)?));
            pids.into_iter().filter_map(known).collect()
        })
    }
}

fn is_below(cgroup: &str, above: &str) -> bool {
    cgroup
        .strip_prefix(above)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{apply::Found, code::Code};
    use std::{fs, path::Path};

    /// A driver that lists one process.
    struct Lists(u32);

    impl Driver for Lists {
        fn is_mig(&self, _: &str) -> Result<bool, Code> {
            unreachable!()
        }

        fn total(&self, _: &str) -> Result<u64, Code> {
            unreachable!()
        }

        fn set(&self, _: &str, _: &Path, _: u64) -> Result<(), Code> {
            unreachable!()
        }

        fn get(&self, _: &str, _: &Path) -> Result<Found, Code> {
            unreachable!()
        }

        fn processes(&self, _: &str) -> Result<Vec<u32>, Code> {
            Ok(vec![self.0])
        }
    }

    #[test]
    fn a_process_that_has_ended_since_the_driver_was_asked_is_no_stranger() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |path: &str| folder.path().join(path);
        for path in ["proc/self", "proc/77", "cgroups/pod1/c1"] {
            fs::create_dir_all(at(path)).expect("folders");
        }
        let mount = format!("24 1 0:21 / {} rw - cgroup2 cgroup2 rw\n", at("cgroups").display());
        fs::write(at("proc/self/mountinfo"), mount).expect("written");
        fs::write(at("proc/self/cgroup"), "0::/own\n").expect("written");
        fs::write(at("proc/77/cgroup"), "0::/pod1/c1\n").expect("written");
        let hierarchy = Hierarchy::read(&at("proc"), &at("cgroups")).expect("a hierarchy");
        let mut strangers = Strangers::new(&hierarchy, &Lists(77));
        let mut is_found = || strangers.find("GPU-1", "/pod1", &BTreeSet::new()).is_some();
        assert!(is_found());
        // Another process has its PID, elsewhere.
        fs::write(at("proc/77/cgroup"), "0::/pod2/c1\n").expect("written");
        assert!(!is_found());
        fs::remove_dir_all(at("proc/77")).expect("removed");
        assert!(!is_found());
    }
}
