//! Tests what is refused and with which words: the table of bad input of issue 17, section 2.

mod support;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use support::{amounts, annotated, limits, pod, read, refused, rows, translated, warnings};
use vgpu_dialects::Settings;

const LIMITS: &str = "spec.containers[0].resources.limits";

/// A row: limits, the first of them the refused one; and advice.
const BAD_RESOURCES: &str = "
tencent.com/vcuda-core=150 | multiple of 100
tencent.com/vcuda-core=50 | give both
tencent.com/vcuda-memory=4 | give both
tencent.com/vcuda-memory=9223372036854775807 tencent.com/vcuda-core=50 | at most 10Ti
nvidia.com/gpumem-percentage=101 | from 0 to 100
nvidia.com/gpumem-percentage=-1 | must not be negative
volcano.sh/vgpu-memory-percentage=101 | from 0 to 100
nvidia.com/gpumem=1500m | whole number
nvidia.com/gpumem=1.5 | whole number
nvidia.com/gpumem=9Ei | whole number
nvidia.com/gpumem=1Pi | at most 10Ti
nvidia.com/gpumem=10 | minimum of 64Mi
nvidia.com/gpu=many | whole number
nvidia.com/gpu=33 | at most 32
volcano.sh/gpu-number=33 | at most 32
tencent.com/vcuda-core=3300 | at most 32
koordinator.sh/gpu=3300 | at most 32
nvidia.com/mig-1g.10gb=33 | at most 32
nvidia.com/mig-1g.10gb=1 nvidia.com/mig-3g.40gb=1 | is asked for beside nvidia.com/mig-3g.40gb
nvidia.com/mig-1g.10gb=1 nvidia.com/gpu=1 | is asked for beside nvidia.com/gpu
nvidia.com/mig-1g.10gb=1500m | whole number
volcano.sh/gpu-number=1 volcano.sh/gpu-memory=1024 | remove one of them
koordinator.sh/gpu-memory-ratio=50 koordinator.sh/gpu-memory=8Gi | exclude each other
koordinator.sh/gpu-core=50 | says nothing of memory
koordinator.sh/gpu.shared=2 | says nothing of memory
koordinator.sh/gpu-core=50 koordinator.sh/gpu.shared=2 koordinator.sh/gpu-memory-ratio=0 | says nothing of memory
koordinator.sh/gpu-core=51 koordinator.sh/gpu.shared=2 koordinator.sh/gpu-memory-ratio=100 | multiple of koordinator.sh/gpu.shared, 2
koordinator.sh/gpu-memory-ratio=202 koordinator.sh/gpu.shared=2 | more than 100 for each of 2 GPUs
koordinator.sh/gpu=150 | multiple of 100
koordinator.sh/gpu.shared=2 koordinator.sh/gpu=100 | exclude each other
koordinator.sh/gpu=100 koordinator.sh/gpu-core=2 | remove it, or the others
koordinator.sh/gpu-memory-ratio=150 | multiple of 100
";

#[test]
fn a_bad_resource_is_refused_with_its_field_and_what_to_do() {
    for [asked, advice] in rows(BAD_RESOURCES) {
        let said = refused(&limits(amounts(asked))).to_string();
        let key = asked.split('=').next().unwrap_or_default();
        assert!(
            said.starts_with(&format!("{LIMITS}[{key}]: Invalid value: ")),
            "{asked}: {said}"
        );
        assert!(said.contains(advice), "{asked}: {said}");
        assert!(
            !said.contains("20Gi"),
            "{asked}: a number of GPUs or MiB has no unit: {said}"
        );
    }
    // 25 percent of each of two GPUs.
    translated(&limits(
        json!({"koordinator.sh/gpu-core": 50, "koordinator.sh/gpu-memory-ratio": 200}),
    ));
}

