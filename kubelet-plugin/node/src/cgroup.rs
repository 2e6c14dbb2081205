//! Finds a process' pod and container in its /proc/<pid>/cgroup, and a new container's pod: cgroup v1 and v2, containerd and CRI-O, drivers `cgroupfs`
//! and `systemd`, and nodes that are containers themselves. Pure.
//!
//! How it fails:
//! - A tenant that may make cgroups can name one below its own like a neighbour's pod: the outermost pod is used.
//! - A node that is itself a pod's container (kind in a pod) has that pod around every process: the plugin's own path says
//!   how much lies outside of the node, and that is left out.
//! - A process that is in different pods in different hierarchies of cgroup v1 moved there: it has no pod.
//! - A process that root moves to another pod's cgroup is taken for one of that pod. Only the name in a report
//!   depends on it: shares are found by mounts.

/// A container of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Container {
    /// UID of the pod.
    pub pod: String,
    /// The container's ID in its runtime. None for a process that is in the pod's own cgroup.
    pub id: Option<String>,
}

/// The part of every path that lies outside of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outside(String);

// === impl Outside ===

impl Outside {
    /// Reads it off the plugin's own cgroups: the path before the pod with the plugin's UID. Empty, if the path does not
    /// show that pod, as in a cgroup namespace of its own.
    #[must_use]
    pub fn of(own: &str, pod_uid: Option<&str>) -> Self {
        let before = |uid: &str| {
            own.lines().find_map(|line| {
                let path = path_of(line)?;
                let parts: Vec<&str> = path.split('/').collect();
                let at = parts.iter().rposition(|part| pod_in(part).as_deref() == Some(uid))?;
                // The folders of kubelet itself, down to the pod.
                let kubelets =
                    |part: &&str| part.starts_with("kubepods") || matches!(*part, "besteffort" | "burstable");
                let mut start = at;
                while start > 0 && kubelets(&parts[start - 1]) {
                    start -= 1;
                }
                Some(parts[..start].join("/"))
            })
        };
        Self(pod_uid.and_then(before).unwrap_or_default())
    }
}

/// Returns the container of a process with these cgroups. None: it is in no pod of this node, or in several.
#[must_use]
pub fn container(cgroups: &str, outside: &Outside) -> Option<Container> {
    let mut found: Option<Container> = None;
    for line in cgroups.lines() {
        let Some(path) = path_of(line) else { continue };
        let inside = path.strip_prefix(outside.0.as_str()).unwrap_or(path);
        let Some(one) = in_path(inside) else { continue };
        match &mut found {
            None => found = Some(one),
            Some(first) if first.pod != one.pod => return None,
            Some(first) if first.id.is_none() => first.id = one.id,
            Some(first) if one.id.is_some() && first.id != one.id => return None,
            Some(_) => {}
        }
    }
    found
}

/// Returns the UID of the pod of a container that was just made, and the pod's cgroup: the part of `path` up to it. The
/// runtime chose the path and no program of the container has run yet, so the innermost pod is the container's. None: it is
/// in no pod.
#[must_use]
pub fn pod_of_new_container(path: &str) -> Option<(String, &str)> {
    let (cgroup, _) = path
        .rmatch_indices('/')
        .map(|(at, _)| path.split_at(at))
        .find(|(above, _)| pod_above(above).is_some())?;
    Some((pod_above(cgroup)?, cgroup))
}

/// The pod whose own cgroup has this path.
fn pod_above(path: &str) -> Option<String> {
    pod_in(path.rsplit('/').next()?)
}

/// The third field: `4:memory:/a/b` or `0::/a/b`. A path may have colons itself.
fn path_of(line: &str) -> Option<&str> {
    line.splitn(3, ':').nth(2)
}

fn in_path(path: &str) -> Option<Container> {
    // A runtime with the wrong cgroup driver configured makes `<slice>:cri-containerd:<id>` one name.
    let mut parts = path.split(['/', ':']).filter(|part| *part != "cri-containerd");
    let pod = parts.find_map(pod_in)?;
    let id = parts.next().and_then(container_in);
    Some(Container { pod, id })
}

