//! Finds containers that run with a claim and lack its mounts: a container runtime without CDI starts them without the
//! mounts and without an error (containerd 1.7 drops the devices). Pure.
//!
//! A container lacks a share if a process of it was seen, none of its processes has the share's tmpfs, and the API
//! server says that this very container runs and uses the claim. Init containers and sidecars that do not name the
//! claim are ignored, and so are containers whose ID the API server does not know yet.
//!
//! How it fails: a tenant that unmounts its share in all of its processes looks like one without CDI. It has no limit
//! either, so this is the right finding.

use super::finding::{Finding, Reason};
use crate::dra::share::{ShareKey, ShareKeys};
use std::collections::{BTreeMap, BTreeSet};
use vgpu_node::cgroup::Container;

/// How often the API server is asked about a container without a share while another one has the claim's mounts.
const MOST_ASKED: u32 = 3;

/// A pod of this node, by the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    pub containers: Vec<PodContainer>,
    /// Names of all ResourceClaims that it has, whether containers run or not. None: this release cannot read the pod.
    pub claims: Option<Vec<String>>,
}

/// A container that runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodContainer {
    pub name: String,
    /// Without the runtime's name.
    pub id: String,
    pub claims: Vec<ClaimUse>,
}

/// A claim that a container uses, or one request of it: kubelet then gives it only the shares of that request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimUse {
    /// Name of the ResourceClaim.
    pub claim: String,
    /// None: all requests.
    pub request: Option<String>,
}

/// A prepared claim, by the node's records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub namespace: String,
    pub name: String,
    /// The shares, each with the name of its request. The name is empty if the share was rebuilt from its limits file,
    /// which does not have it.
    pub shares: Vec<(ShareKey, String)>,
    /// UIDs of the pods that it was reserved for when it was last prepared.
    pub pods: BTreeSet<String>,
}

/// The findings about mounts of shares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mounts {
    pub shares: BTreeMap<ShareKey, Finding>,
    /// The containers that lack a share: namespace, pod, UID of the pod, and container.
    pub lacking: BTreeMap<ShareKey, Lacking>,
}

/// A container that lacks a share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lacking {
    pub namespace: String,
    pub pod: String,
    pub pod_uid: String,
    pub container: String,
}

// === impl PodContainer ===

impl PodContainer {
    /// Returns true if it uses this request of a claim; None: any of them.
    fn uses(&self, claim: &str, request: Option<&str>) -> bool {
        let has =
            |asked: &ClaimUse| request.is_none() || asked.request.is_none() || asked.request.as_deref() == request;
        self.claims.iter().any(|of| of.claim == claim && has(of))
    }
}

/// Compares once. `seen`: the shares of each container with a process.
#[must_use]
pub(crate) fn mounts(claims: &[Claim], seen: &BTreeMap<Container, ShareKeys>, pods: &[Pod]) -> Mounts {
    let mut found = Mounts::default();
    for claim in claims {
        let users: Vec<(&Pod, &PodContainer, Option<&ShareKeys>)> = users(claim, seen, pods).collect();
        for (share, request) in &claim.shares {
            let lacks = |has: &Option<&ShareKeys>| has.is_some_and(|has| !has.contains(share));
            let mut users = users
                .iter()
                .filter(|(_, container, _)| container.uses(&claim.name, Some(request)));
            let lacking = users.find(|(_, _, has)| lacks(has));
            let is_mounted = seen.values().any(|has| has.contains(share));
            let finding = match lacking {
                Some((pod, container, _)) => {
                    let lacking = Lacking {
                        namespace: pod.namespace.clone(),
                        pod: pod.name.clone(),
                        pod_uid: pod.uid.clone(),
                        container: container.name.clone(),
                    };
                    found.lacking.insert(share.clone(), lacking);
                    Finding::fails(Reason::MountsMissing)
                }
                None if is_mounted => Finding::holds(Reason::Mounted),
                None => Finding::unknown(Reason::NotSeenYet),
            };
            found.shares.insert(share.clone(), finding);
        }
    }
    found
}