/// A row: annotations, the first of them the refused one; limits; and advice.
const BAD_ANNOTATIONS: &str = "
gpu-fraction=1 | | smaller than 1.0
gpu-fraction=0 | | smaller than 1.0
gpu-fraction=x | | smaller than 1.0
gpu-fraction=0.5 gpu-memory=1 | | gpu-memory exclude each other
gpu-fraction=0.5 | nvidia.com/gpu=1 | limits[nvidia.com/gpu] exclude
gpu-memory=4096 | nvidia.com/gpu=1 | limits[nvidia.com/gpu] exclude
gpu-fraction-num-devices=2 | nvidia.com/gpu=1 | limits[nvidia.com/gpu] exclude
gpu-memory=0 | | positive whole number
gpu-memory=1.5 | | positive whole number
gpu-memory=63 | | from 64 to
gpu-fraction-num-devices=2 | | stands alone
gpu-fraction-num-devices=0 gpu-fraction=0.5 | | from 1 to 32
gpu-fraction-num-devices=33 gpu-fraction=0.5 | | from 1 to 32
gpu-fraction-container-name=nobody gpu-fraction=0.5 | | no container of the pod
nvidia.com/vgpu-mode=mig | nvidia.com/gpumem-percentage=50 | name the MiB by nvidia.com/gpumem
nvidia.com/vgpu-mode=mig | nvidia.com/gpu=1 | name the MiB by nvidia.com/gpumem
nvidia.com/vgpu-mode=migs | nvidia.com/gpumem=3000 | hami-core or mig
nvidia.com/vgpu-mode=mps | nvidia.com/gpumem=3000 | MPS
volcano.sh/vgpu-mode=mig | volcano.sh/vgpu-number=1 | name the MiB by volcano.sh/vgpu-memory
tencent.com/vcuda-core-limit=half | tencent.com/vcuda-core=50 tencent.com/vcuda-memory=4 | whole number
tencent.com/vcuda-core-limit=101 | tencent.com/vcuda-core=50 tencent.com/vcuda-memory=4 | from 1 to 100
";

#[test]
fn a_bad_annotation_is_refused_with_its_key_and_what_to_do() {
    for [annotations, asked, advice] in rows(BAD_ANNOTATIONS) {
        let metadata = json!({"annotations": amounts(annotations)});
        let said = refused(&pod(metadata, amounts(asked))).to_string();
        let key = annotations.split('=').next().unwrap_or_default();
        assert!(
            said.starts_with(&format!("metadata.annotations[{key}]: Invalid value: ")),
            "{said}"
        );
        assert!(said.contains(advice), "{said}");
    }
}

/// A row: the pod's spec, the field, and advice.
const BEYOND_CLAIMS: &str = r#"
{"containers": [{"name": "main", "resources": GPU, "securityContext": {"privileged": true}}]} | spec.containers[0].securityContext.privileged | no limit holds
{"nodeName": "n1", "containers": [{"name": "main", "resources": GPU}]} | spec.nodeName | no scheduler sees such a pod
{"containers": [{"name": "main", "resources": {"requests": {"nvidia.com/gpumem": 3000}}}]} | REQUEST | has no limit
{"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpumem": 3000}, "requests": {"nvidia.com/gpumem": 2000}}}]} | REQUEST | must be equal to the limit
{"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpumem": 3000, "deviceclass.resource.kubernetes.io/vgpu": 1}}}]} | spec.containers[0].resources.limits[deviceclass.resource.kubernetes.io/vgpu] | remove one of them
{"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpumem": 3000, "volcano.sh/vgpu-number": 1}}}]} | spec.containers[0].resources | two dialects, hami and volcano-vgpu
"#;

