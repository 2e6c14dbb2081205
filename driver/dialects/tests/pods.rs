//! What a translation does to the rest of a pod: claims, init containers, the second time, updates.

mod support;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use support::{claims, limits, patched, pod, read, translated, warnings, with};
use vgpu_dialects::{Dialect, Record, Settings, TRANSLATED, recorded, translate, update};

fn asks(mebibytes: u32) -> Value {
    json!({"limits": {"cpu": "1", "nvidia.com/gpu": "1", "nvidia.com/gpumem": mebibytes.to_string()},
           "requests": {"cpu": "1", "nvidia.com/gpu": "1", "nvidia.com/gpumem": mebibytes.to_string()}})
}

fn spec(spec: Value) -> Pod {
    read(json!({"metadata": {"name": "p"}, "spec": spec}))
}

fn schedulers(names: &[&str]) -> Settings {
    Settings {
        schedulers: names.iter().map(|name| (*name).to_owned()).collect(),
        ..Settings::default()
    }
}

fn json_of(pod: &Pod) -> Value {
    serde_json::to_value(pod).unwrap()
}

#[test]
fn only_what_was_asked_changes() {
    let pod = spec(json!({
        "schedulerName": "hami-scheduler",
        "containers": [
            {"name": "main", "image": "i", "env": [{"name": "A", "value": "b"}], "resources": asks(3000)},
            {"name": "other", "image": "j", "resources": {"limits": {"cpu": "2"}}},
        ],
    }));
    let translation = with(&pod, &schedulers(&["hami-scheduler"]));
    let mut now = json_of(&translation.pod);
    let [template] = &translation.templates[..] else {
        panic!("{:?}", translation.templates);
    };
    assert_eq!(template.name, template.request.name());
    let record = now["metadata"]["annotations"]
        .as_object_mut()
        .unwrap()
        .remove(TRANSLATED)
        .unwrap();
    let record: Value = serde_json::from_str(record.as_str().unwrap()).unwrap();
    assert_eq!(
        record,
        json!({
            "containers": [{
                "name": "main", "dialect": "hami",
                "limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"},
                "requests": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"},
                "claim": "vgpu-translated-0", "template": template.name,
            }],
            "requests": {&template.name: {"class": "vgpu", "count": 1, "memory": {"bytes": 3_145_728_000u64}, "reportAs": "hami"}},
            "schedulerName": "hami-scheduler",
        })
    );
    assert_eq!(
        now,
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "annotations": {}},
            "spec": {
                "schedulerName": "default-scheduler",
                "resourceClaims": [{"name": "vgpu-translated-0", "resourceClaimTemplateName": template.name}],
                "containers": [
                    {"name": "main", "image": "i", "env": [{"name": "A", "value": "b"}], "resources": {
                        "limits": {"cpu": "1"}, "requests": {"cpu": "1"}, "claims": [{"name": "vgpu-translated-0"}],
                    }},
                    {"name": "other", "image": "j", "resources": {"limits": {"cpu": "2"}}},
                ],
            },
        })
    );
    assert_eq!(recorded(&translation.pod).unwrap(), translation.templates);
}

#[test]
fn the_patch_makes_the_same_pod() {
    let kai = json!({"annotations": {"gpu-fraction": "0.5"}});
    for pod in [
        limits(json!({"nvidia.com/gpu": 1, "cpu": "1"})),
        spec(
            json!({"containers": [{"name": "main", "resources": asks(1000)}], "initContainers": [{"name": "i", "resources": asks(1000)}]}),
        ),
        read(json!({"metadata": kai, "spec": {"containers": [{"name": "main"}]}})),
        read(
            json!({"metadata": {"annotations": {"dra.vgpu/other-claims": "a"}}, "spec": {
                "resourceClaims": [{"name": "a"}],
                "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": 1}, "claims": [{"name": "a"}]}}],
            }}),
        ),
    ] {
        let translation = translated(&pod);
        assert_eq!(
            patched(&pod, &translation.patch),
            translation.pod,
            "{}",
            translation.patch
        );
    }
}