/// The running containers that use a claim, and the shares that each has, if a process of it was seen.
fn users<'a>(
    claim: &'a Claim,
    seen: &'a BTreeMap<Container, ShareKeys>,
    pods: &'a [Pod],
) -> impl Iterator<Item = (&'a Pod, &'a PodContainer, Option<&'a ShareKeys>)> {
    let of_namespace = pods.iter().filter(|pod| pod.namespace == claim.namespace);
    let all = of_namespace.flat_map(|pod| pod.containers.iter().map(move |container| (pod, container)));
    let using = all.filter(|(_, container)| container.uses(&claim.name, None));
    using.map(|(pod, container)| {
        let key = Container {
            pod: pod.uid.clone(),
            id: Some(container.id.clone()),
        };
        (pod, container, seen.get(&key))
    })
}

/// The containers that may lack a share, so that the API server should be asked about them: containers without any
/// share, if some claim has a share that no container has, or if their pod has a claim. `asked` returns how often the
/// API server was asked about a container; None if it should not be asked now.
#[must_use]
pub(crate) fn questions(
    claims: &[Claim],
    seen: &BTreeMap<Container, ShareKeys>,
    asked: impl Fn(&Container) -> Option<u32>,
) -> BTreeSet<Container> {
    let is_unseen = |(share, _): &(ShareKey, String)| !seen.values().any(|has| has.contains(share));
    let unseen = claims.iter().any(|claim| claim.shares.iter().any(is_unseen));
    let is_of_claim = |container: &Container| claims.iter().any(|claim| claim.pods.contains(&container.pod));
    let bare = seen
        .iter()
        .filter(|(container, has)| has.is_empty() && container.id.is_some());
    let due = bare.filter(|(container, _)| match asked(container) {
        // The sandbox of a pod never gets a name, and must not be asked about all the time.
        Some(times) => unseen || times < MOST_ASKED && is_of_claim(container),
        None => false,
    });
    due.map(|(container, _)| container.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(uid: &str) -> ShareKey {
        (uid.into(), "s".into())
    }

    fn claim() -> Claim {
        Claim {
            namespace: "d".into(),
            name: "c".into(),
            shares: vec![(key("u"), "gpu".into())],
            pods: BTreeSet::from(["p".to_owned()]),
        }
    }

    /// A claim, or `claim/request`.
    fn used(text: &str) -> ClaimUse {
        let (claim, request) = text
            .split_once('/')
            .map_or((text, None), |(claim, of)| (claim, Some(of)));
        ClaimUse {
            claim: claim.into(),
            request: request.map(str::to_owned),
        }
    }

    fn container(pod: &str, id: &str) -> Container {
        Container {
            pod: pod.into(),
            id: Some(id.into()),
        }
    }

    fn seen(all: &[(&str, &[&str])]) -> BTreeMap<Container, ShareKeys> {
        all.iter()
            .map(|(id, shares)| (container("p", id), shares.iter().map(|uid| key(uid)).collect()))
            .collect()
    }

    fn pod(namespace: &str, containers: &[(&str, &[&str])]) -> Pod {
        let of = |(id, claims): &(&str, &[&str])| PodContainer {
            name: format!("name-{id}"),
            id: (*id).into(),
            claims: claims.iter().map(|claim| used(claim)).collect(),
        };
        Pod {
            uid: "p".into(),
            namespace: namespace.into(),
            name: "pod".into(),
            containers: containers.iter().map(of).collect(),
            claims: None,
        }
    }

    fn found(seen: &BTreeMap<Container, ShareKeys>, pods: &[Pod]) -> Reason {
        mounts(&[claim()], seen, pods).shares[&key("u")].reason
    }

    #[test]
    fn only_a_running_container_that_uses_the_claim_can_lack_it() {
        let using: &[&str] = &["c"];
        let lacks = found(&seen(&[("1", &[])]), &[pod("d", &[("1", using)])]);
        assert_eq!(lacks, Reason::MountsMissing);
        for (seen, pods) in [
            (seen(&[]), vec![]),
            // The sandbox, an init container, a sidecar; the container itself is being created.
            (seen(&[("0", &[])]), vec![pod("d", &[("1", using), ("0", &[])])]),
            (seen(&[("9", &[])]), vec![pod("d", &[("1", using)])]),
            // A claim of that name in another namespace, and another claim.
            (seen(&[("1", &[])]), vec![pod("e", &[("1", using)])]),
            (seen(&[("1", &[])]), vec![pod("d", &[("1", &["other"])])]),
            // Not known to the API server yet.
            (seen(&[("1", &[])]), vec![]),
        ] {
            assert_eq!(found(&seen, &pods), Reason::NotSeenYet, "{seen:?}");
        }
        assert_eq!(found(&seen(&[("1", &["u"])]), &[]), Reason::Mounted);
        let second = seen(&[("1", &["u"]), ("2", &["v"])]);
        assert_eq!(
            found(&second, &[pod("d", &[("1", using), ("2", using)])]),
            Reason::MountsMissing
        );
        let named = mounts(&[claim()], &second, &[pod("d", &[("2", using)])]);
        let lacking = &named.lacking[&key("u")];
        assert_eq!((lacking.pod.as_str(), lacking.container.as_str()), ("pod", "name-2"));
    }

    #[test]
    fn a_container_of_one_request_has_only_its_shares() {
        let two = Claim {
            shares: vec![(key("u"), "one".into()), (key("v"), "two".into())],
            ..claim()
        };
        let rebuilt = Claim {
            shares: vec![(key("u"), String::new()), (key("v"), String::new())],
            ..claim()
        };
        let reasons = |claim: &Claim, seen: &BTreeMap<Container, ShareKeys>, pods: &[Pod]| {
            let found = mounts(std::slice::from_ref(claim), seen, pods);
            ["u", "v"].map(|uid| found.shares[&key(uid)].reason)
        };
        let each = [pod("d", &[("1", &["c/one"]), ("2", &["c/two"])])];
        let right = seen(&[("1", &["u"]), ("2", &["v"])]);
        for claim in [&two, &rebuilt] {
            assert_eq!(reasons(claim, &right, &each), [Reason::Mounted; 2]);
        }
        let lacks = seen(&[("1", &["u"]), ("2", &[])]);
        let expected = [Reason::Mounted, Reason::MountsMissing];
        assert_eq!(reasons(&two, &lacks, &each), expected);
        let whole = [pod("d", &[("1", &["c"])])];
        assert_eq!(reasons(&two, &seen(&[("1", &["u"])]), &whole), expected);
    }

    #[test]
    fn the_api_server_is_asked_about_containers_that_may_lack_a_share() {
        let is_question =
            |claims: &[Claim], seen: &BTreeMap<Container, ShareKeys>, asked: fn(&Container) -> Option<u32>| {
                !questions(claims, seen, asked).is_empty()
            };
        let never: fn(&Container) -> Option<u32> = |_| Some(0);
        let often: fn(&Container) -> Option<u32> = |_| Some(MOST_ASKED);
        let waits: fn(&Container) -> Option<u32> = |_| None;
        let bare = seen(&[("1", &[])]);
        assert!(is_question(&[claim()], &bare, never));
        assert!(is_question(&[claim()], &bare, often), "nobody has the mounts");
        assert!(!is_question(&[claim()], &bare, waits));
        assert!(!is_question(&[], &bare, never));
        assert!(!is_question(&[claim()], &seen(&[]), never));
        assert!(
            !is_question(&[claim()], &seen(&[("1", &["v"])]), never),
            "has a share of its own"
        );
        // Another container has the mounts.
        let second = seen(&[("1", &[]), ("2", &["u"])]);
        assert_eq!(questions(&[claim()], &second, never), [container("p", "1")].into());
        assert!(!is_question(&[claim()], &second, often), "a sandbox");
        let of_others = Claim {
            pods: BTreeSet::from(["q".to_owned()]),
            ..claim()
        };
        assert!(!is_question(&[of_others], &second, never), "not a pod of the claim");
    }
}