#[test]
fn what_no_claim_can_do_is_refused() {
    let is_refused = |pod: &Pod, field: &str, advice: &str| {
        let said = refused(pod).to_string();
        assert!(said.starts_with(&format!("{field}: ")), "{said}");
        assert!(said.contains(advice), "{said}");
    };
    for [spec, field, advice] in rows(BEYOND_CLAIMS) {
        let spec = spec.replace("GPU", r#"{"limits": {"nvidia.com/gpumem": 3000}}"#);
        let spec: Value = serde_json::from_str(&spec).unwrap();
        let field = field.replace("REQUEST", "spec.containers[0].resources.requests[nvidia.com/gpumem]");
        is_refused(&read(json!({"metadata": {"name": "p"}, "spec": spec})), &field, advice);
    }
    let both = annotated("gpu-fraction", "0.5", json!({"volcano.sh/vgpu-number": 1}));
    is_refused(
        &both,
        "spec.containers[0].resources",
        "two dialects, volcano-vgpu and kai",
    );
}

/// The webhook does not know for which devices another claim is. The claim stays, with a warning unless it is named.
#[test]
fn a_claim_for_other_devices_may_stand_beside() {
    for (others, is_said) in [("fpga, nic", false), ("fpga", true), ("", true)] {
        let pod = read(
            json!({"metadata": {"annotations": {"dra.vgpu/other-claims": others}}, "spec": {
                "resourceClaims": [{"name": "nic", "resourceClaimTemplateName": "nic"}],
                "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpumem": 3000}, "claims": [{"name": "nic"}]}}],
            }}),
        );
        let translation = translated(&pod);
        assert_eq!(support::claims(&translation.pod, "main"), ["nic", "vgpu-translated-0"]);
        let spec = translation.pod.spec.as_ref().unwrap();
        assert_eq!(spec.resource_claims.as_ref().unwrap().len(), 2);
        let said = support::warnings(&translation);
        let field = "spec.containers[0].resources.claims[0].name: \"nic\" stays; if it is for GPUs of this driver too";
        assert_eq!(said.contains(field), is_said, "{others}: {said}");
        // KAI's pods ask by annotations.
        let mut pod = pod;
        let annotations = json!({"gpu-fraction": "0.5", "dra.vgpu/other-claims": others});
        pod.metadata.annotations = serde_json::from_value(annotations).unwrap();
        pod.spec.as_mut().unwrap().containers[0]
            .resources
            .as_mut()
            .unwrap()
            .limits = None;
        assert_eq!(
            support::claims(&translated(&pod).pod, "main"),
            ["nic", "vgpu-translated-0"]
        );
    }
}

#[test]
fn lists_of_gpus_are_bounded() {
    let asked = || json!({"nvidia.com/gpumem": 3000});
    let many: Vec<String> = (0..10_000).map(|at| format!("GPU-{at:036}")).collect();
    for key in [
        "nvidia.com/use-gpuuuid",
        "nvidia.com/nouse-gpuuuid",
        "nvidia.com/use-gputype",
        "nvidia.com/nouse-gputype",
    ] {
        let said = refused(&annotated(key, &many.join(","), asked())).to_string();
        assert!(
            said.contains(key) && said.contains("more than 128") && said.len() < 400,
            "{said}"
        );
        let said = refused(&annotated(key, &"x".repeat(65), asked())).to_string();
        assert!(said.contains("more than 64 bytes"), "{said}");
        let quotes: Vec<String> = (0..128).map(|at| format!("{at:03}{}", "\"".repeat(61))).collect();
        let said = refused(&annotated(key, &quotes.join(","), asked())).to_string();
        assert!(said.contains("too long for a selector"), "{said}");
        let most = many[..128].join(",");
        translated(&annotated(key, &most, asked()));
    }
}

#[test]
fn a_refusal_names_every_problem_and_stays_short() {
    let long = "n".repeat(63);
    let containers: Vec<Value> = (0..40)
        .map(|at| json!({"name": format!("{at}{long}"), "resources": {"limits": {"nvidia.com/gpumem": "x".repeat(3000)}}}))
        .collect();
    let refusal = refused(&read(json!({"spec": {"containers": containers}})));
    assert_eq!(refusal.problems().len(), 8);
    let said = refusal.to_string();
    assert!(said.ends_with("; and 32 more problems") && said.len() < 4096, "{said}");
}

