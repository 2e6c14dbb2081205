//! Which templates are made, made again and removed, and what happens after each failure.

use serde_json::json;
use vgpu_dialects::{Devices, Memory, Request};
use vgpu_reconciler::{Change, KEEP, Outcome, SPEC_HASH, Settings, Write};

mod support;

use support::{Api, Replica, fixed, forged, half, key, request, seconds, slice, template_of};

/// The alternatives of a template: each requested memory size.
fn alternatives(api: &Api, name: &str) -> Vec<String> {
    let spec = api.templates[&key(name)]
        .spec
        .clone()
        .unwrap()
        .spec
        .unwrap()
        .devices
        .unwrap();
    let alternatives = spec.requests.unwrap().remove(0).first_available.unwrap();
    let memory =
        |capacity: k8s_openapi::api::resource::v1::CapacityRequirements| capacity.requests.unwrap()["memory"].0.clone();
    alternatives
        .into_iter()
        .map(|one| memory(one.capacity.unwrap()))
        .collect()
}

#[test]
fn pods_with_equal_requests_share_a_template_that_is_made_once() {
    let mut api = Api::with_gpus(&[80]);
    let mut leader = Replica::leading(&api);
    let pod = fixed("a");
    let name = template_of(&pod);
    api.set_pod(pod);
    api.set_pod(fixed("b"));
    let written = leader.settle(&mut api);
    assert!(matches!(&written[..], [Write::Create { .. }]), "{written:?}");
    let template = &api.templates[&key(&name)].metadata;
    assert_eq!(template.labels.as_ref().unwrap()["dra.vgpu/translated"], "true");
    api.set_pod(fixed("c"));
    assert_eq!(leader.settle(&mut api), []);
    assert!(leader.told.is_empty());
}

#[test]
fn nothing_is_written_before_all_is_listed_or_without_the_lease() {
    let mut api = Api::with_gpus(&[80]);
    api.set_pod(fixed("a"));
    api.events.clear();
    let lists = api.list();
    for left_out in 0..lists.len() {
        let is_end = |change: &Change| {
            matches!(
                change,
                Change::Pods { .. } | Change::Templates { .. } | Change::Slices { .. } | Change::Namespaces { .. }
            )
        };
        if !is_end(&lists[left_out]) {
            continue;
        }
        let mut replica = Replica::of(&Api::default(), Settings::default(), true);
        replica.reconciler = vgpu_reconciler::Reconciler::new(Settings::default());
        replica.reconciler.apply(Change::Leads(true), replica.now);
        for (at, change) in lists.iter().enumerate() {
            if at != left_out {
                replica.reconciler.apply(change.clone(), replica.now);
            }
        }
        assert!(replica.plan().writes.is_empty(), "without {:?}", lists[left_out]);
        replica.reconciler.apply(lists[left_out].clone(), replica.now);
        assert_eq!(replica.plan().writes.len(), 1);
    }
    let mut standby = Replica::of(&api, Settings::default(), false);
    assert_eq!(standby.settle(&mut api), []);
    standby.reconciler.apply(Change::Leads(true), standby.now);
    assert_eq!(standby.settle(&mut api).len(), 1, "once it leads");
}

#[test]
fn a_crash_between_the_two_writes_of_a_rebuild_leaves_what_the_next_leader_completes() {
    let mut api = Api::with_gpus(&[80]);
    let mut leader = Replica::leading(&api);
    let pod = half("a");
    let name = template_of(&pod);
    api.set_pod(pod);
    leader.settle(&mut api);
    assert_eq!(alternatives(&api, &name), ["40Gi"]);
    api.set_slice(slice("n2", &[24]));
    while let Some(change) = api.events.pop_front() {
        leader.reconciler.apply(change, leader.now);
    }
    let plan = leader.plan();
    assert!(matches!(&plan.writes[..], [Write::Delete { .. }]), "{plan:?}");
    assert_eq!(api.perform(&plan.writes[0]), Outcome::Deleted);
    // The process is killed here.
    let mut next = Replica::leading(&api);
    api.events.clear();
    assert_eq!(next.settle(&mut api).len(), 1);
    assert_eq!(alternatives(&api, &name), ["12Gi", "40Gi"]);
}

#[test]
fn a_restart_changes_nothing() {
    let mut api = Api::with_gpus(&[80, 24]);
    let mut leader = Replica::leading(&api);
    api.set_pod(half("a"));
    api.set_pod(fixed("b"));
    assert_eq!(leader.settle(&mut api).len(), 2);
    let mut next = Replica::leading(&api);
    assert_eq!(next.settle(&mut api), []);
}

