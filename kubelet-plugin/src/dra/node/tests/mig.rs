//! Claims of instances of a GPU in MIG mode, on the software GPU's capability nodes.

use super::*;
use crate::publish::inventory::Unavailable;
use crate::publish::inventory::tests::instance;
use serde_json::Value;

const NAME: &str = "mig-aaaabbbb-3g-40gb-4";
const UUID: &str = "MIG-aaaabbbb-1111-5222-8333-444455556666";

/// A claim with the instance.
fn of_instance(uid: &str) -> (ClaimId, ResourceClaim) {
    let result = json!({"request": "gpu", "driver": "dra.vgpu", "pool": "n1/vgpu-mig", "device": NAME});
    let claim = json!({"metadata": {"name": format!("claim-{uid}"), "namespace": "d", "uid": uid}, "spec": {},
        "status": {"allocation": {"devices": {"results": [result]}}}});
    (id(uid), serde_json::from_value(claim).expect("a claim"))
}

/// A node with the instance, whose capability nodes are there.
fn node_on(rig: &Rig) -> Node {
    let of_kernel = rig.path("soft/proc/driver/nvidia/capabilities/gpu0/mig/gi2");
    std::fs::create_dir_all(of_kernel.join("ci0")).expect("a folder");
    for (access, minor) in [("access", 21), ("ci0/access", 22)] {
        std::fs::write(of_kernel.join(access), format!("DeviceFileMinor: {minor}\n")).expect("written");
    }
    let mut node = rig.open();
    node.set_inventory(Ok(Inventory::new(vec![gpu(1), instance(0, UUID)])));
    node
}

fn spec(rig: &Rig, uid: &str) -> Value {
    let text = std::fs::read(rig.path(&format!("cdi/dra.vgpu-claim_{uid}.json"))).expect("a CDI file");
    serde_json::from_slice(&text).expect("JSON")
}

#[test]
fn a_claim_of_an_instance_gets_its_capability_nodes_and_its_memory_as_the_limit() {
    on_each_file_system("a_claim_of_an_instance_gets_its_capability_nodes", |rig| {
        let mut node = node_on(rig);
        let prepared = prepare(&mut node, of_instance("u1")).expect("prepared");
        assert_eq!((prepared[0].device.as_str(), &prepared[0].share_id), (NAME, &None));
        let spec = spec(rig, "u1");
        let edits = &spec["devices"][0]["containerEdits"];
        let mounts = edits["mounts"].as_array().expect("mounts").iter();
        let places = mounts.map(|mount| mount["containerPath"].as_str().expect("a path"));
        let caps: Vec<&str> = places.filter(|path| path.starts_with("/dev/nvidia-caps/")).collect();
        assert_eq!(caps, ["/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22"]);
        let variables = spec["containerEdits"]["env"].as_array().expect("variables");
        assert!(
            variables.contains(&"NVIDIA_VISIBLE_DEVICES=void".into()),
            "{variables:?}"
        );
        assert!(
            variables.contains(&"SOFT_GPU_CAPS=/dev/nvidia-caps".into()),
            "{variables:?}"
        );
        let limits = std::fs::read_to_string(rig.path(&format!("run/claims/u1/{NAME}/limits"))).expect("limits");
        assert!(limits.contains(&format!("gpu {UUID}\n")), "{limits}");
        assert!(limits.contains(&format!("memory {}\n", 40_448_u64 << 20)), "{limits}");
    });
}

#[test]
fn an_instance_is_prepared_for_one_claim_and_free_again_after_it_also_over_a_restart() {
    on_each_file_system("an_instance_is_prepared_for_one_claim", |rig| {
        prepare(&mut node_on(rig), of_instance("u1")).expect("prepared");
        let mut node = node_on(rig);
        prepare(&mut node, of_instance("u1")).expect("prepared before");
        let refused = prepare(&mut node, of_instance("u2"))
            .expect_err("it is taken")
            .to_string();
        assert!(refused.contains(NAME) && refused.contains("memory"), "{refused}");
        unprepare(&mut node, "u1").expect("unprepared");
        prepare(&mut node, of_instance("u2")).expect("free");
        unprepare(&mut node, "u2").expect("unprepared");
        assert_eq!(rig.leftovers(), [""; 0]);
    });
}