/// A template's name is the only link between admission and controller. It must not change between releases: the next
/// release's leader serves pods of this one.
#[test]
fn the_name_of_a_request_stays_what_it_is() {
    let translation = translated(&limits(
        json!({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}),
    ));
    let [template] = &translation.templates[..] else {
        panic!()
    };
    assert_eq!(
        template.request.text(),
        r#"{"class":"vgpu","count":1,"memory":{"bytes":3145728000},"cores":30,"reportAs":"hami"}"#
    );
    assert_eq!(template.name, "vgpu-translated-4c0d79e813eff228b0356a3afd799b40");
}

#[test]
fn equal_requests_share_a_template_but_not_a_claim() {
    let pod = spec(json!({"containers": [
        {"name": "a", "resources": asks(1000)},
        {"name": "b", "resources": asks(1000)},
        {"name": "c", "resources": asks(2000)},
    ]}));
    let translation = translated(&pod);
    assert_eq!(translation.templates.len(), 2);
    let names: Vec<Vec<String>> = ["a", "b", "c"].map(|name| claims(&translation.pod, name)).into();
    assert_eq!(
        names,
        [["vgpu-translated-0"], ["vgpu-translated-1"], ["vgpu-translated-2"]]
    );
}

#[test]
fn an_init_container_uses_the_claim_of_an_app_container_that_asks_for_the_same() {
    let pod = |init: u32, policy: Value| {
        spec(json!({
            "initContainers": [{"name": "init", "restartPolicy": policy, "resources": asks(init)}],
            "containers": [{"name": "a", "resources": asks(1000)}],
        }))
    };
    let same = translated(&pod(1000, Value::Null));
    assert_eq!(claims(&same.pod, "init"), claims(&same.pod, "a"));
    assert_eq!(
        same.pod.spec.as_ref().unwrap().resource_claims.as_ref().unwrap().len(),
        1
    );
    assert!(!warnings(&same).contains("as long as the pod"));

    let other = translated(&pod(2000, Value::Null));
    assert_ne!(claims(&other.pod, "init"), claims(&other.pod, "a"));
    assert!(warnings(&other).contains("spec.initContainers[0].resources: no app container asks for the same"));

    // A sidecar runs beside the app container.
    let sidecar = translated(&pod(1000, json!("Always")));
    assert_eq!(claims(&sidecar.pod, "init"), ["vgpu-translated-0"]);
    assert_eq!(claims(&sidecar.pod, "a"), ["vgpu-translated-1"]);
    assert!(!warnings(&sidecar).contains("as long as the pod"));

    // Init containers run one after the other.
    let two = translated(&spec(json!({
        "initContainers": [{"name": "i", "resources": asks(500)}, {"name": "j", "resources": asks(500)}],
        "containers": [{"name": "a"}],
    })));
    assert_eq!(claims(&two.pod, "i"), claims(&two.pod, "j"));
}

#[test]
fn a_claim_gets_a_name_that_is_free() {
    let pod = spec(json!({
        "resourceClaims": [{"name": "vgpu-translated-0", "resourceClaimName": "mine"}],
        "containers": [{"name": "a", "resources": asks(1000)}],
    }));
    assert_eq!(claims(&translated(&pod).pod, "a"), ["vgpu-translated-1"]);
}

#[test]
fn a_container_that_asks_for_no_gpu_gets_none() {
    let pod = limits(json!({"nvidia.com/gpu": 0, "nvidia.com/gpumem": 3000, "cpu": "1"}));
    let translation = translated(&pod);
    assert!(translation.templates.is_empty() && claims(&translation.pod, "main").is_empty());
    let resources = support::container(&translation.pod, "main").resources.clone().unwrap();
    assert_eq!(resources.limits.unwrap().into_keys().collect::<Vec<_>>(), ["cpu"]);
    assert!(warnings(&translation).contains("asks for no GPU"));
    assert_eq!(translate(&translation.pod, &Settings::default()), Ok(None));
}