#[test]
fn two_leaders_do_each_others_work_no_harm() {
    let mut api = Api::with_gpus(&[80]);
    api.set_pod(half("a"));
    api.events.clear();
    let (mut one, mut other) = (Replica::leading(&api), Replica::leading(&api));
    let (first, second) = (one.plan().writes.remove(0), other.plan().writes.remove(0));
    assert_eq!(first, second, "both want the same object");
    assert!(matches!(api.perform(&first), Outcome::Created(_)));
    let exists = api.perform(&second);
    assert_eq!(exists, Outcome::Exists);
    other.reconciler.report(&second.task(), exists, other.now);
    // The late replica sees it, and has nothing to do. There are no notices.
    assert_eq!(other.settle(&mut api), []);
    assert_eq!(other.wait(&mut api, seconds(60)), []);
    assert!(other.told.is_empty(), "{:?}", other.told);

    // A deletion that one replica decided on comes after the other one made the template again.
    let late = Write::Delete {
        key: key(&template_of(&half("a"))),
        uid: "template-1".into(),
        version: "1".into(),
    };
    assert!(api.delete(&key(&template_of(&half("a"))), None));
    assert_eq!(other.settle(&mut api).len(), 1);
    assert_eq!(api.perform(&late), Outcome::Again);
    assert_eq!(api.templates.len(), 1);
}

#[test]
fn a_template_deleted_by_hand_is_made_again() {
    let mut api = Api::with_gpus(&[80]);
    let mut leader = Replica::leading(&api);
    let pod = fixed("a");
    let name = template_of(&pod);
    api.set_pod(pod);
    leader.settle(&mut api);
    for _ in 0..3 {
        assert!(api.delete(&key(&name), None));
        assert_eq!(leader.settle(&mut api).len(), 1);
        assert!(api.templates.contains_key(&key(&name)));
    }
}

#[test]
fn a_rebuilt_template_with_a_finalizer_is_waited_for() {
    let mut api = Api::with_gpus(&[80]);
    let mut leader = Replica::leading(&api);
    let pod = half("a");
    let name = template_of(&pod);
    api.set_pod(pod);
    leader.settle(&mut api);
    api.templates.get_mut(&key(&name)).unwrap().metadata.finalizers = Some(vec!["example.com/mine".into()]);
    api.set_slice(slice("n2", &[24]));
    assert!(matches!(&leader.settle(&mut api)[..], [Write::Delete { .. }]));
    assert_eq!(leader.wait(&mut api, seconds(600)), [], "its name is not free");
    api.templates.get_mut(&key(&name)).unwrap().metadata.finalizers = None;
    api.delete(&key(&name), None);
    assert!(matches!(&leader.settle(&mut api)[..], [Write::Create { .. }]));
}

#[test]
fn somebody_elses_template_under_the_name_is_left_alone_and_told_of() {
    let mut api = Api::with_gpus(&[80]);
    let mut leader = Replica::leading(&api);
    let pod = fixed("a");
    let name = template_of(&pod);
    let theirs = json!({"metadata": {"name": name}, "spec": {"spec": {}}});
    api.put(serde_json::from_value(theirs).unwrap()).unwrap();
    let before = api.templates.clone();
    api.set_pod(pod);
    for _ in 0..100 {
        leader.wait(&mut api, seconds(10));
    }
    assert_eq!(api.templates, before);
    assert_eq!(leader.told(), [("a", "TemplateRefused")]);
    assert!(leader.told[0].1.to_string().contains(&name));
    // Once it is gone, ours is created.
    api.delete(&key(&name), None);
    leader.wait(&mut api, seconds(300));
    assert!(api.templates[&key(&name)].metadata.labels.is_some());
}

#[test]
fn a_forged_annotation_yields_only_what_its_own_pod_uses() {
    let mut api = Api::with_gpus(&[80]);
    let mut leader = Replica::leading(&api);
    let requests: Vec<Request> = (1..=200).map(|gibibytes| request("vgpu", gibibytes << 10)).collect();
    let named = requests[7].name();
    api.set_pod(forged("many", &requests, std::slice::from_ref(&named)));
    leader.settle(&mut api);
    assert_eq!(api.templates.keys().map(|key| &key.name).collect::<Vec<_>>(), [&named]);

    // A name that is not the hash of its request: the whole annotation is ignored.
    let mut liar = forged("liar", &[request("vgpu", 1 << 10)], &[]);
    let annotation = liar
        .metadata
        .annotations
        .as_mut()
        .unwrap()
        .get_mut("dra.vgpu/translated")
        .unwrap();
    *annotation = annotation.replace("1073741824", "2147483648");
    api.set_pod(liar);
    // A class that no translation gives.
    for class in ["vgpu-monitor", "nic.example.com", "vgpu-high"] {
        let request = request(class, 1 << 10);
        api.set_pod(forged(class, std::slice::from_ref(&request), &[request.name()]));
    }
    leader.settle(&mut api);
    assert_eq!(api.templates.len(), 1);
    let refused = ["liar", "nic.example.com", "vgpu-high", "vgpu-monitor"].map(|pod| (pod, "VgpuClaimRefused"));
    let mut told = leader.told();
    told.sort_unstable();
    assert_eq!(told, refused);

    // The administrator's class for priority High is allowed.
    let high_priority_class = Some("vgpu-high".to_owned());
    let mut leader = Replica::of(&api, Settings { high_priority_class }, true);
    leader.settle(&mut api);
    assert_eq!(api.templates.len(), 2);
}

