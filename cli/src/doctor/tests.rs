//! Checks each finding on a cluster where nothing else is wrong.

use serde_json::{Value, json};

use super::seen::{Objects, Seen};
use super::{Answer, findings, rights};

const NOW: i64 = 1_767_312_000; // 2026-01-02T00:00:00Z
const NAMESPACE: &str = "dra-driver-vgpu";

fn workload(component: &str, status: Value, args: Value) -> Value {
    json!({
        "metadata": {"name": format!("vgpu-{component}"), "namespace": NAMESPACE},
        "spec": {"replicas": 1, "template": {"spec": {"serviceAccountName": format!("vgpu-{component}"), "containers": [
            {"image": format!("registry.example:5000/{component}:0.1.0"), "args": args}]}}},
        "status": status,
    })
}

fn plugin(node: &str, ready: &str) -> Value {
    json!({
        "metadata": {"name": format!("plugin-{node}"), "namespace": NAMESPACE, "labels": {
            "app.kubernetes.io/name": "dra-driver-vgpu", "app.kubernetes.io/component": "plugin"}},
        "spec": {"nodeName": node},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]},
    })
}

fn slice(driver: &str, uuid: &str) -> Value {
    json!({"metadata": {"name": format!("slice-of-{driver}")}, "spec": {"driver": driver, "nodeName": "n1",
        "pool": {"name": "n1/vgpu"}, "devices": [
        {"name": "gpu-0", "allowMultipleAllocations": true,
         "attributes": {"type": {"string": "gpu"}, "uuid": {"string": uuid}, "parentUUID": {"string": uuid},
            "profile": {"string": "none"}, "placement": {"string": "none"}}}]}})
}

fn claim(injected: &str) -> Value {
    json!({"metadata": {"name": "gpu", "namespace": "team"}, "status": {"devices": [{"driver": "dra.vgpu", "pool": "n1/vgpu",
        "conditions": [{"type": "Injected", "status": injected}]}]}})
}

/// A claim that has the GPU.
fn holder() -> Value {
    json!({"metadata": {"name": "gpu", "namespace": "team"}, "status": {"allocation": {"devices": {"results": [
        {"driver": "dra.vgpu", "pool": "n1/vgpu", "device": "gpu-0"}]}}}})
}

/// Gives the GPU this taint of the plugin.
fn taint(seen: &mut Seen, kind: &str, value: &str, effect: &str) {
    let taint = json!({"key": format!("dra.vgpu/{kind}"), "value": value, "effect": effect});
    objects(&mut seen.slices)[0]["spec"]["devices"][0]["taints"] = json!([taint]);
}

/// A cluster with one GPU node on which all is well.
fn well() -> Seen {
    let node = json!({"metadata": {"name": "n1", "labels": {"nvidia.com/gpu.present": "true"}},
        "status": {"nodeInfo": {"containerRuntimeVersion": "containerd://2.1.4"}, "allocatable": {"nvidia.com/gpu": "0"}}});
    let args = json!([format!("--lease-namespace={NAMESPACE}"), "--lease-name=vgpu-controller"]);
    let policy = json!({"metadata": {"name": "claims"}});
    let lease = json!({"metadata": {"name": "vgpu-controller", "namespace": NAMESPACE},
        "spec": {"holderIdentity": "vgpu-controller-a", "renewTime": "2026-01-01T23:59:50.000000Z"}});
    Seen {
        nodes: Objects::Read(vec![node]),
        pods: Objects::Read(vec![plugin("n1", "True")]),
        classes: Objects::Read(vec![json!({"metadata": {"name": "vgpu"},
            "spec": {"selectors": [{"cel": {"expression": "device.driver == \"dra.vgpu\""}}]}})]),
        slices: Objects::Read(vec![slice("dra.vgpu", "GPU-1")]),
        namespaces: Objects::Read(vec![json!({"metadata": {"name": NAMESPACE, "labels": {}}})]),
        leases: Objects::Read(vec![lease]),
        claims: Objects::Read(vec![claim("True")]),
        vgpu_nodes: Objects::Read(vec![
            json!({"metadata": {"name": "n1"}, "status": {"asOf": "2026-01-01T23:59:10Z",
            "conditions": [{"type": "Ready", "status": "True", "reason": "Ready"}]}}),
        ]),
        daemon_sets: Objects::Read(vec![workload(
            "plugin",
            json!({"desiredNumberScheduled": 1}),
            json!([]),
        )]),
        deployments: Objects::Read(vec![workload("controller", json!({"readyReplicas": 1}), args)]),
        policies: Objects::Read(vec![policy]),
        bindings: Objects::Read(vec![
            json!({"metadata": {"name": "claims"}, "spec": {"policyName": "claims"}}),
        ]),
        minor: Some(36),
        now: NOW,
        ..Seen::default()
    }
}