/// A user who may create pods must not be able to keep a webhook busy: no work is quadratic in the size of a pod of up
/// to 3 MiB. Without the bounds, each of these cases took minutes.
#[test]
fn pods_with_very_many_containers_and_claims_are_answered() {
    let containers = |count: usize, resources: Value| -> Vec<Value> {
        let container = |at| json!({"name": format!("c{at}"), "resources": resources});
        (0..count).map(container).collect()
    };
    let asked = || json!({"limits": {"nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 150, "nvidia.com/x": 1}});
    let spec = |spec: Value| read(json!({"metadata": {"name": "p"}, "spec": spec}));
    let said = refused(&spec(json!({"containers": containers(20_000, asked())}))).to_string();
    assert!(
        said.starts_with("spec: more than 256 containers ask for GPUs"),
        "{said}"
    );
    translated(&spec(json!({"containers": containers(256, asked())})));

    let bad = json!({"limits": {"nvidia.com/gpumem": "x", "volcano.sh/vgpu-number": 1}});
    let said = refused(&spec(json!({"containers": containers(20_000, bad)}))).to_string();
    assert!(said.contains("two dialects") && said.len() < 4096, "{said}");

    // Our claim names are already taken.
    let claim = |at: usize| json!({"name": format!("vgpu-translated-{at}"), "resourceClaimName": "mine"});
    let taken: Vec<Value> = (0..100_000).map(claim).collect();
    let pod = spec(json!({"containers": containers(1, asked()), "resourceClaims": taken}));
    assert_eq!(support::claims(&translated(&pod).pod, "c0"), ["vgpu-translated-100000"]);

    // A container with many claims, and a pod that declares as many of other drivers.
    let claims: Vec<Value> = (0..100_000).map(|at| json!({"name": format!("n{at}")})).collect();
    let mut resources = asked();
    resources["claims"] = json!(claims);
    let mut pod = spec(json!({"containers": containers(1, resources)}));
    let others = ["x"; 100_000].join(",");
    pod.metadata.annotations = Some([(vgpu_dialects::OTHER_CLAIMS.to_owned(), others)].into());
    let said = support::warnings(&translated(&pod));
    assert!(said.contains("claims[0].name") && said.len() < 4096, "{said}");
}

#[test]
fn pods_of_others_are_left_alone() {
    let none = |pod: &Pod, settings: &Settings| assert_eq!(vgpu_dialects::translate(pod, settings), Ok(None));
    let all = Settings::default();
    none(&limits(json!({"cpu": "1", "memory": "1Gi", "amd.com/gpu": 1})), &all);
    none(&limits(json!({"nvidia.com/gpu": 0})), &all);
    none(&read(json!({"metadata": {"name": "empty"}})), &all);
    none(
        &pod(
            json!({"labels": {"hami.io/webhook": "ignore"}}),
            json!({"nvidia.com/gpu": 1}),
        ),
        &all,
    );
    let hami_only = Settings {
        dialects: [vgpu_dialects::Dialect::Hami].into(),
        ..Settings::default()
    };
    none(&limits(json!({"volcano.sh/vgpu-number": 1})), &hami_only);
    none(&annotated("gpu-fraction", "0.5", json!({})), &hami_only);
}

/// A row: of labels or annotations, the pair, and what is said.
const UNUSED: &str = "
annotations | hami.io/node-scheduler-policy=binpack | [hami.io/node-scheduler-policy]: is lost
annotations | hami.io/device-scoring-weights=x | is lost: GPUs are not scored
annotations | nvidia.com/use-gputypes=x | [nvidia.com/use-gputypes]: is not read
annotations | scheduling.k8s.io/group-name=x | not started together
labels | kai.scheduler/queue=x | the pod is in no queue
";

#[test]
fn what_changes_nothing_is_named() {
    let asked = || json!({"nvidia.com/gpumem": 3000});
    for [kind, pair, said] in rows(UNUSED) {
        let now = warnings(&translated(&pod(json!({kind: amounts(pair)}), asked())));
        assert!(now.contains(said), "{now}");
    }
    // A copy of a running pod.
    let copy = json!({"annotations": {"hami.io/vgpu-node": "n", "hami.io/vgpu-devices-allocated": ";"}});
    assert!(!warnings(&translated(&pod(copy, asked()))).contains("is not read"));
    // A tenant chooses how many keys there are.
    let many: serde_json::Map<String, Value> = (0..1000)
        .map(|at| (format!("hami.io/{at}{}", "x".repeat(200)), json!("")))
        .collect();
    let now = warnings(&translated(&pod(json!({"annotations": many}), asked())));
    assert!(now.matches("is not read").count() == 8 && now.len() < 4000, "{now}");
}

/// Annotations, of which the first is the refused one, in a pod with the containers main and other; and advice.
const BAD_CONTAINERS: &str = "
main.request=many | must be an amount of memory
main.limit=4GB | did you mean 4Gi
main.limit= | must be an amount of memory
main.request=-1Gi | must not be negative
main.request=0 | is 0 bytes, and the minimum is 1Mi
main.limit=4096 | is 4096 bytes, and the minimum is 1Mi; write a number with a unit
main.limit=32Mi | minimum of 64Mi
main.limit=11Ti | at most 10Ti
main.limit=99999999999999999999Ei | at most 10Ti
main.request=8Gi main.limit=4Gi | is more than the limit, 4Gi
other.limit=4Gi main.limit=4Gi | is for a second container beside \"main\"
nobody.limit=4Gi | the pod has no container \"nobody\"
.limit=4Gi | the pod has no container \"\"
main.limits=4Gi | is no annotation of KAI
gpu-fraction-container-name=other main.limit=4Gi | must be the container of
gpu-memory=2048 main.request=4Gi | is MiB, and not the same as \"4Gi\"
gpu-memory=many main.request=4Gi | is MiB, and not the same as \"4Gi\"
gpu-memory=4096 main.limit=4Gi | exclude each other
gpu-fraction=0.5 main.limit=4Gi | exclude each other
gpu-fraction=0.5 gpu-memory=4096 main.request=4Gi | exclude each other
gpu-fraction-num-devices=0 main.limit=4Gi | from 1 to 32
nvidia.com/container.main.gpus.devices=GPU-1 main.limit=4Gi | only KAI's binder
nvidia.com/container.main.gpu-compute.mode=mps main.limit=4Gi | is no mode
nvidia.com/container.other.gpu-compute.mode= main.limit=4Gi | is no mode
kai.scheduler/gpu-compute-sharing-mode=Time-Slicing main.limit=4Gi | is no mode
";

#[test]
fn a_bad_annotation_of_a_container_is_refused() {
    for [asked, advice] in rows(BAD_CONTAINERS) {
        let words = asked.split(' ').map(|word| match word.split_once('.') {
            Some((name @ ("" | "main" | "other" | "nobody"), what)) => {
                format!("nvidia.com/container.{name}.gpu-memory.{what}")
            }
            _ => word.to_owned(),
        });
        let words: Vec<String> = words.collect();
        let pod = read(json!({"metadata": {"annotations": amounts(&words.join(" "))}, "spec": {
            "containers": [{"name": "main"}, {"name": "other"}],
        }}));
        let said = refused(&pod).to_string();
        let (key, value) = words[0].split_once('=').unwrap_or_default();
        let field = format!("metadata.annotations[{key}]: Invalid value: \"{value}\": ");
        assert!(said.starts_with(&field) && said.contains(advice), "{asked}: {said}");
    }
    let beside = annotated(
        "nvidia.com/container.main.gpu-memory.limit",
        "4Gi",
        json!({"nvidia.com/gpu": 1}),
    );
    let said = refused(&beside).to_string();
    assert!(
        said.contains("resources.limits[nvidia.com/gpu] exclude each other"),
        "{said}"
    );
    // Such a pod asks for nothing.
    for key in [
        "nvidia.com/container.gpu-memory.gpu-compute.mode",
        "nvidia.com/container.main.gpus.devices",
    ] {
        let pod = annotated(key, "time-slicing", json!({}));
        assert_eq!(vgpu_dialects::translate(&pod, &Settings::default()), Ok(None), "{key}");
    }
}

/// A webhook's filter matches exactly the pods that are translated.
#[test]
fn every_asking_key_asks_and_no_other() {
    for dialect in vgpu_dialects::Dialect::ALL {
        for key in vgpu_dialects::asking_resources(dialect) {
            assert_ne!(
                vgpu_dialects::translate(&limits(json!({*key: 1})), &Settings::default()),
                Ok(None),
                "{key}"
            );
            assert!(vgpu_dialects::is_resource(key));
        }
        for key in vgpu_dialects::asking_annotations(dialect) {
            let pod = annotated(key, "1", json!({}));
            assert_ne!(vgpu_dialects::translate(&pod, &Settings::default()), Ok(None), "{key}");
        }
    }
    for other in ["nvidia.com/priority", "cpu", "nvidia.com/gpu.shared"] {
        assert_eq!(
            vgpu_dialects::translate(&limits(json!({other: 1})), &Settings::default()),
            Ok(None),
            "{other}"
        );
    }
}
