//! Invalid objects, next to a pod that must still get its devices.

use serde_json::{Value, json};
use vgpu_planner::model::Node;
use vgpu_planner::{About, Change, Object, Read};

use crate::desk::{Desk, kinds, read, slice, wants};

/// A copy of slice `s0` with another name and pool, changed by `change`.
fn like_s0(name: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut slice = slice(0);
    slice["metadata"]["name"] = json!(name);
    slice["spec"]["pool"]["name"] = json!(format!("n0/{name}"));
    change(&mut slice);
    slice
}

fn memory_of(slice: &mut Value, value: &str) {
    slice["spec"]["devices"][0]["capacity"]["memory"] = json!({"value": value});
}

#[test]
fn slices_that_are_wrong_stop_nobody() {
    let generation = |number: u32, device: &'static str| {
        move |slice: &mut Value| {
            slice["spec"]["pool"] = json!({"name": "n0/two", "generation": number, "resourceSliceCount": 1});
            slice["spec"]["devices"][0]["name"] = json!(device);
        }
    };
    let told = [
        ("s0", slice(0)),
        (
            "half",
            like_s0("half", |slice| slice["spec"]["pool"]["resourceSliceCount"] = json!(2)),
        ),
        ("negative", like_s0("negative", |slice| memory_of(slice, "-5"))),
        (
            "enormous",
            like_s0("enormous", |slice| memory_of(slice, "9223372036854775807E")),
        ),
        (
            "twice",
            like_s0("twice", |slice| {
                let device = slice["spec"]["devices"][0].clone();
                slice["spec"]["devices"].as_array_mut().unwrap().push(device);
            }),
        ),
        // Of two generations the older is ignored: a device that the newer one lacks is gone.
        ("old", like_s0("old", generation(1, "gone"))),
        ("new", like_s0("new", generation(2, "here"))),
    ];
    let mut desk = Desk::new(1);
    for (_, slice) in &told {
        let (slice, read) = (read(slice.clone()), None);
        desk.tell(Change::Slice { slice, read });
    }
    desk.list();
    for at in 0..4 {
        let name = format!("c{at}");
        desk.fraction(&name, 8);
        desk.pod(&name, &[&name], json!({}));
    }
    for _ in 0..8 {
        let plan = desk.plan();
        for wanted in plan.reads {
            match wanted {
                Read::Claims => desk.list(),
                Read::Slice(name) => {
                    let (_, slice) = told.iter().find(|(known, _)| *known == name).expect("it was told");
                    let (slice, read) = (read(slice.clone()), Some(desk.time()));
                    desk.tell(Change::Slice { slice, read });
                }
            }
        }
        for write in &plan.writes {
            desk.perform(write);
        }
    }
    let mut given: Vec<(String, String)> = desk
        .claims
        .iter()
        .filter_map(|claim| claim.allocation())
        .map(|allocation| &allocation.devices.results[0])
        .map(|result| (result.pool.clone(), result.device.clone()))
        .collect();
    assert_eq!(given.len(), 4);
    given.sort_unstable();
    given.dedup();
    let expected = [("n0/enormous", "gpu-0"), ("n0/two", "here"), ("n0/vgpu", "gpu-0")];
    let expected = expected.map(|(pool, device)| (pool.to_owned(), device.to_owned()));
    assert_eq!(given, expected, "no other pool has anything to give");
}

#[test]
fn selectors_that_are_wrong_stop_nobody() {
    let selectors = [
        ("uncompiled", "device."),
        ("untyped", "device.driver + 1"),
        ("keyless", "device.attributes['dra.vgpu'].nothing == 1"),
        (
            "costly",
            "[1,2,3,4,5,6,7,8,9,10].all(a, [1,2,3,4,5,6,7,8,9,10].all(b, [1,2,3,4,5,6,7,8,9,10].all(c, \
             [1,2,3,4,5,6,7,8,9,10].all(d, [1,2,3,4,5,6,7,8,9,10].all(e, a + b + c + d + e > 0)))))",
        ),
    ];
    let mut desk = Desk::new(1);
    for (name, expression) in selectors {
        let mut request = wants("vgpu", 1);
        request["exactly"]["selectors"] = json!([{"cel": {"expression": expression}}]);
        desk.claim(name, json!([request]));
        desk.pod(name, &[name], json!({}));
    }
    desk.fraction("c", 3);
    desk.pod("p", &["c"], json!({}));
    let (_, verdicts) = desk.settle();
    assert_eq!(desk.node_of("c").as_deref(), Some("n0"));
    for (name, _) in selectors {
        assert_eq!(desk.node_of(name), None, "{name}");
        let is_told = |(about, _): &&(About, _)| about.object == Object::Pod && about.name == name;
        assert_eq!(
            verdicts
                .iter()
                .filter(is_told)
                .map(|(_, verdict)| verdict.reason())
                .collect::<Vec<_>>(),
            // Too costly to ask it of all devices: the explanation says why.
            [if name == "costly" {
                "NoNodeFits"
            } else {
                "NoDeviceMatches"
            }],
            "{name}"
        );
    }
}

#[test]
fn a_class_that_changes_under_waiting_claims_counts_as_it_is_now() {
    let class = |expression: &str| {
        Change::Class(read(json!({"metadata": {"name": "vgpu"},
            "spec": {"selectors": [{"cel": {"expression": expression}}]}})))
    };
    let ours = "device.driver == 'dra.vgpu'";
    let mut desk = Desk::new(1);
    desk.tell(class(&format!(
        "{ours} && device.capacity['dra.vgpu'].memory.isGreaterThan(quantity('9'))"
    )));
    desk.fraction("c", 3);
    desk.pod("p", &["c"], json!({}));
    let (writes, _) = desk.settle();
    assert!(!kinds(&writes).contains(&"allocate"));
    desk.tell(class("device."));
    assert!(desk.settle().0.is_empty());
    desk.tell(Change::ClassGone { name: "vgpu".into() });
    assert!(desk.settle().0.is_empty(), "nobody's claim now");
    desk.tell(class(ours));
    assert!(kinds(&desk.settle().0).contains(&"allocate"));
    assert_eq!(desk.node_of("c").as_deref(), Some("n0"));
}

#[test]
fn a_node_that_cannot_be_read_gets_nobody_and_is_told_of() {
    let mut desk = Desk::new(2);
    let mut node: Node = read(json!({"metadata": {"name": "n0"}}));
    node.is_unreadable = true;
    desk.tell(Change::Node(node));
    for (name, memory) in [("c", 3), ("d", 8)] {
        desk.fraction(name, memory);
        desk.pod(name, &[name], json!({}));
    }
    let (_, verdicts) = desk.settle();
    assert_eq!((desk.node_of("c").as_deref(), desk.node_of("d")), (Some("n1"), None));
    let words: Vec<String> = verdicts.iter().map(|(_, verdict)| verdict.to_string()).collect();
    assert_eq!(
        words,
        [
            "no node has both the devices and what else the pod needs; of those with devices: 1 cannot be read (the log of \
          vgpu-controller says why)"
        ]
    );
}
