//! Gangs: pods of a namespace that get devices together or not at all, by the annotations `dra.vgpu/gang` and
//! `dra.vgpu/gang-size`.

use std::collections::{BTreeMap, BTreeSet};

use crate::cluster::Cluster;
use crate::model::Pod;
use crate::verdict::Verdict;

/// Namespace and name.
pub(crate) type Name = (String, String);

/// All gangs, from the existing pods.
#[derive(Debug, Default)]
pub(crate) struct Gangs(BTreeMap<Name, Members>);

#[derive(Debug, Default)]
struct Members {
    /// Pods that are neither finished nor deleted, and have no scheduling gates.
    present: usize,
    /// Like `present`, but with scheduling gates.
    gated: usize,
    sizes: BTreeSet<String>,
}

pub(crate) fn of(pod: &Pod) -> Option<Name> {
    let (name, _) = pod.gang.as_ref()?;
    Some((pod.namespace.clone(), name.clone()))
}

impl Gangs {
    pub(crate) fn new(cluster: &Cluster) -> Self {
        let mut gangs = Self::default();
        for (_, pod) in cluster.pods() {
            let (Some(name), Some((_, size))) = (of(pod), &pod.gang) else {
                continue;
            };
            if pod.is_deleted || pod.is_finished {
                continue;
            }
            let members = gangs.0.entry(name).or_default();
            match pod.is_gated {
                true => members.gated += 1,
                false => members.present += 1,
            }
            members.sizes.insert(size.clone());
        }
        gangs
    }

    /// Checks that all pods of the gang exist.
    ///
    /// # Errors
    /// Pods are missing, or their annotations differ.
    pub(crate) fn check(&self, name: &Name) -> Result<(), Verdict> {
        let Some(members) = self.0.get(name) else {
            return Ok(());
        };
        let gang = name.1.clone();
        let mut sizes = members.sizes.iter();
        let size = match (sizes.next(), sizes.next()) {
            (Some(one), None) => one.parse::<usize>().ok().filter(|size| *size >= 1),
            _ => None,
        };
        let Some(size) = size else {
            let size = members.sizes.iter().cloned().collect::<Vec<_>>().join(", ");
            return Err(Verdict::GangSize { gang, size });
        };
        match members.present < size {
            true => Err(Verdict::GangIncomplete {
                gang,
                present: members.present,
                gated: members.gated,
                size,
            }),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(sizes: &[&str]) -> Result<(), Verdict> {
        check_gated(sizes, 0)
    }

    /// Checks a gang with these sizes, where the first `gated` pods have a scheduling gate.
    fn check_gated(sizes: &[&str], gated: usize) -> Result<(), Verdict> {
        let mut cluster = Cluster::default();
        for (at, size) in sizes.iter().enumerate() {
            cluster.set_pod(Pod {
                namespace: "ns".into(),
                name: at.to_string(),
                gang: Some(("g".into(), (*size).into())),
                is_gated: at < gated,
                ..Pod::default()
            });
        }
        Gangs::new(&cluster).check(&("ns".into(), "g".into()))
    }

    #[test]
    fn a_gang_waits_for_its_last_pod() {
        assert_eq!(check(&["2", "2"]), Ok(()));
        assert_eq!(check(&["2", "2", "2"]), Ok(()));
        assert!(matches!(
            check(&["3", "3"]),
            Err(Verdict::GangIncomplete {
                present: 2,
                size: 3,
                ..
            })
        ));
        let gated = check_gated(&["2", "2"], 1).unwrap_err();
        assert_eq!(
            gated.to_string(),
            "gang g has 1 of 2 pods, and 1 more with spec.schedulingGates"
        );
        assert_eq!(check_gated(&["2", "2", "2"], 1), Ok(()));
        for sizes in [&["2", "3"][..], &["0"], &["two"], &[""]] {
            assert!(matches!(check(sizes), Err(Verdict::GangSize { .. })), "{sizes:?}");
        }
    }
}