#[test]
fn the_scheduler_is_replaced_only_where_settings_say_so() {
    let pod = |name: &str| spec(json!({"schedulerName": name, "containers": [{"name": "a", "resources": asks(1000)}]}));
    let settings = schedulers(&["volcano"]);
    let of = |name: &str| with(&pod(name), &settings).pod.spec.unwrap().scheduler_name.unwrap();
    assert_eq!(of("volcano"), "default-scheduler");
    assert_eq!(of("default-scheduler"), "default-scheduler");
    assert_eq!(of("other"), "other");
    assert!(warnings(&with(&pod("other"), &settings)).contains("spec.schedulerName: \"other\" stays"));
}

#[test]
fn a_translated_pod_is_not_translated_again() {
    for pod in [
        limits(json!({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000})),
        support::annotated("gpu-fraction", "0.5", json!({})),
    ] {
        let translation = translated(&pod);
        assert_eq!(translate(&translation.pod, &Settings::default()), Ok(None));
        assert_eq!(
            update(&translation.pod, &translation.pod, &Settings::default()),
            Ok(None)
        );
    }
}

/// What `kubectl apply` of a bare pod does the second time: the manifest's fields over those of the translated pod.
fn applied_again(manifest: &Pod, live: &Pod) -> Pod {
    let mut again = live.clone();
    let (spec, of_manifest) = (again.spec.as_mut().unwrap(), manifest.spec.as_ref().unwrap());
    spec.scheduler_name.clone_from(&of_manifest.scheduler_name);
    let live = spec.init_containers.iter_mut().flatten().chain(&mut spec.containers);
    let originals = of_manifest
        .init_containers
        .iter()
        .flatten()
        .chain(&of_manifest.containers);
    for (container, original) in live.zip(originals) {
        let Some(then) = original.resources.clone() else {
            continue;
        };
        let now = container.resources.as_mut().unwrap();
        now.limits.clone_from(&then.limits);
        now.requests.clone_from(&then.requests);
    }
    again
}

#[test]
fn a_second_apply_of_the_same_manifest_changes_nothing() {
    let manifest =
        spec(json!({"schedulerName": "hami-scheduler", "containers": [{"name": "a", "resources": asks(1000)}]}));
    let settings = schedulers(&["hami-scheduler"]);
    let live = with(&manifest, &settings).pod;
    let mut bound = live.clone();
    bound.spec.as_mut().unwrap().node_name = Some("n1".to_owned());
    let again = applied_again(&manifest, &bound);
    assert_ne!(again, bound);
    // The result is the same after the administrator changed the settings.
    let none = Settings {
        dialects: [].into(),
        ..Settings::default()
    };
    for settings in [&settings, &Settings::default(), &none] {
        let translation = update(&bound, &again, settings).unwrap().unwrap();
        assert_eq!(translation.pod, bound);
        assert_eq!(patched(&again, &translation.patch), bound, "{}", translation.patch);
    }
}