fn answer(seen: Seen) -> Answer {
    Answer {
        found: findings::of(&seen),
        seen,
        probed: None,
    }
}

fn objects(of: &mut Objects) -> &mut Vec<Value> {
    match of {
        Objects::Read(objects) => objects,
        Objects::Unread => panic!("read"),
    }
}

#[test]
fn nothing_is_found_where_all_is_well_or_nothing_may_be_read() {
    assert_eq!(findings::of(&well()), []);
    assert_eq!(findings::of(&Seen::default()), []);
}

/// A fault as what is set in the lists of [`well`], the object of its finding, and words of that. A place is a list, and
/// a pointer into it.
const FAULTS: &str = r#"
daemon_sets = [] | DaemonSet | helm install
slices/0/spec/devices/0/allowMultipleAllocations = null | ResourceSlice slice-of-dra.vgpu | DRAConsumableCapacity=true
classes = [] | DeviceClass | deviceClasses.vgpu.create
policies = [] | ValidatingAdmissionPolicy | admission.claims
bindings = [] | ValidatingAdmissionPolicy claims | the API server does not ask it
namespaces/0/metadata/labels = {"pod-security.kubernetes.io/enforce": "restricted"} | Namespace dra-driver-vgpu | kubectl label namespace dra-driver-vgpu pod-security.kubernetes.io/enforce=privileged --overwrite
deployments/0/status/readyReplicas = 0 | Deployment dra-driver-vgpu/vgpu-controller | 0 of 1 replicas are ready
leases/0/spec/holderIdentity = "" | Lease dra-driver-vgpu/vgpu-controller | has no holder
leases/0/spec/renewTime = "2026-01-01T23:00:00.000000Z" | Lease dra-driver-vgpu/vgpu-controller | renewed it 3600 s ago
leases = [] | Lease dra-driver-vgpu/vgpu-controller | does not exist
deployments/0/spec/template/spec/containers/0/image = "registry.example:5000/controller:0.2.0" | Deployment dra-driver-vgpu/vgpu-controller | its image is 0.2.0, and that of DaemonSet dra-driver-vgpu/vgpu-plugin is 0.1.0
nodes/0/status/allocatable/nvidia.com~1gpu = "8" | Node n1 | nvidia.com/gpu.deploy.device-plugin=false
pods = [] | Node n1 | no pod of the plugin
slices = [] | Node n1 | set the chart's driverRoot
nodes/0/status/nodeInfo/containerRuntimeVersion = "containerd://1.6.9" | Node n1 | containerd://1.6.9
vgpu_nodes/0/status/asOf = "2026-01-01T23:50:00Z" | VgpuNode n1 | was written 600 s ago
vgpu_nodes/0/status/conditions/0 = {"type": "Ready", "status": "False", "reason": "Library", "message": "disk full"} | VgpuNode n1 | is not ready: Library: disk full
vgpu_nodes/0/status/conditions/0 = {"type": "DriverFound", "status": "True", "reason": "GpusLeftOut", "message": "GPU GPU-1: no figure"} | VgpuNode n1 | GpusLeftOut: GPU GPU-1: no figure
vgpu_nodes/0/status/conditions/0 = {"type": "DriverFound", "status": "True", "reason": "SettingNotApplied", "message": "a label is wrong"} | VgpuNode n1 | SettingNotApplied: a label is wrong
vgpu_nodes = [{"metadata": {"name": "n1"}, "status": {"asOf": "2026-01-01T23:59:10Z"}}, {"metadata": {"name": "n2"}, "status": {}}] | VgpuNode n2 | kubectl delete vgpunode n2"#;