/// `pod<uid>` or `kubepods-burstable-pod<uid with _>.slice`.
fn pod_in(part: &str) -> Option<String> {
    let name = match part.strip_suffix(".slice") {
        Some(slice) => {
            slice
                .rsplit_once("-pod")
                .filter(|(before, _)| before.contains("kubepods"))?
                .1
        }
        None => part.strip_prefix("pod")?,
    };
    let uid = name.replace('_', "-");
    // A UID of the API server has 36 characters; that of a static pod is a hash of 32.
    let is_uid = matches!(uid.len(), 32 | 36) && uid.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    is_uid.then_some(uid)
}

/// `<id>`, `crio-<id>`, `cri-containerd-<id>.scope` or `crio-<id>.scope`.
fn container_in(part: &str) -> Option<String> {
    let name = part.strip_suffix(".scope").unwrap_or(part);
    let id = name.rsplit_once('-').map_or(name, |(_, id)| id);
    let is_id = id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_id && !name.contains("conmon")).then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = "0123abcd-1111-2222-3333-444455556666";
    const OTHER: &str = "ffffabcd-1111-2222-3333-444455556666";

    fn id(digit: char) -> String {
        digit.to_string().repeat(64)
    }

    fn found(cgroups: &str) -> Option<(String, Option<String>)> {
        container(cgroups, &Outside::default()).map(|found| (found.pod, found.id))
    }

    #[test]
    fn every_runtime_and_driver() {
        let (id, escaped) = (id('a'), POD.replace('-', "_"));
        let whole = Some((POD.to_owned(), Some(id.clone())));
        for path in [
            format!("0::/kubepods/burstable/pod{POD}/{id}"),
            format!("0::/kubepods/pod{POD}/{id}"),
            format!("0::/vgpu-e2e-demo/kubepods/besteffort/pod{POD}/{id}"),
            format!(
                "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{escaped}.slice/cri-containerd-{id}.scope"
            ),
            format!("0::/kubepods.slice/kubepods-pod{escaped}.slice/crio-{id}.scope"),
            format!("0::/kubepods/burstable/pod{POD}/crio-{id}"),
            // Of a plugin in a cgroup namespace of its own, as cgroup v2 gives it.
            format!("0::/../../pod{POD}/{id}"),
            format!("0::/../../kubepods-besteffort-pod{escaped}.slice/cri-containerd-{id}.scope"),
            // A node that is a container: kind.
            format!("0::/docker/{}/kubelet/kubepods/burstable/pod{POD}/{id}", self::id('b')),
            format!(
                "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{escaped}.slice/cri-containerd-{id}.scope"
            ),
            // Docker in the container, and systemd in it.
            format!("0::/kubepods/burstable/pod{POD}/{id}/docker/{}", self::id('b')),
            format!("0::/kubepods/burstable/pod{POD}/{id}/system.slice/cron.service"),
            format!(
                "12:pids:/kubepods/pod{POD}/{id}\n11:memory:/kubepods/pod{POD}/{id}\n1:name=systemd:/kubepods/pod{POD}/{id}\n0::/"
            ),
            // kubelet's driver is systemd, and the runtime's is not.
            format!("1:name=systemd:/system.slice/containerd.service/kubepods-pod{escaped}.slice:cri-containerd:{id}"),
        ] {
            assert_eq!(found(&path), whole, "{path}");
        }
        let static_pod = "0123456789abcdef0123456789abcdef";
        assert_eq!(
            found(&format!("0::/kubepods/pod{static_pod}/{id}")),
            Some((static_pod.to_owned(), Some(id.clone())))
        );
        assert_eq!(found(&format!("0::/kubepods/pod{POD}")), Some((POD.to_owned(), None)));
        assert_eq!(
            found(&format!(
                "0::/kubepods.slice/kubepods-pod{escaped}.slice/crio-conmon-{id}.scope"
            )),
            Some((POD.to_owned(), None))
        );
    }

    #[test]
    fn what_is_in_no_pod() {
        for path in [
            "",
            "0::/",
            "0::/system.slice/docker.service",
            "0::/user.slice/user-0.slice/session-1.scope",
            "0::/kubepods/podcast/0123",
            "0::/podman/pod",
            "no colons at all",
            "0::/my-pod0123abcd_1111_2222_3333_444455556666.slice",
            "\u{0}\u{0}:::///",
        ] {
            assert_eq!(found(path), None, "{path}");
        }
    }

    #[test]
    fn a_tenant_cannot_name_a_neighbour() {
        let (own, inner) = (id('a'), id('b'));
        let below = format!("0::/kubepods/pod{POD}/{own}/kubepods/pod{OTHER}/{inner}");
        assert_eq!(found(&below), Some((POD.to_owned(), Some(own.clone()))));
        let moved = format!("2:pids:/kubepods/pod{POD}/{own}\n1:memory:/kubepods/pod{OTHER}/{inner}");
        assert_eq!(found(&moved), None, "in two pods");
        let half = format!("2:pids:/\n1:memory:/kubepods/pod{POD}/{own}");
        assert_eq!(found(&half), Some((POD.to_owned(), Some(own.clone()))));
        let twice = format!("2:pids:/kubepods/pod{POD}/{own}\n1:memory:/kubepods/pod{POD}/{inner}");
        assert_eq!(found(&twice), None, "in two containers");
    }

    #[test]
    fn a_node_inside_a_pod_leaves_that_one_out() {
        let (outer, plugin, container_id) = (id('a'), id('b'), id('c'));
        let plugins = "99999999-1111-2222-3333-444455556666";
        let around = format!("/kubepods/burstable/pod{OTHER}/{outer}/kubelet");
        let own = format!("0::{around}/kubepods/besteffort/pod{plugins}/{plugin}");
        let outside = Outside::of(&own, Some(plugins));
        let inside = format!("0::{around}/kubepods/besteffort/pod{POD}/{container_id}");
        let found = container(&inside, &outside).expect("a pod");
        assert_eq!((found.pod.as_str(), found.id), (POD, Some(container_id)));
        assert_eq!(
            container(&format!("0::{around}/system"), &outside),
            None,
            "the node's own"
        );
        assert_eq!(Outside::of(&own, None), Outside::default());
        assert_eq!(Outside::of("0::/", Some(plugins)), Outside::default());
    }

    #[test]
    fn the_cgroup_of_a_new_containers_pod() {
        let (id, escaped) = (id('a'), POD.replace('-', "_"));
        let slice = format!("/kubepods.slice/kubepods-pod{escaped}.slice");
        for (path, pod) in [
            (format!("/kubepods/pod{POD}/{id}"), format!("/kubepods/pod{POD}")),
            (format!("{slice}/cri-containerd-{id}.scope"), slice.clone()),
            // crun's cgroup below the scope.
            (format!("{slice}/cri-containerd-{id}.scope/container"), slice.clone()),
            // A node in a pod of another cluster.
            (
                format!("/kubepods/pod{OTHER}/{id}/kubelet/kubepods/pod{POD}/{id}"),
                format!("/kubepods/pod{OTHER}/{id}/kubelet/kubepods/pod{POD}"),
            ),
        ] {
            assert_eq!(
                pod_of_new_container(&path),
                Some((POD.to_owned(), pod.as_str())),
                "{path}"
            );
        }
        for path in ["", "/", "/machine.slice/libpod-1.scope", "/kubepods/podcast/1", &slice] {
            assert_eq!(pod_of_new_container(path), None, "{path}");
        }
    }

    #[test]
    fn no_bytes_panic() {
        use proptest::prelude::*;
        proptest!(|(text in "(/|:|pod|kubepods|-|_|\\.slice|\\.scope|[0-9a-f]{32}|[0-9a-f]{64}|\n|.){0,40}", own in ".{0,200}")| {
            let _ = container(&text, &Outside::of(&own, Some(POD)));
            let _ = container(&own, &Outside::of(&text, Some(POD)));
            let _ = pod_of_new_container(&text);
        });
    }
}