#[test]
fn only_namespaces_that_opted_in_get_templates() {
    let mut api = Api::with_gpus(&[80]);
    api.namespaces.clear();
    let mut leader = Replica::leading(&api);
    api.set_pod(fixed("a"));
    assert_eq!(leader.settle(&mut api), []);
    api.events.push_back(Change::Namespace { name: "team".into() });
    assert_eq!(leader.settle(&mut api).len(), 1);
    api.events.push_back(Change::NamespaceGone { name: "team".into() });
    api.delete(&key(&template_of(&fixed("a"))), None);
    assert_eq!(leader.settle(&mut api), []);
}

#[test]
fn a_template_that_no_pod_needs_goes_after_an_hour() {
    let mut api = Api::with_gpus(&[80]);
    let mut leader = Replica::leading(&api);
    let name = template_of(&fixed("a"));
    api.set_pod(fixed("a"));
    leader.settle(&mut api);
    api.remove_pod("a");
    assert_eq!(leader.settle(&mut api), []);
    assert_eq!(leader.wait(&mut api, KEEP - seconds(1)), []);
    // A pod comes in time, finishes, and the hour begins again.
    let mut again = fixed("b");
    api.set_pod(again.clone());
    leader.settle(&mut api);
    let finished = serde_json::from_value(json!({"phase": "Succeeded"})).unwrap();
    again.status = Some(finished);
    api.set_pod(again);
    leader.settle(&mut api);
    assert_eq!(leader.wait(&mut api, KEEP - seconds(1)), []);
    let written = leader.wait(&mut api, seconds(1));
    assert!(matches!(&written[..], [Write::Delete { .. }]), "{written:?}");
    assert!(api.templates.is_empty());
    assert_eq!(leader.plan().wake, None, "nothing is kept of it");
    // A pod that is created right afterwards gets it again.
    api.set_pod(fixed("c"));
    assert_eq!(leader.settle(&mut api).len(), 1);
    assert!(api.templates.contains_key(&key(&name)));
}

#[test]
fn a_standby_counts_the_hour_too() {
    let mut api = Api::with_gpus(&[80]);
    let mut leader = Replica::leading(&api);
    api.set_pod(fixed("a"));
    leader.settle(&mut api);
    let mut standby = Replica::of(&api, Settings::default(), false);
    api.remove_pod("a");
    standby.settle(&mut api);
    standby.wait(&mut api, KEEP);
    assert_eq!(api.templates.len(), 1);
    standby.reconciler.apply(Change::Leads(true), standby.now);
    standby.settle(&mut api);
    assert!(api.templates.is_empty());
}

#[test]
fn a_part_of_a_gpu_is_made_anew_when_there_are_other_sizes() {
    let mut api = Api::with_gpus(&[80]);
    let mut leader = Replica::leading(&api);
    let name = template_of(&half("a"));
    api.set_pod(half("a"));
    api.set_pod(fixed("b"));
    leader.settle(&mut api);
    assert_eq!(alternatives(&api, &name), ["40Gi"]);
    // Another GPU of the size that is there changes nothing.
    api.set_slice(slice("n2", &[80]));
    assert_eq!(leader.settle(&mut api), []);
    api.set_slice(slice("n3", &[24]));
    assert_eq!(leader.settle(&mut api).len(), 2);
    assert_eq!(alternatives(&api, &name), ["12Gi", "40Gi"]);
    // Kubelet restarts: its node's slices go and come.
    api.remove_slice("n3");
    assert_eq!(leader.settle(&mut api), []);
    assert_eq!(leader.wait(&mut api, seconds(599)), []);
    api.set_slice(slice("n3", &[24]));
    assert_eq!(leader.settle(&mut api), []);
    assert_eq!(leader.wait(&mut api, seconds(600)), []);
    // The node is gone permanently.
    api.remove_slice("n3");
    leader.settle(&mut api);
    assert_eq!(leader.wait(&mut api, seconds(600)).len(), 2);
    assert_eq!(alternatives(&api, &name), ["40Gi"]);
    // All nodes go: the old template is better than none.
    api.remove_slice("n1");
    api.remove_slice("n2");
    leader.settle(&mut api);
    assert_eq!(leader.wait(&mut api, seconds(6_000)), []);
    assert!(leader.told.is_empty());
}