#[test]
fn an_instance_that_is_gone_or_has_no_nodes_is_refused_with_the_reason() {
    let rig = Rig::new(false);
    let mut node = node_on(&rig);
    let gone = BTreeMap::from([(UUID.to_owned(), Unavailable::missing(None))]);
    let all = vec![gpu(1), instance(0, UUID)];
    node.set_inventory(Ok(Inventory::with_unavailable(all.clone(), gone)));
    let refused = prepare(&mut node, of_instance("u1")).expect_err("gone").to_string();
    assert!(
        refused.contains(UUID) && refused.contains("it was destroyed"),
        "{refused}"
    );
    node.set_inventory(Ok(Inventory::new(all)));
    std::fs::remove_dir_all(rig.path("soft/proc")).expect("removed");
    let refused = prepare(&mut node, of_instance("u1")).expect_err("no nodes").to_string();
    assert!(
        refused.contains("gpu0/mig/gi2/access") && refused.contains("nvidia-smi -L"),
        "{refused}"
    );
    assert_eq!(rig.leftovers(), [""; 0]);
}

/// Its container keeps the capability nodes, by which programs reach whatever is in that place.
#[test]
fn a_claim_whose_instance_was_replaced_is_not_prepared_again_and_keeps_its_place() {
    let rig = Rig::new(false);
    let mut node = node_on(&rig);
    prepare(&mut node, of_instance("u1")).expect("prepared");
    let replaced = BTreeMap::from([(UUID.to_owned(), Unavailable::Replaced("1g.10gb@4 (MIG-other)".into()))]);
    node.set_inventory(Ok(Inventory::with_unavailable(vec![instance(0, UUID)], replaced)));
    let refused = prepare(&mut node, of_instance("u1")).expect_err("replaced").to_string();
    assert!(
        refused.contains(NAME) && refused.contains("1g.10gb@4 (MIG-other)"),
        "{refused}"
    );
    unprepare(&mut node, "u1").expect("unprepared");
    assert_eq!(rig.leftovers(), [""; 0]);
}

/// The arguments of the hook that lets a claim's containers start, after the claims' files were renewed.
fn hook_arguments(rig: &Rig, node: &mut Node, uid: &str) -> Vec<String> {
    let locked = node.locked();
    let failed = node.renew_cdi_files(&locked).expect("renewed");
    assert_eq!(failed, BTreeMap::new());
    let spec = spec(rig, uid);
    let arguments = spec["containerEdits"]["hooks"][0]["args"]
        .as_array()
        .expect("arguments")
        .clone();
    arguments
        .iter()
        .map(|one| one.as_str().expect("a text").to_owned())
        .collect()
}

/// The value of an option.
fn option<'a>(arguments: &'a [String], name: &str) -> Option<&'a str> {
    let at = arguments.iter().position(|one| one == name)?;
    Some(&arguments[at + 1])
}

#[test]
fn a_container_that_restarts_after_its_instance_was_replaced_is_refused_with_the_reason() {
    let rig = Rig::new(false);
    let mut node = node_on(&rig);
    prepare(&mut node, of_instance("u1")).expect("prepared");
    let all = vec![gpu(1), instance(0, UUID)];
    let replaced = BTreeMap::from([(UUID.to_owned(), Unavailable::Replaced("1g.10gb@4 (MIG-other)".into()))]);
    assert_eq!(option(&hook_arguments(&rig, &mut node, "u1"), "--refused"), None);
    node.set_inventory(Ok(Inventory::with_unavailable(all.clone(), replaced)));
    let refused = hook_arguments(&rig, &mut node, "u1");
    let why = option(&refused, "--refused").expect("a reason");
    assert!(
        why.contains(UUID) && why.contains("1g.10gb@4") && why.contains("delete the pods"),
        "{why}"
    );
    // It is back.
    node.set_inventory(Ok(Inventory::new(all)));
    assert_eq!(option(&hook_arguments(&rig, &mut node, "u1"), "--refused"), None);
}