fn set(seen: &mut Seen, place: &str, value: Value) {
    let (list, pointer) = place.split_at(place.find('/').unwrap_or(place.len()));
    let list = objects(match list {
        "daemon_sets" => &mut seen.daemon_sets,
        "slices" => &mut seen.slices,
        "classes" => &mut seen.classes,
        "policies" => &mut seen.policies,
        "bindings" => &mut seen.bindings,
        "namespaces" => &mut seen.namespaces,
        "deployments" => &mut seen.deployments,
        "leases" => &mut seen.leases,
        "nodes" => &mut seen.nodes,
        "pods" => &mut seen.pods,
        "vgpu_nodes" => &mut seen.vgpu_nodes,
        _ => panic!("{list}"),
    });
    let mut all = Value::Array(std::mem::take(list));
    *all.pointer_mut(pointer).expect(place) = value;
    *list = all.as_array().expect(place).clone();
}

/// Asserts that the fault is one finding, about this object and with these words.
fn is_found(seen: &Seen, object: &str, words: &str) {
    let found = findings::of(seen);
    assert_eq!(found.len(), 1, "{words}: {found:#?}");
    assert_eq!(found[0].object, object, "{words}");
    assert!(!found[0].breaks.is_empty() && !found[0].mend.is_empty(), "{words}");
    assert!(format!("{:?}", found[0]).contains(words), "{words}: {found:#?}");
}

#[test]
fn each_fault_is_one_finding_that_names_its_object_and_what_to_do() {
    for row in FAULTS.trim().lines() {
        let cells: Vec<&str> = row.split(" | ").collect();
        let (place, value) = cells[0].split_once(" = ").expect(row);
        let mut seen = well();
        set(&mut seen, place, serde_json::from_str(value).expect(row));
        is_found(&seen, cells[1], cells[2]);
    }
}