/// A pod that names it next would get its claim from the old one: kube-controller-manager may be faster than a rebuild,
/// and a claim is never changed.
#[test]
fn a_part_that_no_pod_needs_goes_when_there_are_other_sizes() {
    let mut api = Api::with_gpus(&[80]);
    let mut leader = Replica::leading(&api);
    let mut standby = Replica::of(&api, Settings::default(), false);
    let (part, bytes) = (template_of(&half("a")), template_of(&fixed("b")));
    for pod in [half("a"), fixed("b")] {
        api.set_pod(pod);
    }
    leader.settle(&mut api);
    for pod in ["a", "b"] {
        api.remove_pod(pod);
    }
    assert_eq!(leader.settle(&mut api), []);
    // Another GPU of the size that is there changes nothing.
    api.set_slice(slice("n2", &[80]));
    assert_eq!(leader.settle(&mut api), []);
    api.set_slice(slice("n3", &[24]));
    let written = leader.settle(&mut api);
    assert!(
        matches!(&written[..], [Write::Delete { key, .. }] if key.name == part),
        "{written:?}"
    );
    assert!(api.templates.contains_key(&key(&bytes)));
    // A new pod gets a template for the present sizes.
    api.set_pod(half("c"));
    leader.settle(&mut api);
    assert_eq!(alternatives(&api, &part), ["12Gi", "40Gi"]);
    // A replica that only watches deletes nothing.
    api.remove_pod("c");
    api.set_slice(slice("n4", &[16]));
    assert_eq!(standby.settle(&mut api), []);
}

#[test]
fn without_a_gpu_for_it_a_part_waits_and_its_pod_is_told() {
    let mut api = Api::with_gpus(&[]);
    let mut leader = Replica::leading(&api);
    let mut other = Request::fraction(1, Memory::Millionths(500_000), vgpu_dialects::Dialect::Hami);
    other.devices = Devices {
        use_types: vec!["a100".into()],
        ..Devices::default()
    };
    api.set_pod(forged("typed", std::slice::from_ref(&other), &[other.name()]));
    api.set_pod(half("a"));
    assert_eq!(leader.settle(&mut api), []);
    assert_eq!(
        leader.told(),
        [("a", "VgpuClaimPending"), ("typed", "VgpuClaimPending")]
    );
    api.set_slice(slice("n1", &[80]));
    assert_eq!(leader.settle(&mut api).len(), 1, "an H100 is no A100");
    assert_eq!(leader.told.len(), 2, "each is told once");
}

#[test]
fn a_refusal_is_tried_again_with_pauses_and_is_one_state() {
    let mut api = Api::with_gpus(&[80]);
    let mut leader = Replica::leading(&api);
    let name = template_of(&fixed("a"));
    api.refuses.insert(name.clone(), "exceeded quota: templates".into());
    api.set_pod(fixed("a"));
    let mut attempts = leader.settle(&mut api).len();
    for second in 0..600 {
        api.refuses
            .insert(name.clone(), format!("exceeded quota: templates, at {second}"));
        attempts += leader.wait(&mut api, seconds(1)).len();
    }
    assert!((8..=12).contains(&attempts), "{attempts} attempts in ten minutes");
    assert_eq!(leader.told(), [("a", "TemplateRefused")]);
    api.refuses.clear();
    leader.wait(&mut api, seconds(300));
    assert_eq!(api.templates.len(), 1);
}

#[test]
fn whoever_changes_what_is_created_does_not_make_it_spin() {
    let mut api = Api::with_gpus(&[80]);
    api.mutate = Some(|template| {
        template.metadata.annotations.as_mut().unwrap().remove(SPEC_HASH);
    });
    let mut leader = Replica::leading(&api);
    api.set_pod(fixed("a"));
    for _ in 0..600 {
        leader.wait(&mut api, seconds(1));
    }
    assert!((2..=12).contains(&api.created), "{} times in ten minutes", api.created);
    assert_eq!(leader.told(), [("a", "TemplateRefused")]);
}

#[test]
fn late_news_of_an_older_template_do_not_hide_the_new_one() {
    let mut api = Api::with_gpus(&[80]);
    let mut leader = Replica::leading(&api);
    api.set_pod(fixed("a"));
    leader.settle(&mut api);
    let key = key(&template_of(&fixed("a")));
    api.events.push_back(Change::TemplateGone {
        key,
        uid: "of an older one".into(),
    });
    assert_eq!(leader.settle(&mut api), []);
}