/// Several claims of one container: only the hook sees them together.
#[test]
fn a_container_with_an_instance_has_no_other_device_where_the_driver_gives_one() {
    for (version, expected) in [("550.54.15", Some("550.54.15")), ("570.86.10", None), ("unknown", None)] {
        let rig = Rig::new(false);
        let mut node = node_on(&rig);
        let mut all = vec![gpu(1), instance(0, UUID)];
        all.iter_mut().for_each(|one| one.driver_version = version.into());
        node.set_inventory(Ok(Inventory::new(all)));
        prepare(&mut node, of_instance("u1")).expect("prepared");
        assert_eq!(
            option(&hook_arguments(&rig, &mut node, "u1"), "--alone"),
            expected,
            "{version}"
        );
    }
}

/// Its limits file has the UUID alone, so nobody knows of which GPU it is a part.
#[test]
fn a_claim_of_an_instance_that_lost_its_record_keeps_every_gpu_that_it_may_be_a_part_of() {
    let rig = Rig::new(false);
    prepare(&mut node_on(&rig), of_instance("u1")).expect("prepared");
    std::fs::remove_file(rig.record("u1")).expect("removed");
    let mut node = rig.open();
    node.set_inventory(Ok(Inventory::new(vec![gpu(0)])));
    let refused = prepare(&mut node, claim("u2", &[("s1", 10, 0)]))
        .expect_err("it may be its GPU")
        .to_string();
    assert!(refused.contains(UUID), "{refused}");
    // The driver lists it.
    node.set_inventory(Ok(Inventory::new(vec![gpu(0), instance(1, UUID)])));
    prepare(&mut node, claim("u2", &[("s1", 10, 0)])).expect("another GPU");
    unprepare(&mut node, "u1").expect("unprepared");
}

/// A scan may be some seconds old when a claim comes, so the node looks at the records too.
#[test]
fn a_gpu_and_its_instance_exclude_each_other_whatever_the_last_scan_said() {
    let rig = Rig::new(false);
    let mut node = node_on(&rig);
    let on_gpu = |uid| claim(uid, &[("s1", 10, 0)]);
    prepare(&mut node, of_instance("u1")).expect("prepared");
    node.set_inventory(Ok(Inventory::new(vec![gpu(0)])));
    let refused = prepare(&mut node, on_gpu("u2"))
        .expect_err("its instance is taken")
        .to_string();
    assert!(
        refused.contains(UUID) && refused.contains("delete their pods"),
        "{refused}"
    );
    unprepare(&mut node, "u1").expect("unprepared");
    prepare(&mut node, on_gpu("u2")).expect("nobody has an instance of it");
    node.set_inventory(Ok(Inventory::new(vec![instance(0, UUID)])));
    let refused = prepare(&mut node, of_instance("u3"))
        .expect_err("its GPU is taken")
        .to_string();
    assert!(
        refused.contains(&gpu(0).uuid) && refused.contains("as a whole"),
        "{refused}"
    );
    unprepare(&mut node, "u2").expect("unprepared");
    prepare(&mut node, of_instance("u3")).expect("free");
    // Another instance in the same place, with another UUID.
    let mut other = instance(0, "MIG-bbbbcccc-1111-5222-8333-444455556666");
    other.mig.as_mut().expect("an instance").profile = "1g.10gb".into();
    node.set_inventory(Ok(Inventory::new(vec![other])));
    let (id, mut claim) = of_instance("u4");
    let devices = claim
        .status
        .as_mut()
        .and_then(|status| status.allocation.as_mut()?.devices.as_mut());
    devices.expect("devices").results.as_mut().expect("results")[0].device = "mig-bbbbcccc-1g-10gb-4".into();
    let refused = prepare(&mut node, (id, claim))
        .expect_err("the same capability nodes")
        .to_string();
    assert!(
        refused.contains(UUID) && refused.contains("was in the place of MIG-bbbb"),
        "{refused}"
    );
}