#[test]
fn faults_of_several_objects_are_one_finding_too() {
    let with = |fault: fn(&mut Seen)| {
        let mut seen = well();
        fault(&mut seen);
        seen
    };
    let old = with(|seen| seen.minor = Some(33));
    is_found(&old, "API server", "Kubernetes 1.33");
    let no_node = with(|seen| {
        objects(&mut seen.nodes)[0]["metadata"]["labels"] = Value::Null;
        objects(&mut seen.pods).clear();
        objects(&mut seen.slices).clear();
        let status = json!({"observedGeneration": 1, "desiredNumberScheduled": 0});
        objects(&mut seen.daemon_sets)[0]["status"] = status;
    });
    is_found(
        &no_node,
        "DaemonSet dra-driver-vgpu/vgpu-plugin",
        "none of 1 nodes matches",
    );
    let twice = with(|seen| objects(&mut seen.slices).push(slice("gpu.nvidia.com", "GPU-1")));
    is_found(
        &twice,
        "ResourceSlice slice-of-gpu.nvidia.com",
        "offers GPU GPU-1 of node n1",
    );
    let uncalled = with(|seen| {
        *objects(&mut seen.pods) = vec![plugin("n1", "False")];
        let page = "gpus: ok\nregistration: kubelet has not called\n".to_owned();
        seen.not_ready.insert("dra-driver-vgpu/plugin-n1".to_owned(), page);
    });
    is_found(
        &uncalled,
        "Pod dra-driver-vgpu/plugin-n1 on node n1",
        "plugin.kubeletRoot",
    );
    let without_mounts = with(|seen| {
        let runtime = "containerd://1.7.35".into();
        objects(&mut seen.nodes)[0]["status"]["nodeInfo"]["containerRuntimeVersion"] = runtime;
        *objects(&mut seen.claims) = vec![claim("False")];
    });
    is_found(&without_mounts, "Node n1", "enable_cdi = true");
    let right = with(|seen| {
        let mut all = rights::questions(seen).into_iter();
        let one = all.find(|one| one.right == "patch resourceclaims.resource.k8s.io/status");
        seen.denied.extend(one.map(|one| (one.account, one.right)));
    });
    let words = "has no right to patch resourceclaims.resource.k8s.io/status";
    is_found(&right, "ServiceAccount dra-driver-vgpu/vgpu-plugin", words);
    let terminating = with(|seen| {
        objects(&mut seen.nodes)[0]["metadata"]["labels"] = Value::Null;
        *objects(&mut seen.pods) = vec![json!({"metadata": {"name": "train", "namespace": "team",
            "deletionTimestamp": "2026-01-01T23:00:00Z"},
            "spec": {"nodeName": "n1", "resourceClaims": [{"name": "gpu"}]}})];
    });
    let words = "1 pods with claims stay Terminating, such as team/train";
    is_found(&terminating, "Node n1", words);
    let absent = with(|seen| {
        for list in [
            &mut seen.daemon_sets,
            &mut seen.deployments,
            &mut seen.pods,
            &mut seen.classes,
        ] {
            objects(list).clear();
        }
    });
    is_found(&absent, "DaemonSet", "helm install");
    // A controller whose image cannot be pulled has no leader either.
    let no_image = with(|seen| {
        let mut pod = plugin("n1", "False");
        pod["metadata"]["name"] = "controller-a".into();
        pod["metadata"]["labels"]["app.kubernetes.io/component"] = "controller".into();
        pod["status"]["containerStatuses"] =
            json!([{"image": "r/controller:1", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]);
        objects(&mut seen.pods).push(pod);
        objects(&mut seen.deployments)[0]["status"]["readyReplicas"] = 0.into();
        objects(&mut seen.leases).clear();
    });
    is_found(
        &no_image,
        "Deployment dra-driver-vgpu/vgpu-controller",
        "ImagePullBackOff of r/controller:1",
    );
    is_found(
        &no_image,
        "Deployment dra-driver-vgpu/vgpu-controller",
        "describe pod controller-a; the chart's images.registry",
    );
    // During an upgrade the old plugin is ready beside the new one, whose page cannot be read.
    let beside = with(|seen| {
        let mut new = plugin("n1", "False");
        new["metadata"]["name"] = "new".into();
        objects(&mut seen.pods).push(new);
        let message = "slices: waiting; registration: kubelet has not called";
        objects(&mut seen.vgpu_nodes)[0]["status"]["conditions"] =
            json!([{"type": "Ready", "status": "False", "reason": "SlicesFail", "message": message}]);
    });
    is_found(&beside, "Pod dra-driver-vgpu/new on node n1", "plugin.kubeletRoot");
}

#[test]
fn gpus_with_faults_are_found() {
    let holders = "of 1 claims that have it, such as team/gpu, programs may fail";
    let lost = "taint dra.vgpu/lost:NoSchedule: the driver does not list it any more";
    let silent = "if nvidia-smi hangs: kubectl drain n1 --ignore-daemonsets";
    for (kind, value, words) in [("xid", "79", holders), ("lost", "", lost), ("silent", "", silent)] {
        let mut seen = well();
        taint(&mut seen, kind, value, "NoSchedule");
        if kind == "xid" {
            *objects(&mut seen.claims) = vec![holder()];
        }
        is_found(&seen, "GPU GPU-1 on node n1", words);
    }
}

#[test]
fn each_fault_of_a_gpu_has_its_own_words_and_what_is_none_is_no_finding() {
    let found = |kind: &str, value: &str, effect: &str| {
        let mut seen = well();
        taint(&mut seen, kind, value, effect);
        findings::of(&seen)
    };
    let mut mends = std::collections::BTreeSet::new();
    for (kind, value) in [
        ("xid", "79"),
        ("ecc", "3"),
        ("remap", "failed"),
        ("recovery", "reset"),
        ("recovery", "reboot"),
        ("lost", ""),
        ("silent", ""),
    ] {
        let found = found(kind, value, "NoSchedule");
        assert_eq!(found.len(), 1, "{kind}: {found:#?}");
        assert!(
            found[0].value.contains(value) && !found[0].value.contains("not known"),
            "{found:#?}"
        );
        mends.insert(found[0].mend.clone());
    }
    assert_eq!(mends.len(), 7, "{mends:#?}");
    // The plugin has the GPU open, also on a drained node.
    let resets = mends.iter().filter(|mend| mend.contains("--gpu-reset"));
    assert!(resets.clone().count() == 3 && resets.clone().all(|mend| mend.contains("=paused-for-gpu-reset")));
    assert_eq!(found("xid", "13", "None"), []);
    assert_eq!(found("remap", "pending", "None"), []);
    assert_eq!(found("allocator", "controller", "NoSchedule"), []);

    let mut seen = well();
    taint(&mut seen, "mig", "", "NoSchedule");
    let mig = answer(seen);
    assert_eq!(mig.found, []);
    let text = mig.text();
    assert!(text.starts_with("note: GPU GPU-1 on node n1 is in MIG mode"), "{text}");
    assert!(text.ends_with("nothing was found\n"), "{text}");

    // The only finding is that the plugin is not ready.
    let mut seen = well();
    taint(&mut seen, "silent", "", "NoSchedule");
    *objects(&mut seen.pods) = vec![plugin("n1", "False")];
    let found = findings::of(&seen);
    assert_eq!(
        (found.len(), found[0].object.starts_with("Pod ")),
        (1, true),
        "{found:#?}"
    );
}

/// A node with two instances of one GPU, each with this taint.
fn with_instances(kind: &str, value: &str) -> Seen {
    let mut seen = well();
    let instance = |at: u32| {
        json!({"name": format!("mig-{at}"), "attributes": {"type": {"string": "mig"}, "uuid": {"string": format!("MIG-{at}")},
            "parentUUID": {"string": "GPU-9"}, "profile": {"string": "3g.40gb"}},
            "taints": [{"key": format!("dra.vgpu/{kind}"), "value": value, "effect": "NoSchedule"}]})
    };
    let mut slice = slice("dra.vgpu", "");
    slice["metadata"]["name"] = "instances".into();
    slice["spec"]["pool"]["name"] = "n1/vgpu-mig".into();
    slice["spec"]["devices"] = json!([instance(0), instance(1)]);
    objects(&mut seen.slices).push(slice);
    seen
}

#[test]
fn a_fault_of_a_gpu_in_mig_mode_is_one_finding_and_an_instance_that_is_gone_one_each() {
    let mut seen = with_instances("xid", "79");
    let mut holder = holder();
    holder["status"]["allocation"]["devices"]["results"][0]["pool"] = "n1/vgpu-mig".into();
    holder["status"]["allocation"]["devices"]["results"][0]["device"] = "mig-1".into();
    // It has both instances.
    let results = &mut holder["status"]["allocation"]["devices"]["results"];
    let mut second = results[0].clone();
    second["device"] = "mig-0".into();
    results.as_array_mut().expect("results").push(second);
    *objects(&mut seen.claims) = vec![holder];
    let found = findings::of(&seen);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!(found[0].object, "GPU GPU-9 on node n1");
    assert!(
        found[0].breaks.contains("of 1 claims that have it, such as team/gpu"),
        "{found:#?}"
    );
    for (kind, words) in [("lost", "make it again"), ("replaced", "the instance in its place")] {
        let found = findings::of(&with_instances(kind, ""));
        assert_eq!(found.len(), 2, "{found:#?}");
        assert_eq!(found[0].object, "Instance MIG-0 (3g.40gb) on node n1");
        let mend = &found[0].mend;
        assert!(
            mend.contains(words) && !mend.contains("reboot") && mend.contains("docs/mig.md"),
            "{mend}"
        );
    }
}

#[test]
fn a_taint_of_a_gpu_on_which_claims_make_instances_is_one_finding_with_its_own_advice() {
    for (kind, words) in [("lost", "-i GPU-9 -mig 1"), ("overlap", "end the processes")] {
        let mut seen = with_instances(kind, "");
        for slice in objects(&mut seen.slices) {
            for device in slice["spec"]["devices"].as_array_mut().into_iter().flatten() {
                if device["attributes"]["type"]["string"] == "mig" {
                    device["attributes"]["uuid"]["string"] = "GPU-9".into();
                    device["consumesCounters"] = serde_json::json!([{"counterSet": "mig-9", "counters": {}}]);
                }
            }
        }
        let found = findings::of(&seen);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert_eq!(found[0].object, "GPU GPU-9 on node n1");
        assert!(found[0].mend.contains(words), "{found:#?}");
    }
}

#[test]
fn a_mig_manager_beside_instances_is_found() {
    let mut seen = with_instances("allocator", "");
    assert_eq!(findings::of(&seen), []);
    objects(&mut seen.nodes)[0]["metadata"]["labels"]["nvidia.com/mig.config.state"] = "success".into();
    is_found(&seen, "Node n1", "nvidia.com/mig.config.state=success, and 2 instances");
    let mut off = seen;
    objects(&mut off.nodes)[0]["metadata"]["labels"]["nvidia.com/gpu.deploy.mig-manager"] = "false".into();
    assert_eq!(findings::of(&off), []);
    // Without instances it has nothing to destroy.
    let mut without = well();
    objects(&mut without.nodes)[0]["metadata"]["labels"]["nvidia.com/mig.config.state"] = "success".into();
    assert_eq!(findings::of(&without), []);
    // It has what claims are about to make, also while nothing is published because it is at work.
    objects(&mut without.nodes)[0]["metadata"]["labels"]["dra.vgpu/mig-dynamic"] = "off".into();
    assert_eq!(findings::of(&without), []);
    objects(&mut without.nodes)[0]["metadata"]["labels"]["dra.vgpu/mig-dynamic"] = "instances".into();
    is_found(
        &without,
        "Node n1",
        "nvidia.com/mig.config.state=success, and claims make instances there by its label dra.vgpu/mig-dynamic=instances",
    );
    // NVIDIA's device plugin gives instances away, too.
    objects(&mut off.nodes)[0]["status"]["allocatable"]["nvidia.com/mig-3g.40gb"] = "2".into();
    is_found(
        &off,
        "Node n1",
        "allocatable nvidia.com/mig-3g.40gb: 2, beside slices of dra.vgpu",
    );
}

#[test]
fn nodes_that_are_left_to_another_driver_and_images_with_digests_are_well() {
    let mut seen = well();
    for name in ["n2", "n3"] {
        let mut node = objects(&mut seen.nodes)[0].clone();
        node["metadata"]["name"] = name.into();
        objects(&mut seen.nodes).push(node);
    }
    assert_eq!(findings::of(&seen).len(), 2);
    let mut other = slice("gpu.nvidia.com", "GPU-2");
    other["spec"]["nodeName"] = "n2".into();
    objects(&mut seen.slices).push(other);
    objects(&mut seen.nodes)[2]["status"]["allocatable"]["nvidia.com/gpu"] = "8".into();
    assert_eq!(findings::of(&seen), []);

    let image = |of: &mut Objects, image: &str| {
        objects(of)[0]["spec"]["template"]["spec"]["containers"][0]["image"] = image.into();
    };
    image(&mut seen.daemon_sets, "registry.example:5000/plugin@sha256:aa");
    image(&mut seen.deployments, "registry.example:5000/controller@sha256:bb");
    assert_eq!(findings::of(&seen), []);
    image(&mut seen.daemon_sets, "plugin:1@sha256:aa");
    image(&mut seen.deployments, "controller:1@sha256:bb");
    assert_eq!(findings::of(&seen), []);
    image(&mut seen.deployments, "controller:2@sha256:bb");
    assert_eq!(findings::of(&seen).len(), 1);
}

#[test]
fn a_plugin_that_crashes_is_told_from_one_that_is_not_ready() {
    let mut seen = well();
    let pod = &mut objects(&mut seen.pods)[0];
    pod["status"] = json!({"phase": "Pending", "containerStatuses": [{"image": "r/plugin:1", "state": {"waiting": {"reason": "ErrImagePull"}}}]});
    let found = findings::of(&seen);
    assert_eq!(found[0].value, "does not run: ErrImagePull of r/plugin:1");
    assert!(found[0].mend.contains("images.tag"), "{found:#?}");
    // The Terminating pods of a node count only where no plugin is ready.
    let mut seen = well();
    objects(&mut seen.pods).push(json!({"metadata": {"name": "train", "namespace": "team",
        "deletionTimestamp": "2026-01-01T23:00:00Z"}, "spec": {"nodeName": "n1", "resourceClaims": [{"name": "gpu"}]}}));
    assert_eq!(findings::of(&seen), []);
}

#[test]
fn the_accounts_are_asked_about_what_their_programs_do() {
    let mut seen = well();
    let rights = |seen: &Seen, account: &str| -> Vec<String> {
        let all = rights::questions(seen).into_iter();
        all.filter(|one| one.account.ends_with(account))
            .map(|one| one.right)
            .collect()
    };
    let plain = rights(&seen, "vgpu-controller");
    assert!(
        !plain.iter().any(|right| right.starts_with("patch resourceclaims")),
        "{plain:?}"
    );
    let args = &mut objects(&mut seen.deployments)[0]["spec"]["template"]["spec"]["containers"][0]["args"];
    *args = json!(["--allocator=controller", "--quota", "--quota-evict-after=5s", "--usage"]);
    let more = rights(&seen, "vgpu-controller");
    assert!(
        more.contains(&"patch resourceclaims.resource.k8s.io/status".to_owned()),
        "{more:?}"
    );
    for right in ["create pods/eviction", "delete vgpuusages.dra.vgpu"] {
        assert!(more.iter().any(|one| one == right), "{more:?}");
    }
    let review = |right: &str| {
        let question = rights::questions(&seen).into_iter().find(|one| one.right == right);
        question.map(|one| one.review()["spec"].clone()).unwrap_or_default()
    };
    assert_eq!(
        review("create pods/eviction")["resourceAttributes"],
        json!({"verb": "create", "group": "", "resource": "pods", "subresource": "eviction", "namespace": ""})
    );
    assert_eq!(
        review("patch resourceclaims.resource.k8s.io/status"),
        json!({"user": "system:serviceaccount:dra-driver-vgpu:vgpu-plugin",
            "groups": ["system:serviceaccounts", "system:serviceaccounts:dra-driver-vgpu", "system:authenticated"],
            "resourceAttributes": {"verb": "patch", "group": "resource.k8s.io", "resource": "resourceclaims",
                "subresource": "status", "namespace": ""}})
    );
}

#[test]
fn of_containerd_1_7_nothing_is_said_to_be_well_that_nothing_shows() {
    let mut seen = well();
    objects(&mut seen.nodes)[0]["status"]["nodeInfo"]["containerRuntimeVersion"] = "containerd://1.7.35".into();
    assert_eq!(findings::unknown_cdi(&seen), None, "a container has its mounts");
    objects(&mut seen.claims).clear();
    assert_eq!(findings::of(&seen), []);
    let words = findings::unknown_cdi(&seen).unwrap_or_default();
    assert!(words.contains("--probe --node n1"), "{words}");
}

#[test]
fn what_a_pod_that_cannot_be_asked_has_written_is_told() {
    let mut seen = well();
    *objects(&mut seen.pods) = vec![plugin("n1", "False")];
    let condition = json!({"type": "Ready", "status": "False", "reason": "Library", "message": "disk full"});
    objects(&mut seen.vgpu_nodes)[0]["status"]["conditions"] = json!([condition]);
    for answer in ["", "answer: the pod does not answer\n"] {
        seen.not_ready
            .insert("dra-driver-vgpu/plugin-n1".to_owned(), answer.to_owned());
        let found = findings::of(&seen);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert_eq!(found[0].value, "is not ready: Library: disk full");
    }
    *objects(&mut seen.vgpu_nodes) = Vec::new();
    assert!(findings::of(&seen)[0].mend.contains("networkPolicy.from"));
}

#[test]
fn objects_that_a_tenant_labels_as_the_charts_are_not_taken_for_them() {
    let binding = |role: &str, account: &str, namespace: &str| {
        json!({"roleRef": {"name": role}, "subjects": [
            {"kind": "ServiceAccount", "name": account, "namespace": namespace}]})
    };
    // The tenant's account may read classes by the chart's value readers.subjects.
    let bindings = vec![
        binding("vgpu-plugin", "vgpu-plugin", NAMESPACE),
        binding("vgpu-reader", "vgpu-plugin", "team"),
    ];
    let mut seen = well();
    // Its plugin is gone, and a tenant's pod looks like one that is ready.
    let mut forged = plugin("n1", "True");
    forged["metadata"]["namespace"] = "team".into();
    *objects(&mut seen.pods) = vec![forged];
    seen.keep_releases(&Objects::Unread);
    assert_eq!(findings::of(&seen), [], "whose objects they are is not known");
    seen.keep_releases(&Objects::Read(bindings));
    let found = findings::of(&seen);
    assert_eq!(found[0].value, "has a GPU by its labels, and no pod of the plugin");
}

#[test]
fn escape_sequences_of_tenants_do_not_reach_the_terminal() {
    let mut seen = well();
    *objects(&mut seen.pods) = vec![plugin("n1", "False")];
    seen.not_ready.insert(
        "dra-driver-vgpu/plugin-n1".to_owned(),
        "gpus\u{1b}[31m: no\u{7} driver\n".to_owned(),
    );
    seen.unread.push("the right to \u{1b}]0;title".to_owned());
    let said = answer(seen).text();
    assert!(
        said.contains("no  driver") && said.contains("not checked: the right to  ]0;title"),
        "{said}"
    );
    assert!(
        !said.contains(|letter: char| letter.is_control() && letter != '\n'),
        "{said:?}"
    );
}

#[test]
fn where_too_little_can_be_read_nothing_is_said_to_be_well() {
    let mut seen = well();
    assert!(answer(well()).text().ends_with("nothing was found\n"));
    seen.slices = Objects::Unread;
    let mut answer = answer(seen);
    assert!(
        answer
            .text()
            .ends_with("too little can be read to say that all is well\n")
    );
    answer.probed = Some("on node n1".to_owned());
    assert!(answer.text().ends_with("the probe ran on node n1\nnothing was found\n"));
}
