//! The Helm chart as helm renders it: values that its schema refuses, and the flags that it passes to the two programs.
//!
//! Uses the helm that the end-to-end tests built (`make demo`, `make test`), or the one on PATH.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use vgpu_api::config::AllocationPolicy;

mod support;

use support::{helm, render};

/// Values, and words of the refusal.
const REFUSED: &str = "
plugin.share=4 | share
sotfGpu.state=/x | sotfGpu
plugin.shares=1000000 | /plugin/shares
plugin.shares=0 | /plugin/shares
allocator=both | /allocator
controller.replicas=many | /controller/replicas
controller.holdTimeout=30 | /controller/holdTimeout
controller.holdTimeout=4s | /controller/holdTimeout
controller.holdTimeout=601s | /controller/holdTimeout
controller.holdTimeout=11m | /controller/holdTimeout
allocator=null | missing property 'allocator'
controller.replicas=0 | /controller/replicas
images.registry= | images.registry=registry.example.com
images.registry=null | images.registry=registry.example.com
# The container runtime would complete it to docker.io/team.
images.registry=team | images.registry=registry.example.com/team
images.registry=https://r.example | images.registry=registry.example.com/team
# Nobody of this project owns the name there.
images.registry=docker.io | images.pullPolicy=Never
images.registry=docker.io | images.tag=dev
images.registry=index.docker.io,images.plugin=team/plugin | images.pullPolicy=Never
images.registry=docker.io/dra-driver-vgpu,images.plugin=p,images.controller=c | images.pullPolicy=Never
images.tag=1@sha256:0 | /images/tag
images.digests.plugin=sha256:12 | /images/digests/plugin
images.digests.cli= | cli
plugin.resources.limits.memory=1GB | /plugin/resources/limits/memory
plugin.resources.limit.memory=1Gi | limit
controller.resources.requests.cpu=ten | /controller/resources/requests/cpu
controller.resources.requests.memory=-1Gi | /controller/resources/requests/memory
plugin.allNodes=some | /plugin/allNodes
images.architectures={mips} | /images/architectures/0
controller.policy=Spread | 'binpack', 'spread', 'numa', 'pcie', 'nvlink', 'whole-gpus', 'first-fit'
controller.policy= | /controller/policy
deviceClasses.vgpu.config.allocationPolicy=best | /deviceClasses/vgpu/config/allocationPolicy
admission.foreignClasses=nic | /admission/foreignClasses
# They are texts of CEL.
admission.foreignClasses={it's} | /admission/foreignClasses/0
admission.derivedClasses={a b} | /admission/derivedClasses/0
admission.foreignResources={it's} | /admission/foreignResources/0
translate.dialects=hami | /translate/dialects
translate.dialects={HAMi} | /translate/dialects/0
translate.dialects={hami,hami} | /translate/dialects
translate.mode=warn | /translate/mode
translate.schedulers={a b} | /translate/schedulers/0
translate.schedulers={a\\,b} | /translate/schedulers/0
translate.highPriorityClass=High | /translate/highPriorityClass
translate.highPriorityClass=gpu | /translate/highPriorityClass
translate.limitVcudaCores=always | /translate/limitVcudaCores
translate.port=0 | /translate/port
quota.enabled=yes | /quota/enabled
quota.evictAfter=0s | /quota/evictAfter
quota.extendedResources={gpu} | /quota/extendedResources/0
translate.namespaces=all | namespaces
plugin.contextReserve=some | /plugin/contextReserve
gpuMemory.NVIDIA GB10=96GB | /gpuMemory/NVIDIA GB10
gpuMemory.NVIDIA GB10=96 | /gpuMemory/NVIDIA GB10
mig.instances=some | /mig/instances
mig.shares=true | /mig
# The plugin does not start with one that does not fit in 64 bits; 10Ti is more than any GPU has.
plugin.contextReserve=99999999999999999999Ti | /plugin/contextReserve
plugin.contextReserve=99999999999999 | /plugin/contextReserve
plugin.contextReserve=11Ti | /plugin/contextReserve
plugin.contextReserve=12345Gi | /plugin/contextReserve
plugin.contextReserve=-1 | /plugin/contextReserve
networkPolicy.monitorNamespace=Monitoring | /networkPolicy/monitorNamespace
# The name of a module, of which alone there would be logs.
plugin.logLevel=nonsense | /plugin/logLevel
controller.logLevel=loud | /controller/logLevel
plugin.logLevel=kube=debug | /plugin/logLevel
plugin.logLevel=info\\,kube=loud | /plugin/logLevel
plugin.kubeletRoot=kubelet | /plugin/kubeletRoot
# Kubernetes takes no mount path with a colon, and no hostPath with two dots.
plugin.kubeletRoot=/var/lib/kube:let | /plugin/kubeletRoot
plugin.cdiDir=/var/run/../cdi | /plugin/cdiDir
plugin.cdiDir=null | missing property 'cdiDir'
driverRoot=/run/.. | /driverRoot
driverRoot=null | missing property 'driverRoot'
softGpu.state=/var/lib:soft | /softGpu/state
plugin.libraryStore=lib | /plugin/libraryStore
# It would hide the plugin's own files.
plugin.libraryStore=/usr | /plugin/libraryStore
plugin.libraryStore=/ | /plugin/libraryStore
plugin.libraryStore=/home/../usr | /plugin/libraryStore
driverRoot=run/nvidia | /driverRoot
softGpu.state=state | /softGpu/state
softGpu.gpus=9 | /softGpu/gpus
softGpu.gpus=two | /softGpu/gpus
# It would not be used: the software GPU has a driver root of its own.
softGpu.gpus=2,driverRoot=/run/nvidia/driver | /driverRoot
controller.repeatAfter=1 | /controller/repeatAfter
images.pullPolicy=Sometimes | /images/pullPolicy
deviceClasses.mine.create=true | mine
deviceClasses.vgpu-slot.create=true | vgpu-slot
deviceClasses.vgpu.config.computePolicy=unlimited | /deviceClasses/vgpu/config/computePolicy
deviceClasses.vgpu.config.computepolicy=Unlimited | /deviceClasses/vgpu/config
deviceClasses.vgpu.config.memoryPolicy.type=Oversubscribe | /deviceClasses/vgpu/config/memoryPolicy
deviceClasses.vgpu.config.memoryPolicy.type=Oversubscribe,\
deviceClasses.vgpu.config.memoryPolicy.hostMemory=99999999999999999999Ti | /deviceClasses/vgpu/config/memoryPolicy
deviceClasses.vgpu.config.memoryPolicy.type=Oversubscribe,\
deviceClasses.vgpu.config.memoryPolicy.hostMemory=1.2.3Gi | /deviceClasses/vgpu/config/memoryPolicy
deviceClasses.gpu.config.sharing=Shared | /deviceClasses/gpu/config/sharing
deviceClasses.gpu.config.memoryEnforcement=Require | /deviceClasses/gpu/config/memoryEnforcement
deviceClasses.vgpu-monitor.config.memoryEnforcement=Require | /deviceClasses/vgpu-monitor/config/memoryEnforcement
deviceClasses.vgpu.config.sharing=Exclusive,\
deviceClasses.vgpu.config.memoryEnforcement=Require | /deviceClasses/vgpu/config/memoryEnforcement
";

#[test]
fn the_schema_refuses_what_the_values_do_not_list() {
    let Some(helm) = helm("the_schema_refuses_what_the_values_do_not_list") else {
        return;
    };
    for row in REFUSED.lines().filter(|row| !row.is_empty() && !row.starts_with('#')) {
        let (values, named) = row.split_once(" | ").expect("two cells");
        match render(&helm, &[values]) {
            Ok(_) => panic!("--set {values} is accepted"),
            Err(text) => assert!(text.contains(named), "--set {values}: {text}"),
        }
    }
}

/// A row: values that are set together. The first row sets none.
const ACCEPTED: &str = "
images.tag=dev driverRoot=/opt/soft softGpu.state=/var/lib/soft
softGpu.gpus=8 softGpu.state=/var/lib/soft images.softGpu=own/soft-gpu
plugin.shares=1 plugin.contextReserve=300Mi plugin.httpPort=1
plugin.contextReserve=0 plugin.nodeSelector.gpu=yes
plugin.contextReserve=314572800 plugin.logLevel=off
plugin.contextReserve=9999Mi controller.logLevel=trace
plugin.contextReserve=10Ti plugin.logLevel=warn\\,kube::client=debug
plugin.contextReserve=512k controller.logLevel=kube=warn\\,debug
deviceClasses.vgpu.config.computePolicy=Unlimited deviceClasses.vgpu.config.priority=High
deviceClasses.vgpu.config.memoryPolicy.type=Oversubscribe deviceClasses.vgpu.config.memoryPolicy.hostMemory=10Gi
deviceClasses.vgpu.config.memoryPolicy.type=Oversubscribe deviceClasses.vgpu.config.memoryPolicy.hostMemory=1.5Gi
deviceClasses.gpu.extendedResourceName=nvidia.com/gpu
deviceClasses.gpu.create=false admission.derivedClasses={a,b}
allocator=to-scheduler controller.replicas=3
controller.replicas=1 images.registry=localhost:5000/team/
images.registry=docker.io images.pullPolicy=Never images.tag=dev
images.registry=docker.io images.plugin=team/plugin images.controller=team/controller
plugin.resources.limits.memory=1.5Gi plugin.resources.limits.cpu=1 controller.resources.requests.cpu=500m
plugin.resources.requests.memory=1e9 controller.resources.limits.memory=1073741824 plugin.allNodes=true
translate.dialects={hami,koordinator,volcano,volcano-vgpu,gpu-manager,kai} \
translate.mode=report translate.schedulers={hami-scheduler,volcano} translate.highPriorityClass=vgpu-high translate.port=8443 controller.replicas=1
allocator=controller controller.holdTimeout=2m controller.policy=whole-gpus admission.foreignClasses={nic}";

#[test]
fn what_the_values_offer_is_accepted() {
    let Some(helm) = helm("what_the_values_offer_is_accepted") else {
        return;
    };
    for row in ACCEPTED.lines() {
        let values: Vec<&str> = row.split_whitespace().collect();
        let rendered = render(&helm, &values).unwrap_or_else(|text| panic!("{values:?}: {text}"));
        assert!(rendered.len() > 8, "{values:?}: {} objects", rendered.len());
    }
}

/// The plugin writes to the same path that the runtime reads: flag, mount and host path agree.
#[test]
fn the_library_is_put_where_the_values_say() {
    let Some(helm) = helm("the_library_is_put_where_the_values_say") else {
        return;
    };
    for (values, store) in [
        (
            "plugin.libraryStore=/home/kubernetes/bin/vgpu",
            "/home/kubernetes/bin/vgpu",
        ),
        ("plugin.libraryStore=/var/lib/vgpu", "/var/lib/vgpu"),
        // As with `helm upgrade --reuse-values` from a chart without the value.
        ("plugin.libraryStore=null", "/var/lib/vgpu"),
    ] {
        let rendered = render(&helm, &[values]).expect("rendered");
        let flag = format!("--library-store={store}");
        let flags = arguments(&rendered, "DaemonSet");
        assert!(flags.contains(&flag), "{flag}: {flags:?}");
        let pod = &one(&rendered, "DaemonSet")["spec"]["template"]["spec"];
        let named = |list: &Value| -> Value {
            let mut all = list.as_array().expect("a list").iter();
            all.find(|entry| entry["name"] == "library").expect("library").clone()
        };
        assert_eq!(named(&pod["volumes"])["hostPath"]["path"], store);
        assert_eq!(named(&pod["containers"][0]["volumeMounts"])["mountPath"], store);
    }
}

/// Each is one word of the plugin's arguments and one path of its volumes, whatever YAML or a template would make of it.
#[test]
fn paths_stay_what_they_are_in_the_values() {
    let Some(helm) = helm("paths_stay_what_they_are_in_the_values") else {
        return;
    };
    let path = r#"/a b/..c/.d/ # {{ .Values }} e, f 'g' "h" [i] & *j \k"#;
    let set = path.replace('\\', r"\\").replace(',', r"\,");
    let values =
        ["driverRoot", "plugin.kubeletRoot", "plugin.cdiDir", "softGpu.state"].map(|key| format!("{key}={set}"));
    let rendered = render(&helm, &values.each_ref().map(String::as_str)).expect("rendered");
    let flags = arguments(&rendered, "DaemonSet");
    for flag in ["driver-root-host", "kubelet-root", "cdi-dir", "soft-gpu-state"] {
        let flag = format!("--{flag}={path}");
        assert!(flags.contains(&flag), "{flag}: {flags:?}");
    }
    let pod = &one(&rendered, "DaemonSet")["spec"]["template"]["spec"];
    let named = |list: &Value, place: &[&str]| -> BTreeSet<String> {
        let at = |entry: &Value| place.iter().fold(entry.clone(), |value, key| value[key].clone());
        let all = list.as_array().expect("a list").iter().map(at);
        all.filter_map(|path| Some(path.as_str()?.to_owned())).collect()
    };
    let below = ["", "/plugins/dra.vgpu", "/plugins_registry", "/pod-resources"].map(|folder| path.to_owned() + folder);
    for found in [
        named(&pod["volumes"], &["hostPath", "path"]),
        named(&pod["containers"][0]["volumeMounts"], &["mountPath"]),
    ] {
        assert!(below.iter().all(|path| found.contains(path)), "{found:?}");
    }
    let state = pod["containers"][0]["env"].as_array().expect("variables").iter();
    assert_eq!(state.filter(|variable| variable["value"] == path).count(), 1);
}

/// The init container uses the same folders as the plugin, and without `softGpu.gpus` there is no init container.
#[test]
fn software_gpus_are_put_where_the_plugin_looks_for_a_driver() {
    let Some(helm) = helm("software_gpus_are_put_where_the_plugin_looks_for_a_driver") else {
        return;
    };
    for (set, state) in [
        ("softGpu.gpus=2", "/var/lib/soft-gpu/state"),
        ("softGpu.gpus=2,softGpu.state=/var/lib/other", "/var/lib/other"),
    ] {
        let rendered = render(&helm, &[set]).expect("rendered");
        let pod = &one(&rendered, "DaemonSet")["spec"]["template"]["spec"];
        let init = &pod["initContainers"][0];
        assert!(
            init["image"]
                .as_str()
                .is_some_and(|image| image.contains("dra-driver-vgpu/soft-gpu:")),
            "{init}"
        );
        assert_eq!(init["securityContext"]["privileged"], Value::Null);
        assert_eq!(
            init["args"],
            serde_json::json!([
                "--gpus=2",
                "--driver-root=/var/lib/soft-gpu/driver",
                format!("--state={state}"),
                "--node-root=/node"
            ])
        );
        let flags = arguments(&rendered, "DaemonSet");
        for flag in [
            "--driver-root-host=/var/lib/soft-gpu/driver".to_owned(),
            format!("--soft-gpu-state={state}"),
        ] {
            assert!(flags.contains(&flag), "{flag}: {flags:?}");
        }
        let volumes = pod["volumes"].as_array().expect("volumes");
        let is_mounted = |mount: &Value| volumes.iter().any(|volume| volume["name"] == mount["name"]);
        for container in [init, &pod["containers"][0]] {
            let mounts = container["volumeMounts"].as_array().expect("mounts");
            assert!(mounts.iter().all(is_mounted), "{mounts:?}");
        }
    }
    for set in ["softGpu.gpus=0", "softGpu=null"] {
        let rendered = render(&helm, &[set]).expect("rendered");
        let pod = &one(&rendered, "DaemonSet")["spec"]["template"]["spec"];
        assert_eq!(pod["initContainers"], Value::Null, "{set}");
        assert!(
            !arguments(&rendered, "DaemonSet")
                .iter()
                .any(|flag| flag.contains("soft-gpu")),
            "{set}"
        );
    }
}

/// Every class selects devices that the plugin publishes.
#[test]
fn device_classes_select_a_type_that_exists() {
    let Some(helm) = helm("device_classes_select_a_type_that_exists") else {
        return;
    };
    let rendered = render(&helm, &[]).expect("rendered");
    let classes: Vec<_> = rendered
        .iter()
        .filter(|object| object["kind"] == "DeviceClass")
        .collect();
    assert_eq!(classes.len(), 4);
    for class in classes {
        let expression = class["spec"]["selectors"][0]["cel"]["expression"]
            .as_str()
            .expect("CEL");
        let known = ["gpu", "mig", "monitor"].map(|kind| format!(".type == \"{kind}\""));
        assert!(known.iter().any(|end| expression.ends_with(end)), "{expression}");
    }
    let shared = render(&helm, &["mig.instances=shared"]).expect("rendered");
    let selector = |name: &str| {
        let class = shared
            .iter()
            .find(|object| object["kind"] == "DeviceClass" && object["metadata"]["name"] == name);
        class.expect("a class")["spec"]["selectors"][0]["cel"]["expression"].clone()
    };
    let of = |kind: &str| format!("device.attributes[\"dra.vgpu\"].type == \"{kind}\"");
    let expected = format!(
        "device.driver == \"dra.vgpu\" && ({} || {} && device.allowMultipleAllocations)",
        of("gpu"),
        of("mig")
    );
    assert_eq!(selector("vgpu"), expected.as_str());
    assert_eq!(
        selector("vgpu-mig"),
        format!("device.driver == \"dra.vgpu\" && {}", of("mig")).as_str()
    );
}

/// All rights of the chart's role of this kind and name, as `group/resource: verbs`.
fn rights(rendered: &[Value], kind: &str, role: &str) -> Vec<String> {
    let role = rendered
        .iter()
        .find(|object| object["kind"] == kind && object["metadata"]["name"] == role)
        .expect("the role");
    let words = |value: &Value| -> Vec<String> {
        let list = value.as_array().expect("a list");
        list.iter()
            .map(|word| word.as_str().expect("a word").to_owned())
            .collect()
    };
    let mut rights = Vec::new();
    for rule in role["rules"].as_array().expect("rules") {
        let named = match &rule["resourceNames"] {
            Value::Null => String::new(),
            names => format!(" named {}", words(names).join(" ")),
        };
        for group in words(&rule["apiGroups"]) {
            for resource in words(&rule["resources"]) {
                rights.push(format!(
                    "{group}/{resource}: {}{named}",
                    words(&rule["verbs"]).join(" ")
                ));
            }
        }
    }
    rights
}

/// The rights that the controller has in every mode.
const READS: [&str; 7] = [
    "resource.k8s.io/resourceclaims: list watch",
    "resource.k8s.io/resourceslices: list watch",
    "resource.k8s.io/deviceclasses: list watch",
    "resource.k8s.io/devicetaintrules: list watch",
    "/pods: list watch",
    "/nodes: list watch",
    "events.k8s.io/events: create patch",
];

/// The rights that the code uses: kubelet-plugin/src/api.rs and run.rs, driver/src/watch.rs, publish.rs, leader/ and placing/. A
/// call that is new there belongs here and in the chart.
#[test]
fn the_programs_have_the_rights_that_they_use_and_no_other() {
    let Some(helm) = helm("the_programs_have_the_rights_that_they_use_and_no_other") else {
        return;
    };
    let rendered = render(&helm, &[]).expect("rendered");
    assert_eq!(
        rights(&rendered, "ClusterRole", "x-plugin"),
        [
            "resource.k8s.io/resourceslices: list watch create update delete",
            "resource.k8s.io/resourceclaims: get",
            "resource.k8s.io/resourceclaims/status: patch",
            "resource.k8s.io/resourceclaims/driver: associated-node:patch named dra.vgpu",
            "/pods: list",
            "/nodes: get list watch",
            "dra.vgpu/vgpunodes: get create patch",
            "events.k8s.io/events: create",
        ]
    );
    assert_eq!(rights(&rendered, "ClusterRole", "x-controller"), READS);
    assert_eq!(
        rights(&rendered, "ClusterRole", "x-controller-usage"),
        [
            "dra.vgpu/vgpunodes: list watch",
            "dra.vgpu/vgpuusages: list create patch delete",
        ]
    );
    assert_eq!(rights(&rendered, "Role", "x-controller"), LEASE);
    // The values of an earlier release lack this field.
    for off in ["usage.enabled=false", "usage=null"] {
        let without = render(&helm, &[off]).expect("rendered");
        assert!(without.iter().all(|object| object["kind"] != "Role"), "{off}");
        let usage = ["x-controller-usage", "x-usage-view"];
        let is_of_usage = |object: &&Value| usage.iter().any(|name| object["metadata"]["name"] == **name);
        assert_eq!(without.iter().find(is_of_usage), None, "{off}");
        let flags = arguments(&without, "Deployment");
        let is_other = |flag: &&String| **flag == "--usage" || flag.starts_with("--lease-");
        assert_eq!(flags.iter().find(is_other), None, "{off}");
    }
}

/// The rights by which replicas elect a leader.
const LEASE: [&str; 2] = [
    "coordination.k8s.io/leases: create",
    "coordination.k8s.io/leases: get update named x-controller",
];

/// By default there is one replica as before: nothing depends on a VgpuUsage. With several, only one of them writes.
#[test]
fn usages_are_summed_by_default_and_by_one_replica() {
    let Some(helm) = helm("usages_are_summed_by_default_and_by_one_replica") else {
        return;
    };
    let rendered = render(&helm, &[]).expect("rendered");
    let flags = arguments(&rendered, "Deployment");
    for flag in ["--usage", "--lease-name=x-controller"] {
        assert!(flags.iter().any(|is| is == flag), "{flag}: {flags:?}");
    }
    let deployment = one(&rendered, "Deployment");
    assert_eq!(deployment["spec"]["replicas"], 1);
    assert!(deployment["spec"]["template"]["spec"]["affinity"].is_null());
}

/// A user of a single namespace may read its quota through the role `view`, and the cluster's offer through the
/// binding.
#[test]
fn users_read_what_is_offered_and_their_quota_and_write_neither() {
    let Some(helm) = helm("users_read_what_is_offered_and_their_quota_and_write_neither") else {
        return;
    };
    let offered = [
        "resource.k8s.io/deviceclasses: get list watch",
        "resource.k8s.io/resourceslices: get list watch",
        "resource.k8s.io/devicetaintrules: get list watch",
    ];
    let bindings = |rendered: &[Value]| -> Vec<Value> {
        let of = rendered
            .iter()
            .filter(|object| object["kind"] == "ClusterRoleBinding" && object["roleRef"]["name"] == "x-reader");
        of.map(|object| object["subjects"].clone()).collect()
    };
    let plain = render(&helm, &[]).expect("rendered");
    assert_eq!(rights(&plain, "ClusterRole", "x-reader"), offered);
    assert_eq!(bindings(&plain), Vec::<Value>::new());
    // The values of an earlier release lack this field.
    render(&helm, &["readers=null"]).expect("rendered");
    let rendered = render(
        &helm,
        &[
            "quota.enabled=true",
            "readers.subjects[0].kind=Group,readers.subjects[0].name=system:authenticated",
            "readers.subjects[1].kind=ServiceAccount,readers.subjects[1].name=a,readers.subjects[1].namespace=b",
        ],
    )
    .expect("rendered");
    let defaults = "dra.vgpu/vgpuquotadefaults: get list watch";
    assert_eq!(
        rights(&rendered, "ClusterRole", "x-reader"),
        [&offered[..], &[defaults]].concat()
    );
    assert_eq!(
        rights(&rendered, "ClusterRole", "x-quota-view"),
        ["dra.vgpu/vgpuquotas: get list watch"]
    );
    // VgpuNodes name the claims of all namespaces, so the binding gives nobody access to them.
    assert_eq!(
        rights(&rendered, "ClusterRole", "x-usage-view"),
        [
            "dra.vgpu/vgpuusages: get list watch",
            "dra.vgpu/vgpunodes: get list watch",
        ]
    );
    for name in ["x-reader", "x-quota-view", "x-usage-view"] {
        let role = rendered
            .iter()
            .find(|object| object["kind"] == "ClusterRole" && object["metadata"]["name"] == name);
        let labels = &role.expect("the role")["metadata"]["labels"];
        assert_eq!(labels["rbac.authorization.k8s.io/aggregate-to-view"], "true");
    }
    assert_eq!(
        bindings(&rendered),
        [serde_json::json!([
            {"kind": "Group", "name": "system:authenticated", "apiGroup": "rbac.authorization.k8s.io"},
            {"kind": "ServiceAccount", "name": "a", "namespace": "b"},
        ])]
    );
    for wrong in [
        "readers.subjects[0].kind=Team,readers.subjects[0].name=a",
        "readers.subjects[0].kind=ServiceAccount,readers.subjects[0].name=a",
        "readers.subjects[0].kind=Group,readers.subjects[0].name=a,readers.subjects[0].namespace=b",
    ] {
        let refused = render(&helm, &[wrong]).expect_err(wrong);
        assert!(refused.contains("/readers/subjects/0"), "{refused}");
    }
}

#[test]
fn only_in_controller_mode_the_controller_writes_claims_and_a_lease() {
    let Some(helm) = helm("only_in_controller_mode_the_controller_writes_claims_and_a_lease") else {
        return;
    };
    for allocator in ["controller", "to-scheduler"] {
        let rendered = render(&helm, &[&format!("allocator={allocator}")]).expect("rendered");
        let writes = [
            "resource.k8s.io/resourceslices: get",
            "resource.k8s.io/resourceclaims: patch",
            "resource.k8s.io/resourceclaims/status: patch",
            "resource.k8s.io/resourceclaims/binding: patch",
        ];
        let all: Vec<&str> = READS.into_iter().chain(writes).collect();
        assert_eq!(rights(&rendered, "ClusterRole", "x-controller"), all);
        assert_eq!(rights(&rendered, "Role", "x-controller"), LEASE);
    }
}

/// Without dialects there is nothing of this, which the tests above check.
#[test]
fn where_pods_are_translated_the_controller_writes_templates_annotations_and_a_lease() {
    let Some(helm) = helm("where_pods_are_translated_the_controller_writes_templates_annotations_and_a_lease") else {
        return;
    };
    let policies = |rendered: &[Value]| {
        let of = rendered
            .iter()
            .filter(|object| object["kind"] == "ValidatingAdmissionPolicyBinding");
        let names = of.map(|object| object["metadata"]["name"].as_str().unwrap_or_default().to_owned());
        names
            .filter(|name| name == "x-legacy-view" || name == "x-translated-templates")
            .collect::<Vec<_>>()
    };
    let without = render(&helm, &["translate.highPriorityClass=vgpu-high", "usage.enabled=false"]).expect("rendered");
    let flags = |rendered: &[Value]| {
        let flags = arguments(rendered, "Deployment").into_iter();
        flags
            .filter(|flag| flag.starts_with("--translate-") || flag.starts_with("--lease-"))
            .collect::<Vec<_>>()
    };
    assert_eq!((policies(&without), flags(&without)), (vec![], vec![]));
    let values = ["translate.dialects={hami,kai}", "translate.highPriorityClass=vgpu-high"];
    let rendered = render(&helm, &values).expect("rendered");
    assert!(rights(&rendered, "ClusterRole", "x-controller").starts_with(&READS.map(str::to_owned)));
    assert_eq!(
        rights(&rendered, "ClusterRole", "x-controller-translated"),
        [
            "resource.k8s.io/resourceclaimtemplates: list watch create delete",
            "/namespaces: list watch",
            "/pods: get patch",
            "resource.k8s.io/resourceclaims: get",
        ]
    );
    let lease = "coordination.k8s.io/leases: get update named x-controller".to_owned();
    assert!(rights(&rendered, "Role", "x-controller").contains(&lease));
    assert_eq!(policies(&rendered), ["x-legacy-view", "x-translated-templates"]);
    for flag in [
        "--translate-dialects=hami,kai",
        "--translate-high-priority-class=vgpu-high",
        "--lease-name=x-controller",
    ] {
        assert!(flags(&rendered).iter().any(|has| has == flag), "{flag}");
    }
    let deployment = one(&rendered, "Deployment");
    assert_eq!(deployment["spec"]["replicas"], 2);
    // The values of an earlier release lack this field.
    render(&helm, &["translate=null"]).expect("rendered");
    render(&helm, &["translate.dialects={nvshare}"]).expect_err("no dialect");
}

/// The first things that a user sees are `kubectl explain` and the columns of `kubectl get`.
#[test]
fn every_field_of_a_kind_is_described_and_every_column_has_a_name_of_its_own() {
    let Some(helm) = helm("every_field_of_a_kind_is_described_and_every_column_has_a_name_of_its_own") else {
        return;
    };
    let rendered = render(&helm, &["quota.enabled=true"]).expect("rendered");
    let kinds: Vec<&Value> = rendered
        .iter()
        .filter(|object| object["kind"] == "CustomResourceDefinition")
        .collect();
    assert_eq!(kinds.len(), 4);
    let mut bare = Vec::new();
    for kind in kinds {
        let version = &kind["spec"]["versions"][0];
        let columns = version["additionalPrinterColumns"].as_array().expect("columns");
        let names: Vec<&str> = columns.iter().filter_map(|column| column["name"].as_str()).collect();
        let distinct: std::collections::BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(distinct.len(), names.len(), "{names:?}");
        undescribed(
            &version["schema"]["openAPIV3Schema"],
            &kind["metadata"]["name"].to_string(),
            &mut bare,
        );
    }
    assert_eq!(bare, Vec::<String>::new());
}

/// The fields of a schema without a description.
fn undescribed(schema: &Value, at: &str, bare: &mut Vec<String>) {
    if schema["description"].as_str().is_none_or(str::is_empty) {
        bare.push(at.to_owned());
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        undescribed(field, &format!("{at}.{name}"), bare);
    }
    for each in ["items", "additionalProperties"] {
        if schema[each].is_object() {
            undescribed(&schema[each], &format!("{at}[]"), bare);
        }
    }
}

#[test]
fn quotas_are_the_leaders() {
    let Some(helm) = helm("quotas_are_the_leaders") else {
        return;
    };
    let of = |rendered: &[Value], kind: &str| {
        let named = rendered.iter().filter(|object| object["kind"] == kind);
        let names = named.filter_map(|object| object["metadata"]["name"].as_str());
        names
            .filter(|name| name.contains("quota") || name.contains("budget"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let off = render(&helm, &[]).expect("rendered");
    let none = [
        "CustomResourceDefinition",
        "MutatingAdmissionPolicy",
        "ValidatingAdmissionPolicy",
        "ClusterRole",
        "PriorityClass",
    ];
    assert!(none.iter().all(|kind| of(&off, kind).is_empty()));
    assert!(!arguments(&off, "Deployment").contains(&"--quota".to_owned()));
    let rendered = render(
        &helm,
        &["quota.enabled=true", "quota.extendedResources={nvidia.com/gpu}"],
    )
    .expect("rendered");
    assert_eq!(
        of(&rendered, "CustomResourceDefinition"),
        ["vgpuquotas.dra.vgpu", "vgpuquotadefaults.dra.vgpu"]
    );
    let crd = rendered
        .iter()
        .find(|object| object["metadata"]["name"] == "vgpuquotas.dra.vgpu");
    let schema = &crd.expect("the CRD")["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"];
    let status = serde_json::to_value(vgpu_quota::Status::default()).expect("a status");
    for field in status.as_object().expect("an object").keys() {
        let known = &schema["properties"][field];
        assert!(known.is_object(), "the API server drops status.{field}");
    }
    assert_eq!(of(&rendered, "MutatingAdmissionPolicy"), ["x-quota-gate"]);
    assert_eq!(
        of(&rendered, "ValidatingAdmissionPolicy"),
        [
            "x-quota-evictions",
            "x-quota-gated",
            "x-quota-opened",
            "x-quota-status",
            "x-quota-label",
            "x-quota-spec",
            "x-quota-default"
        ]
    );
    assert_eq!(of(&rendered, "PriorityClass"), ["vgpu-over-budget"]);
    assert_eq!(
        rights(&rendered, "ClusterRole", "x-controller-quota"),
        [
            "dra.vgpu/vgpuquotas: get list watch create patch",
            "dra.vgpu/vgpuquotadefaults: list watch",
            "dra.vgpu/vgpuquotas/status: update",
            "/namespaces: list watch patch",
            "/resourcequotas: list watch",
            "/pods: get patch",
            "/pods/eviction: create",
            "resource.k8s.io/resourceclaims: get",
        ]
    );
    for flag in ["--quota", "--quota-evict-after=60s", "--lease-name=x-controller"] {
        assert!(
            arguments(&rendered, "Deployment").iter().any(|has| has == flag),
            "{flag}"
        );
    }
    let gate = rendered
        .iter()
        .find(|object| object["metadata"]["name"] == "x-quota-gate" && object["spec"]["mutations"].is_array());
    let gate = gate.expect("the policy");
    assert_eq!(gate["spec"]["reinvocationPolicy"], "IfNeeded");
    // A policy whose matchConditions do not match before the webhook is not asked again after it.
    assert!(gate["spec"]["matchConditions"].is_null());
    // A policy with a kind of ours refuses every pod of the cluster for half a minute after an API server started.
    let policies = rendered
        .iter()
        .filter(|object| !object["spec"]["matchConstraints"].is_null());
    for policy in policies {
        assert!(policy["spec"]["paramKind"].is_null(), "{}", policy["metadata"]["name"]);
    }
    for name in ["x-quota-gate", "x-quota-gated"] {
        let mut of_pods = rendered.iter().filter(|object| object["metadata"]["name"] == name);
        let constraints = &of_pods.next().expect("the policy")["spec"]["matchConstraints"];
        let key = &constraints["namespaceSelector"]["matchExpressions"][0]["key"];
        assert_eq!(key, vgpu_quota::names::LABEL, "other namespaces are never touched");
    }
    assert!(gate.to_string().contains("'nvidia.com/gpu'"));
    // The values of an earlier release lack this field.
    render(&helm, &["quota=null"]).expect("rendered");
    // In these versions the policy that sets the gate is a beta that is off by default, so quotas would not be
    // enforced.
    for version in ["1.34.0", "1.35.3"] {
        let refused = support::render_on(&helm, version, &["quota.enabled=true"]).expect_err("refused");
        assert!(refused.contains("set quota.enabled=false there"), "{refused}");
        support::render_on(&helm, version, &[]).expect("rendered");
    }
    support::render_on(&helm, "1.36.3", &["quota.enabled=true"]).expect("rendered");
}

#[test]
fn nvidias_runtime_is_shown_no_gpu_unless_the_values_say_so() {
    let Some(helm) = helm("nvidias_runtime_is_shown_no_gpu_unless_the_values_say_so") else {
        return;
    };
    for (value, expected) in [("void", "void"), ("dialect", "dialect"), ("null", "void")] {
        let rendered = render(&helm, &[&format!("plugin.visibleDevices={value}")]).expect("rendered");
        let flag = format!("--visible-devices={expected}");
        assert!(arguments(&rendered, "DaemonSet").contains(&flag), "{value}");
    }
    render(&helm, &["plugin.visibleDevices=all"]).expect_err("refused");
}

#[test]
fn breaches_are_reported_unless_the_values_say_kill_and_the_nodes_processes_are_seen_unless_they_say_no() {
    let Some(helm) =
        helm("breaches_are_reported_unless_the_values_say_kill_and_the_nodes_processes_are_seen_unless_they_say_no")
    else {
        return;
    };
    // null: the values of an earlier release lack this field.
    for (value, expected) in [("report", "report"), ("kill", "kill"), ("null", "report")] {
        let rendered = render(&helm, &[&format!("plugin.onBreach={value}")]).expect("rendered");
        let flag = format!("--on-breach={expected}");
        assert!(arguments(&rendered, "DaemonSet").contains(&flag), "{value}");
    }
    render(&helm, &["plugin.onBreach=stop"]).expect_err("refused");
    for (value, expected) in [("true", true), ("false", false), ("null", true)] {
        let rendered = render(&helm, &[&format!("plugin.hostPID={value}")]).expect("rendered");
        let plugin = one(&rendered, "DaemonSet");
        assert_eq!(plugin["spec"]["template"]["spec"]["hostPID"], expected, "{value}");
    }
}

#[test]
fn xids_that_do_not_count_are_a_list() {
    let Some(helm) = helm("xids_that_do_not_count_are_a_list") else {
        return;
    };
    let flag = |values: &[&str]| {
        let rendered = render(&helm, values).expect("rendered");
        let mut all = arguments(&rendered, "DaemonSet").into_iter();
        all.find(|argument| argument.starts_with("--ignored-xids"))
    };
    assert_eq!(flag(&[]).as_deref(), Some("--ignored-xids=13,31,43,45,68,109"));
    assert_eq!(
        flag(&["plugin.ignoredXids={94,13}"]).as_deref(),
        Some("--ignored-xids=94,13")
    );
    // The values of an earlier release lack this field: the plugin uses its own list.
    assert_eq!(flag(&["plugin.ignoredXids=null"]), None);
    for wrong in [
        "plugin.ignoredXids={all}",
        "plugin.ignoredXids={0}",
        "plugin.ignoredXids=13",
    ] {
        render(&helm, &[wrong]).expect_err(wrong);
    }
}

#[test]
fn metrics_are_closed_to_pods_but_the_monitors_and_scraped_only_if_the_values_say_so() {
    let Some(helm) = helm("metrics_are_closed_to_pods_but_the_monitors_and_scraped_only_if_the_values_say_so") else {
        return;
    };
    let of = |rendered: &[Value], kind: &str| -> Vec<Value> {
        rendered
            .iter()
            .filter(|object| object["kind"] == kind)
            .cloned()
            .collect()
    };
    for off in ["networkPolicy=null", "networkPolicy.enabled=false"] {
        let plain = render(&helm, &[off, "podMonitor=null"]).expect("rendered");
        assert!(of(&plain, "NetworkPolicy").is_empty() && of(&plain, "PodMonitor").is_empty());
        // Without a NetworkPolicy, Prometheus is not shut out.
        render(&helm, &[off, "podMonitor.enabled=true"]).expect("rendered");
    }
    let closed = of(&render(&helm, &[]).expect("rendered"), "NetworkPolicy");
    assert_eq!(closed.len(), 2);
    for policy in &closed {
        assert_eq!(policy["spec"]["policyTypes"], serde_json::json!(["Ingress"]));
        assert!(policy["spec"]["ingress"].is_null(), "nobody: {policy}");
    }
    let refused = render(&helm, &["podMonitor.enabled=true"]).expect_err("Prometheus would be shut out");
    assert!(refused.contains("networkPolicy.monitorNamespace"), "{refused}");
    let both = [
        "podMonitor.enabled=true",
        "podMonitor.labels.release=x",
        "networkPolicy.monitorNamespace=monitoring",
    ];
    let rendered = render(&helm, &both).expect("rendered");
    let expected = serde_json::json!([{"from": [{"namespaceSelector": {"matchLabels":
        {"kubernetes.io/metadata.name": "monitoring"}}}], "ports": [{"protocol": "TCP", "port": "http"}]}]);
    for policy in of(&rendered, "NetworkPolicy") {
        assert_eq!(policy["spec"]["ingress"], expected);
    }
    // A policy has no effect on a pod in the host's network.
    let plugin = &one(&rendered, "DaemonSet")["spec"]["template"]["spec"];
    assert!(plugin["hostNetwork"].is_null(), "{plugin}");
    let monitor = &of(&rendered, "PodMonitor")[0];
    assert_eq!(monitor["metadata"]["labels"]["release"], "x");
    let endpoint = &monitor["spec"]["podMetricsEndpoints"][0];
    assert_eq!(
        (&endpoint["port"], &endpoint["honorLabels"]),
        (&"http".into(), &true.into())
    );
    // It must select the pods of both programs.
    for kind in ["DaemonSet", "Deployment"] {
        let pods = &of(&rendered, kind)[0]["spec"]["template"];
        let labels = monitor["spec"]["selector"]["matchLabels"].as_object().expect("labels");
        assert!(
            labels
                .iter()
                .all(|(key, value)| pods["metadata"]["labels"][key] == *value),
            "{kind}"
        );
        let ports = pods["spec"]["containers"][0]["ports"].as_array().expect("ports");
        assert!(ports.iter().any(|port| port["name"] == "http"), "{kind}");
    }
    let open = [
        "podMonitor.enabled=true",
        "networkPolicy.from[0].podSelector.matchLabels.app=prometheus",
        "translate.dialects={hami}",
    ];
    let rendered = render(&helm, &open).expect("rendered");
    let rules = |component: &str| {
        let all = of(&rendered, "NetworkPolicy");
        let one = all
            .iter()
            .find(|policy| policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == component);
        let rules = one.expect("a policy")["spec"]["ingress"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        rules
            .iter()
            .map(|rule| (rule["from"].is_array(), rule["ports"][0]["port"].clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(rules("plugin"), [(true, "http".into())]);
    assert_eq!(rules("controller"), [(true, "http".into()), (false, "webhook".into())]);
    let often = ["podMonitor.interval=often", "networkPolicy.monitorNamespace=m"];
    render(&helm, &often).expect_err("refused");
}

/// The chart's hooks of this kind, with these values.
fn hooks(helm: &Path, kind: &str, values: &[&str]) -> Vec<Value> {
    let all = support::template(helm, "1.37.1", &[], values)
        .expect("rendered")
        .into_iter();
    all.filter(|object| object["metadata"]["annotations"]["helm.sh/hook"] == kind)
        .collect()
}

/// The test pod may do no more than `vgpu doctor --probe` in its own namespace, and uses the image with that program.
#[test]
fn helm_test_is_a_probe_with_rights_in_its_namespace_alone() {
    let Some(helm) = helm("helm_test_is_a_probe_with_rights_in_its_namespace_alone") else {
        return;
    };
    let values = [
        "images.registry=r.example",
        "images.tag=dev",
        "images.pullSecrets[0].name=s",
    ];
    let objects = hooks(&helm, "test", &values);
    assert_eq!(
        rights(&objects, "Role", "x-test"),
        [
            "/pods: list create delete",
            "resource.k8s.io/resourceclaimtemplates: list create delete",
            "events.k8s.io/events: list",
            "apps/deployments: list",
        ]
    );
    let kinds: Vec<&str> = objects.iter().filter_map(|object| object["kind"].as_str()).collect();
    assert_eq!(kinds, ["ServiceAccount", "Role", "RoleBinding", "Pod"]);
    let annotations = &one(&objects, "Pod")["metadata"]["annotations"];
    assert_eq!(annotations["helm.sh/hook-output-log-policy"], "hook-failed");
    let pod = &one(&objects, "Pod")["spec"];
    assert_eq!(pod["serviceAccountName"], "x-test");
    assert_eq!(one(&objects, "RoleBinding")["subjects"][0]["name"], "x-test");
    let rendered = render(&helm, &values).expect("rendered");
    let controller = &one(&rendered, "Deployment")["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(container["image"], controller["containers"][0]["image"]);
    assert_eq!(pod["imagePullSecrets"], controller["imagePullSecrets"]);
    let words: Vec<&str> = container["command"]
        .as_array()
        .expect("words")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    assert_eq!(words, ["/usr/bin/vgpu", "doctor", "--probe", "--namespace=n"]);
    // Without the class there is nothing to probe.
    assert!(hooks(&helm, "test", &["deviceClasses.vgpu.create=false"]).is_empty());
}

/// The check only lists and changes nothing, and the program accepts its arguments.
#[test]
fn an_uninstall_first_runs_a_check_that_may_only_list() {
    use clap::Parser as _;
    let Some(helm) = helm("an_uninstall_first_runs_a_check_that_may_only_list") else {
        return;
    };
    let objects = hooks(&helm, "pre-delete", &["images.pullSecrets[0].name=s"]);
    let kinds: Vec<&str> = objects.iter().filter_map(|object| object["kind"].as_str()).collect();
    assert_eq!(kinds, ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Job"]);
    assert_eq!(
        rights(&objects, "ClusterRole", "x-uninstall"),
        ["resource.k8s.io/resourceclaims: list", "/pods: list"]
    );
    assert_eq!(
        one(&objects, "ClusterRoleBinding")["subjects"][0]["name"],
        "x-uninstall"
    );
    let job = one(&objects, "Job");
    let annotations = &job["metadata"]["annotations"];
    assert_eq!(annotations["helm.sh/hook-output-log-policy"], "hook-failed");
    let pod = &job["spec"]["template"]["spec"];
    assert_eq!(pod["serviceAccountName"], "x-uninstall");
    assert_eq!(pod["imagePullSecrets"][0]["name"], "s");
    let rendered = render(&helm, &[]).expect("rendered");
    let controller = &one(&rendered, "Deployment")["spec"]["template"]["spec"]["containers"][0];
    let container = &pod["containers"][0];
    assert_eq!(container["image"], controller["image"]);
    let words = ["command", "args"].map(|key| container[key].as_array().expect("words").clone());
    let words = words.iter().flatten().filter_map(Value::as_str);
    let flags = vgpu_controller::Flags::try_parse_from(words).expect("known arguments");
    let Some(vgpu_controller::Command::CheckUninstall(flags)) = flags.command else {
        panic!("another command: {flags:?}");
    };
    assert_eq!((flags.release.as_str(), flags.namespace.as_str()), ("x", "n"));
}

#[test]
fn images_come_from_the_registry_by_tag_or_by_digest() {
    let Some(helm) = helm("images_come_from_the_registry_by_tag_or_by_digest") else {
        return;
    };
    let images = |values: &[&str]| {
        let rendered = render(&helm, values).expect("rendered");
        let of = |kind: &str| {
            let containers = &one(&rendered, kind)["spec"]["template"]["spec"]["containers"];
            containers[0]["image"].as_str().expect("an image").to_owned()
        };
        [of("DaemonSet"), of("Deployment")]
    };
    assert_eq!(
        images(&["images.registry=localhost:5000/team/,images.tag=dev"]),
        [
            "localhost:5000/team/dra-driver-vgpu/kubelet-plugin:dev",
            "localhost:5000/team/dra-driver-vgpu/controller:dev"
        ]
    );
    assert_eq!(
        images(&["images.registry=docker.io,images.pullPolicy=Never"])[0],
        format!("docker.io/dra-driver-vgpu/kubelet-plugin:{}", env!("CARGO_PKG_VERSION"))
    );
    let digest = |of: &str| format!("sha256:{}", of.repeat(64));
    let by_digest = format!(
        "images.digests.plugin={},images.digests.controller={}",
        digest("a"),
        digest("b")
    );
    assert_eq!(
        images(&[&by_digest]),
        [
            format!("r.example/dra-driver-vgpu/kubelet-plugin@{}", digest("a")),
            format!("r.example/dra-driver-vgpu/controller@{}", digest("b"))
        ]
    );
    // A digest identifies the image, whatever registry it is in.
    images(&["images.registry=docker.io", &by_digest]);
    let refused = render(&helm, &["images.tag=dev", &by_digest]).expect_err("which of them?");
    assert!(refused.contains("images.digests=null"), "{refused}");
    // The values of an earlier release lack this field.
    images(&["images.digests=null"]);
}

/// What helm prints after an installation: helm itself renders it only for a cluster.
fn notes(helm: &Path, values: &[&str]) -> String {
    let chart = Path::new(env!("CARGO_TARGET_TMPDIR")).join("notes");
    let templates = chart.join("templates");
    let _ = std::fs::remove_dir_all(&chart); // of an earlier run
    let copied = Command::new("cp").arg("-rT").arg(support::chart()).arg(&chart).status();
    assert!(copied.expect("cp").success());
    let text = std::fs::read_to_string(templates.join("NOTES.txt")).expect("notes");
    let named = format!("{{{{ define \"notes\" }}}}{text}{{{{ end }}}}");
    std::fs::write(templates.join("_notes.tpl"), named).expect("written");
    let object = "notes: {{ include \"notes\" . | quote }}";
    std::fs::write(templates.join("notes.yaml"), object).expect("written");
    let only = ["--kube-version", "1.37.1", "--show-only", "templates/notes.yaml"];
    let objects = support::template_of(&chart, helm, ["x", "n"], &only, values)
        .unwrap_or_else(|text| panic!("{values:?}: {text}"));
    objects[0]["notes"].as_str().expect("a text").to_owned()
}

/// The objects that whoever pastes the notes' first command applies.
fn first_pod(helm: &Path, values: &[&str]) -> Vec<Value> {
    let text = notes(helm, values);
    let pasted = text
        .split_once("<<'EOF'\n")
        .and_then(|(_, rest)| rest.split_once("\nEOF\n"));
    serde_saphyr::from_multiple(pasted.unwrap_or_else(|| panic!("no manifest in {text}")).0).expect("YAML")
}

#[test]
fn the_notes_have_the_readmes_pod_with_the_image_of_these_values() {
    let Some(helm) = helm("the_notes_have_the_readmes_pod_with_the_image_of_these_values") else {
        return;
    };
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let readme = std::fs::read_to_string(readme).expect("README.md");
    let block = readme
        .split_once("```yaml\n")
        .and_then(|(_, rest)| rest.split_once("```"));
    let readmes: Vec<Value> = serde_saphyr::from_multiple(block.expect("a block").0).expect("YAML");
    // A chart whose images' registry is the README's, and the tag of its version.
    assert_eq!(first_pod(&helm, &["images.registry=registry.example.com"]), readmes);

    let image = |values: &[&str]| {
        let objects = first_pod(&helm, values);
        let container = &one(&objects, "Pod")["spec"]["containers"][0];
        container["image"].as_str().expect("an image").to_owned()
    };
    let digest = format!("sha256:{}", "a".repeat(64));
    assert_eq!(
        image(&[&format!("images.digests.client={digest}")]),
        format!("r.example/dra-driver-vgpu/client@{digest}")
    );
    let imported = ["images.registry=docker.io,images.tag=dev,images.pullPolicy=Never"];
    assert_eq!(image(&imported), "docker.io/dra-driver-vgpu/client:dev");
    let objects = first_pod(&helm, &imported);
    assert_eq!(
        one(&objects, "Pod")["spec"]["containers"][0]["imagePullPolicy"],
        "Never"
    );
    // Nobody owns that name there, and the values of an earlier chart have none.
    for values in [
        "images.registry=docker.io,images.plugin=team/plugin,images.controller=team/controller",
        "images.client=null",
    ] {
        let fallback = format!(
            "registry.example.com/dra-driver-vgpu/client:{}",
            env!("CARGO_PKG_VERSION")
        );
        assert_eq!(image(&[values]), fallback, "{values}");
    }
    let secret = first_pod(&helm, &["images.pullSecrets[0].name=s"]);
    assert_eq!(one(&secret, "Pod")["spec"]["imagePullSecrets"][0]["name"], "s");
    assert!(!notes(&helm, &["deviceClasses.vgpu.create=false"]).contains("EOF"));
}

/// The nodeSelectorTerms of the plugin, as text.
fn plugin_terms(helm: &Path, values: &[&str]) -> Option<String> {
    let rendered = render(helm, values).expect("rendered");
    let affinity = &one(&rendered, "DaemonSet")["spec"]["template"]["spec"]["affinity"];
    let terms = &affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    terms.is_array().then(|| terms.to_string())
}

#[test]
fn the_plugin_goes_where_labels_say_there_is_a_gpu_unless_the_values_choose() {
    let Some(helm) = helm("the_plugin_goes_where_labels_say_there_is_a_gpu_unless_the_values_choose") else {
        return;
    };
    let label =
        |key: &str| serde_json::json!({"matchExpressions": [{"key": key, "operator": "In", "values": ["true"]}]});
    let labels = [
        "nvidia.com/gpu.present",
        "feature.node.kubernetes.io/pci-10de.present",
        "dra.vgpu/gpu",
    ];
    let terms = Value::from(labels.map(label).to_vec());
    assert_eq!(plugin_terms(&helm, &[]), Some(terms.to_string()));
    for everywhere in [
        "plugin.allNodes=true",
        "softGpu.state=/var/lib/soft",
        "plugin.nodeSelector.gpu=yes",
        // The values of an earlier release, whose plugin ran on every Linux node, lack this field.
        "plugin.allNodes=null",
    ] {
        assert_eq!(plugin_terms(&helm, &[everywhere]), None, "{everywhere}");
    }
    let own = "plugin.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]\
               .matchExpressions[0]";
    let values = [format!("{own}.key=gpu"), format!("{own}.operator=Exists")].join(",");
    let chosen = plugin_terms(&helm, &[&values]).expect("terms");
    assert_eq!(chosen, r#"[{"matchExpressions":[{"key":"gpu","operator":"Exists"}]}]"#);
}

#[test]
fn a_pod_monitor_needs_its_kind() {
    let Some(helm) = helm("a_pod_monitor_needs_its_kind") else {
        return;
    };
    let values = ["podMonitor.enabled=true", "networkPolicy.monitorNamespace=m"];
    let refused = support::template(&helm, "1.37.1", &[], &values).expect_err("no such kind");
    assert!(
        refused.contains("--api-versions monitoring.coreos.com/v1/PodMonitor"),
        "{refused}"
    );
    render(&helm, &values).expect("rendered");
}

#[test]
fn pods_run_on_nodes_of_the_images_architecture() {
    let Some(helm) = helm("pods_run_on_nodes_of_the_images_architecture") else {
        return;
    };
    for (values, architecture) in [
        ("images.architectures={amd64}", Some("amd64")),
        ("images.architectures={arm64}", Some("arm64")),
        // The runtime takes the one of the node.
        ("images.architectures={amd64,arm64}", None),
        // The values of an earlier release lack this field.
        ("images.architectures=null", Some("amd64")),
    ] {
        let rendered = render(&helm, &[values]).expect("rendered");
        for kind in ["DaemonSet", "Deployment"] {
            let selector = &one(&rendered, kind)["spec"]["template"]["spec"]["nodeSelector"];
            assert_eq!(selector["kubernetes.io/os"], "linux", "{values}");
            assert_eq!(
                selector["kubernetes.io/arch"].as_str(),
                architecture,
                "{values}: {kind}"
            );
        }
    }
}

fn one<'a>(rendered: &'a [Value], kind: &str) -> &'a Value {
    let mut objects = rendered.iter().filter(|object| object["kind"] == kind);
    objects.next().unwrap_or_else(|| panic!("no {kind}"))
}

/// The arguments of the container of the object of this kind.
fn arguments(rendered: &[Value], kind: &str) -> Vec<String> {
    let object = one(rendered, kind);
    let arguments = object["spec"]["template"]["spec"]["containers"][0]["args"].as_array();
    let arguments = arguments.expect("arguments").iter();
    arguments
        .map(|argument| argument.as_str().expect("a text").to_owned())
        .collect()
}

#[test]
fn plugin_and_controller_change_modes_together() {
    let Some(helm) = helm("plugin_and_controller_change_modes_together") else {
        return;
    };
    for (value, plugin, controller, replicas) in [
        ("scheduler", "scheduler", "scheduler", 1),
        ("controller", "controller", "controller", 2),
        ("to-scheduler", "scheduler", "controller", 2),
    ] {
        let values = [&format!("allocator={value}"), "usage.enabled=false"];
        let rendered = render(&helm, &values).expect("rendered");
        let says = |kind: &str, flag: &str| arguments(&rendered, kind).iter().any(|argument| argument == flag);
        assert!(says("DaemonSet", &format!("--allocator={plugin}")), "{value}");
        assert!(says("Deployment", &format!("--allocator={controller}")), "{value}");
        assert_eq!(
            says("Deployment", "--lease-name=x-controller"),
            controller == "controller"
        );
        let deployment = one(&rendered, "Deployment");
        assert_eq!(deployment["spec"]["replicas"], replicas, "{value}");
    }
    let without_policy = render(&helm, &["allocator=controller", "admission.claims=false"]);
    assert!(without_policy.expect_err("refused").contains("admission.claims: false"));
}

#[test]
fn two_instances_of_the_plugin_can_run_on_a_node() {
    let Some(helm) = helm("two_instances_of_the_plugin_can_run_on_a_node") else {
        return;
    };
    let rendered = render(&helm, &[]).expect("rendered");
    let set = one(&rendered, "DaemonSet");
    let update = &set["spec"]["updateStrategy"]["rollingUpdate"];
    assert_eq!((&update["maxSurge"], &update["maxUnavailable"]), (&1.into(), &0.into()));
    let pod = &set["spec"]["template"]["spec"];
    let environment = pod["containers"][0]["env"].as_array().expect("variables");
    let uid = environment.iter().find(|variable| variable["name"] == "POD_UID");
    assert_eq!(
        uid.expect("POD_UID")["valueFrom"]["fieldRef"]["fieldPath"],
        "metadata.uid"
    );
    // A port of the node can only be used by one pod.
    assert_eq!(pod["hostNetwork"], serde_json::Value::Null);
    let ports = pod["containers"][0]["ports"].as_array().expect("ports");
    assert!(ports.iter().all(|port| port["hostPort"].is_null()));
}

/// Tries each policy. If it is missing, as in the values of an earlier release, it is binpack.
#[test]
fn the_controller_is_started_with_the_policy_that_the_values_name() {
    let Some(helm) = helm("the_controller_is_started_with_the_policy_that_the_values_name") else {
        return;
    };
    let flags = |values: &[&str]| {
        let values = [&["allocator=controller"], values].concat();
        let rendered = render(&helm, &values).expect("rendered");
        let flags = arguments(&rendered, "Deployment").into_iter();
        flags.filter(|flag| flag.starts_with("--policy=")).collect::<Vec<_>>()
    };
    assert_eq!(flags(&[]), ["--policy=binpack"]);
    assert_eq!(flags(&["controller.policy=null"]), ["--policy=binpack"]);
    let without_hold = render(&helm, &["allocator=controller", "controller.holdTimeout=null"]).expect("rendered");
    assert!(arguments(&without_hold, "Deployment").contains(&"--hold-timeout=30s".to_owned()));
    for policy in AllocationPolicy::ALL {
        let value = format!("controller.policy={}", policy.name());
        assert_eq!(flags(&[&value]), [format!("--policy={}", policy.name())]);
    }
}

/// The texts of the policies for claims.
fn policies(rendered: &[Value]) -> String {
    let policies = rendered.iter().filter(|object| {
        let kind = object["kind"] == "ValidatingAdmissionPolicy";
        kind && object["spec"]["matchConstraints"]["resourceRules"][0]["resources"][0] != "resourceslices"
    });
    policies.map(|policy| policy.to_string()).collect()
}

#[test]
fn in_controller_mode_only_foreign_classes_tolerate_everything() {
    let Some(helm) = helm("in_controller_mode_only_foreign_classes_tolerate_everything") else {
        return;
    };
    let values = [
        "admission.foreignClasses={nic,gpu,mine}",
        "admission.derivedClasses={mine}",
    ];
    let scheduler = policies(&render(&helm, &values).expect("rendered"));
    assert!(!scheduler.contains("variables.foreign"));
    let values = [&values[..], &["allocator=controller"]].concat();
    let controller = policies(&render(&helm, &values).expect("rendered"));
    assert_eq!(
        controller
            .matches("!(a.ask.deviceClassName in variables.foreign)")
            .count(),
        2
    );
    // A class of ours is never foreign, even if the list contains it.
    assert_eq!(
        controller.matches(r#""expression":"['nic']","name":"foreign""#).count(),
        2
    );
}

/// Pages of `docs/platforms` about no platform.
const NO_PLATFORM: [&str; 2] = ["README", "crio"];

/// The names of the files with this ending in a folder of the clone, without the ending.
fn names_in(folder: &str, ending: &str) -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"));
    names
        .filter_map(|name| Some(name.strip_suffix(ending)?.to_owned()))
        .collect()
}

fn platforms() -> BTreeSet<String> {
    names_in("deploy/platforms", ".yaml")
}

/// Each platform has a values file and a page that names it, and the list of pages has a row for it.
#[test]
fn every_platform_has_values_and_a_page() {
    let pages = names_in("docs/platforms", ".md");
    let expected = platforms().into_iter().chain(NO_PLATFORM.map(str::to_owned));
    assert_eq!(pages, expected.collect());
    let page = |name: &str| {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../docs/platforms/{name}.md"));
        std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
    };
    let list = page("README");
    for name in platforms() {
        let values = format!("deploy/platforms/{name}.yaml");
        assert!(
            page(&name).contains(&values),
            "docs/platforms/{name}.md does not name {values}"
        );
        let is_row = |line: &str| line.starts_with("| [") && line.contains(&format!("]({name}.md)"));
        assert!(
            list.lines().any(is_row),
            "docs/platforms/README.md has no row for {name}.md"
        );
    }
}

/// The values in a platform's file reach the plugin's pod; a file without values changes nothing.
#[test]
fn every_platforms_values_are_rendered() {
    let Some(helm) = helm("every_platforms_values_are_rendered") else {
        return;
    };
    let rendered = |files: &[&str]| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/platforms");
        let paths: Vec<String> = files
            .iter()
            .map(|name| folder.join(name).with_extension("yaml").display().to_string())
            .collect();
        let values: Vec<&str> = paths.iter().flat_map(|path| ["--values", path]).collect();
        support::template(&helm, "1.37.1", &values, &[]).unwrap_or_else(|text| panic!("{files:?}: {text}"))
    };
    let plain = rendered(&[]);
    for name in platforms() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../deploy/platforms/{name}.yaml"));
        let text = std::fs::read_to_string(&file).expect("values");
        let objects = rendered(&[&name]);
        assert_eq!(objects == plain, text.ends_with("\n{}\n"), "{name}");
        let volumes = one(&objects, "DaemonSet")["spec"]["template"]["spec"]["volumes"].to_string();
        let folders = text.lines().filter_map(|line| line.split_once(": /"));
        for (key, folder) in folders.filter(|(key, _)| !key.starts_with('#')) {
            assert!(
                volumes.contains(&format!("\"/{folder}")),
                "{name}: {}: /{folder} is no volume of the plugin",
                key.trim()
            );
        }
    }
    // The pages say to use the operator's file in addition to the platform's.
    let both = rendered(&["k0s", "gpu-operator"]);
    let flags = arguments(&both, "DaemonSet");
    for flag in [
        "--driver-root-host=/run/nvidia/driver",
        "--kubelet-root=/var/lib/k0s/kubelet",
    ] {
        assert!(flags.iter().any(|is| is == flag), "{flag}: {flags:?}");
    }
}

/// Kubernetes reads YAML 1.1, where `n`, `y`, `on` and `1e3` without quotes are not strings, so each name must be
/// quoted. Our parser uses YAML 1.2, which reads `n` as a string: so the test uses numbers that no other value of the
/// chart has.
#[test]
fn names_that_are_words_of_yaml_are_quoted() {
    let Some(helm) = helm("names_that_are_words_of_yaml_are_quoted") else {
        return;
    };
    let every_part = [
        "allocator=controller,quota.enabled=true,softGpu.gpus=2,podMonitor.enabled=true",
        "translate.dialects={hami,koordinator,volcano,volcano-vgpu,gpu-manager,kai}",
        "readers.subjects[0].kind=ServiceAccount,readers.subjects[0].name=a,readers.subjects[0].namespace=b",
    ];
    let names = "networkPolicy.monitorNamespace=70003,images.tag=70004,plugin.priorityClassName=70005,\
                 controller.priorityClassName=70006";
    let options = [
        &["--kube-version", "1.37.1", "--set-string", names],
        &support::PROMETHEUS[..],
    ];
    let rendered = support::template_as(&helm, "70001", "70002", &options.concat(), &every_part).expect("rendered");
    let mut found = Vec::new();
    for object in &rendered {
        numbers(
            object,
            &format!("{} {}", object["kind"], object["metadata"]["name"]),
            &mut found,
        );
    }
    assert_eq!(found, Vec::<String>::new());
}

/// The paths in `value` of the numbers from 70001 on.
fn numbers(value: &Value, place: &str, found: &mut Vec<String>) {
    match value {
        Value::Number(number) if number.as_u64().is_some_and(|number| number >= 70_001) => {
            found.push(format!("{place}: {number} is no text"));
        }
        Value::Array(values) => values.iter().for_each(|value| numbers(value, place, found)),
        Value::Object(fields) => {
            for (field, value) in fields {
                numbers(value, &format!("{place}.{field}"), found);
            }
        }
        _ => {}
    }
}