/// Otherwise a second applier of the manifest, under another name, would get a conflict with the first one about fields
/// that the pod does not have.
#[test]
fn nobody_owns_what_a_translation_takes_away() {
    let mut manifest = spec(
        json!({"schedulerName": "hami-scheduler", "initContainers": [{"name": "i", "resources": {"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000}}}],
        "containers": [{"name": "a", "resources": {"limits": {"cpu": "1", "nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000}}}, {"name": "b"}]}),
    );
    let item = |name: &str| format!("k:{}", json!({"name": name}));
    let gpu = || json!({"f:nvidia.com/gpu": {}, "f:nvidia.com/gpumem": {}});
    let mut with_cpu = gpu();
    with_cpu["f:cpu"] = json!({});
    let mut itself = gpu();
    itself["."] = json!({});
    let entry = |manager: &str, operation: &str, fields: Value| json!({"manager": manager, "operation": operation, "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields});
    let labels = json!({"f:metadata": {"f:labels": {"f:app": {}}}});
    let fields = json!([
        entry(
            "kubectl",
            "Apply",
            json!({"f:spec": {
            "f:schedulerName": {},
            "f:initContainers": {item("i"): {"f:name": {}, "f:resources": {"f:limits": gpu()}}},
            "f:containers": {item("a"): {"f:name": {}, "f:resources": {"f:limits": with_cpu}}, item("b"): {"f:name": {}}}}})
        ),
        entry(
            "argocd",
            "Update",
            json!({"f:spec": {
            "f:initContainers": {item("i"): {".": {}, "f:resources": {".": {}, "f:limits": itself}}},
            "f:containers": {item("a"): {".": {}, "f:resources": {".": {}, "f:limits": itself}}}}})
        ),
        entry("labeller", "Apply", labels.clone()),
    ]);
    manifest.metadata.managed_fields = serde_json::from_value(fields).unwrap();
    let settings = schedulers(&["hami-scheduler"]);
    let translation = with(&manifest, &settings);
    let left = |pod: &Pod| -> Vec<Value> {
        let entries = pod.metadata.managed_fields.iter().flatten();
        entries
            .map(|entry| entry.fields_v1.as_ref().unwrap().0.clone())
            .collect()
    };
    let owned = [
        json!({"f:spec": {"f:initContainers": {item("i"): {"f:name": {}}},
            "f:containers": {item("a"): {"f:name": {}, "f:resources": {"f:limits": {"f:cpu": {}}}}, item("b"): {"f:name": {}}}}}),
        json!({"f:spec": {
            "f:initContainers": {item("i"): {".": {}, "f:resources": {".": {}}}},
            "f:containers": {item("a"): {".": {}, "f:resources": {".": {}, "f:limits": {".": {}}}}}}}),
        labels,
    ];
    assert_eq!(left(&translation.pod), owned);
    assert_eq!(
        patched(&manifest, &translation.patch),
        translation.pod,
        "{}",
        translation.patch
    );
    // The second applier's request: the limits are in the pod again, and the second applier owns them.
    let live = translation.pod;
    let mut again = applied_again(&manifest, &live);
    again
        .metadata
        .managed_fields
        .clone_from(&manifest.metadata.managed_fields);
    let second = update(&live, &again, &settings).unwrap().unwrap();
    assert_eq!(second.pod.metadata.managed_fields, live.metadata.managed_fields);
    assert_eq!(patched(&again, &second.patch), second.pod);
}

#[test]
fn a_second_apply_of_another_manifest_reaches_the_api_server_changed() {
    let manifest = |mebibytes| spec(json!({"containers": [{"name": "a", "resources": asks(mebibytes)}]}));
    let live = translated(&manifest(1000)).pod;
    let again = applied_again(&manifest(2000), &live);
    let translation = update(&live, &again, &Settings::default()).unwrap().unwrap();
    let templates = |pod: &Pod| pod.spec.as_ref().unwrap().resource_claims.clone();
    assert_ne!(templates(&translation.pod), templates(&live));
}

#[test]
fn an_update_keeps_the_annotation_and_leaves_pods_from_before_alone() {
    let pod = limits(json!({"nvidia.com/gpu": 1}));
    let live = translated(&pod).pod;
    let mut without = live.clone();
    without.metadata.annotations = None;
    let kept = update(&live, &without, &Settings::default()).unwrap().unwrap();
    assert_eq!(kept.pod, live);
    assert_eq!(patched(&without, &kept.patch), live);
    let mut labelled = pod.clone();
    labelled.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
    assert_eq!(update(&pod, &labelled, &Settings::default()), Ok(None));
}

#[test]
fn a_forged_record_gets_nothing_that_a_claim_would_not() {
    let forged = |text: &str| {
        let mut pod = limits(json!({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}));
        pod.metadata.annotations = Some([(TRANSLATED.to_owned(), text.to_owned())].into());
        pod
    };
    let honest = translated(&limits(json!({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000})));
    let other = json!({"class": "gpu", "count": 8, "memory": "all", "reportAs": "hami"});
    let record = |claim: &str, template: &str| {
        json!({"containers": [{"name": "main", "dialect": "hami", "claim": claim, "template": template}],
               "requests": {template: other}})
        .to_string()
    };
    for text in [
        "",
        "{",
        "[]",
        "{\"containers\": 1}",
        &record("vgpu-translated-0", "mine"),
        &record("mine", "x"),
    ] {
        let pod = forged(text);
        assert!(recorded(&pod).is_err(), "{text}");
        assert_eq!(translated(&pod).pod, honest.pod, "{text}");
    }
    // A request out of bounds with its right name.
    let request: vgpu_dialects::Request =
        serde_json::from_value(json!({"class": "gpu", "count": 99, "memory": "all", "reportAs": "hami"})).unwrap();
    let text = json!({"containers": [], "requests": {request.name(): request}}).to_string();
    let said = recorded(&forged(&text)).unwrap_err().to_string();
    assert!(said.contains("must be from 1 to 32"), "{said}");
    // A well-formed record with a false request is replaced.
    let mut lying = honest.pod.clone();
    let record = Record::of(&lying).unwrap().unwrap();
    assert_eq!(record.containers[0].dialect, Dialect::Hami);
    let again = read({
        let mut value = json_of(&lying);
        value["spec"]["containers"][0]["resources"]["limits"] = json!({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4000});
        value
    });
    lying = translated(&again).pod;
    assert_eq!(
        lying,
        translated(&limits(json!({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4000}))).pod
    );
}

/// Finalizers must be removable from a pod whose author wrote its record.
#[test]
fn a_pod_with_a_record_that_is_not_its_own_is_left_alone_in_updates() {
    let honest = translated(&limits(json!({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}))).pod;
    let mut without_claims = json_of(&honest);
    let spec = without_claims["spec"].as_object_mut().unwrap();
    spec.remove("resourceClaims");
    spec["containers"][0]["resources"]
        .as_object_mut()
        .unwrap()
        .remove("claims");
    let old = read(without_claims);
    let mut new = old.clone();
    new.metadata.finalizers = Some(Vec::new());
    assert_eq!(update(&old, &new, &Settings::default()), Ok(None));
}

/// Another webhook may add claims after ours.
#[test]
fn an_update_keeps_the_order_of_claims() {
    let manifest = spec(json!({"containers": [{"name": "a", "resources": asks(1000)}]}));
    let mut value = json_of(&translated(&manifest).pod);
    let other = json!({"name": "other", "resourceClaimName": "other"});
    value["spec"]["resourceClaims"].as_array_mut().unwrap().push(other);
    let claims = value["spec"]["containers"][0]["resources"]["claims"]
        .as_array_mut()
        .unwrap();
    claims.push(json!({"name": "other"}));
    let live = read(value);
    assert_eq!(update(&live, &live, &Settings::default()), Ok(None));
    let again = applied_again(&manifest, &live);
    assert_eq!(update(&live, &again, &Settings::default()).unwrap().unwrap().pod, live);
}

/// Each key of another scheduler's decisions gets a warning of its own.
#[test]
fn what_another_scheduler_decided_is_said_key_by_key() {
    const QUEUE: &str = "the pod is in no queue";
    const GANG: &str = "are not started together";
    const NODES: &str = "spec.nodeSelector";
    const NUMA: &str = "topology manager";
    const NETWORK: &str = "topology of the network";
    const PREEMPTS: &str = "use priority classes";
    for (key, said) in [
        ("scheduling.volcano.sh/queue-name", QUEUE),
        ("volcano.sh/queue-name", QUEUE),
        ("volcano.sh/hierarchy", QUEUE),
        ("scheduling.k8s.io/group-name", GANG),
        ("scheduling.volcano.sh/group-name", GANG),
        ("scheduling.volcano.sh/group-min-member", GANG),
        ("volcano.sh/preemptable", PREEMPTS),
        ("volcano.sh/jdb-min-available", "use a PodDisruptionBudget"),
        ("volcano.sh/revocable-zone", NODES),
        ("volcano.sh/nodegroup-name", NODES),
        ("volcano.sh/numa-topology-policy", NUMA),
        ("volcano.sh/network-topology-mode", NETWORK),
        ("quota.scheduling.koordinator.sh/name", "ElasticQuota; use a VgpuQuota"),
        (
            "quota.scheduling.koordinator.sh/tree-id",
            "ElasticQuota; use a VgpuQuota",
        ),
        ("quota.scheduling.koordinator.sh/preemptible", PREEMPTS),
        ("gang.scheduling.koordinator.sh/name", GANG),
        ("gang.scheduling.koordinator.sh/network-topology-spec", NETWORK),
        ("pod-group.scheduling.sigs.k8s.io/name", GANG),
        ("scheduling.x-k8s.io/pod-group", GANG),
        ("scheduling.koordinator.sh/reservation-affinity", "Reservation"),
        ("scheduling.koordinator.sh/numa-topology-spec", NUMA),
        ("scheduling.koordinator.sh/resource-spec", "CPU manager policy"),
        ("kai.scheduler/queue", QUEUE),
        ("runai/queue", QUEUE),
        ("kai.scheduler/node-pool", NODES),
        ("runai/node-pool", NODES),
        ("pod-group-name", GANG),
        ("kai.scheduler/subgroup-name", GANG),
        ("kai.scheduler/topology-required-placement", NETWORK),
        ("kai.scheduler/preemptibility", PREEMPTS),
    ] {
        for (kind, scheduler) in [
            ("labels", "volcano"),
            ("annotations", "volcano"),
            ("labels", "default-scheduler"),
        ] {
            let mut asks = pod(json!({kind: {key: "v"}}), json!({"nvidia.com/gpu": 1}));
            asks.spec.as_mut().unwrap().scheduler_name = Some(scheduler.to_owned());
            let all = warnings(&with(&asks, &schedulers(&["volcano"])));
            let line = all
                .lines()
                .find(|line| line.starts_with(&format!("metadata.{kind}[{key}]: is lost: ")));
            let line = line.unwrap_or_else(|| panic!("{kind} {key}: {all}"));
            assert!(line.contains(said), "{line}");
            assert_eq!(all.matches(&format!("[{key}]")).count(), 1, "{all}");
            // The scheduler that decides by the key still places the pod.
            if scheduler == "volcano" {
                let all = warnings(&with(&asks, &schedulers(&[])));
                assert!(
                    !all.contains(key) && all.contains("spec.schedulerName: \"volcano\" stays"),
                    "{all}"
                );
            }
        }
    }
}

/// A pod that asks in a dialect that is switched off is not translated, and each of its keys is named.
#[test]
fn keys_of_a_dialect_that_nobody_reads_are_named() {
    let only = |dialect: Dialect| Settings {
        dialects: [dialect].into(),
        resource_names: vgpu_dialects::resource_names("nvidia.com/vgpu=nvidia.com/gpu").unwrap(),
        ..Settings::default()
    };
    for of in Dialect::ALL {
        let asks = vgpu_dialects::asking_resources(of)
            .iter()
            .map(|key| (*key, "resources.limits", false));
        let annotations = vgpu_dialects::asking_annotations(of);
        let by_container = ["nvidia.com/container.main.gpu-memory.request"].into_iter();
        let by_container = by_container.filter(|key| vgpu_dialects::asks_by_annotation(of, key));
        let annotations = annotations.iter().copied().chain(by_container);
        let annotations = annotations.map(|key| (key, "metadata.annotations", true));
        for (key, field, is_annotation) in asks.chain(annotations) {
            let asks = match is_annotation {
                true => pod(json!({"annotations": {key: "1"}}), json!({})),
                false => limits(json!({key: 1})),
            };
            for read in Dialect::ALL {
                let said: Vec<String> = vgpu_dialects::unread(&asks, &only(read))
                    .iter()
                    .map(ToString::to_string)
                    .collect();
                if read == of || key == "nvidia.com/gpu" {
                    assert_eq!(said, Vec::<String>::new(), "{key}, {read}");
                    continue;
                }
                assert_eq!(translate(&asks, &only(read)), Ok(None));
                let [said] = &said[..] else {
                    panic!("{key}, {read}: {said:?}")
                };
                assert!(
                    said.contains(&format!("{field}[{key}]: is not read: its dialect is switched off")),
                    "{said}"
                );
            }
        }
    }
    // A name that the cluster chose is HAMi's for certain.
    let said = vgpu_dialects::unread(&limits(json!({"nvidia.com/vgpu": 1})), &only(Dialect::Kai));
    assert_eq!(said.len(), 1, "{said:?}");
}
