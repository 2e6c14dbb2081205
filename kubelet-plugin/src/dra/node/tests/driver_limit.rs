//! The hook for the driver's limit in the CDI files of claims, and claims that require the limit.

use super::*;
use crate::publish::inventory::Gpu;
use vgpu_api::config::MemoryEnforcement;
use vgpu_node::driver_limit::DriverLimit;

fn spec(rig: &Rig) -> String {
    std::fs::read_to_string(rig.path("cdi/dra.vgpu-claim_u1.json")).expect("a CDI file")
}

/// A node with one GPU of which the probe said this.
fn inventory(answer: Option<DriverLimit>) -> Result<Inventory, String> {
    Ok(Inventory::new(vec![Gpu {
        driver_limit: answer,
        ..gpu(0)
    }]))
}

fn able() -> Result<Inventory, String> {
    inventory(Some(DriverLimit::Dmem))
}

fn unable() -> Result<Inventory, String> {
    inventory(Some(DriverLimit::None("the hierarchy of cgroups is hybrid".into())))
}

fn silent() -> Result<Inventory, String> {
    inventory(Some(DriverLimit::Unknown("it hangs".into())))
}

/// A claim for a quarter of the GPU, with this config.
fn configured(enforcement: &str) -> (ClaimId, ResourceClaim) {
    let (id, claim) = claim("u1", &[("s1", 20, 25)]);
    let mut claim = serde_json::to_value(claim).expect("JSON");
    claim["status"]["allocation"]["devices"]["config"] = json!([{"source": "FromClaim", "opaque": {
        "driver": "dra.vgpu", "parameters": {
            "apiVersion": "dra.vgpu/v1alpha1", "kind": "VgpuConfig", "memoryEnforcement": enforcement}}}]);
    (id, serde_json::from_value(claim).expect("a claim"))
}

#[test]
fn the_hook_is_there_where_the_probe_succeeded_and_only_there() {
    let rig = Rig::new(false);
    let mut node = rig.open();
    node.set_inventory(unable());
    prepare(&mut node, configured("Prefer")).expect("served without the driver's limit");
    let without = spec(&rig);
    assert!(!without.contains("createRuntime"), "{without}");
    node.set_inventory(able());
    let _ = node.renew_cdi_files(&node.locked());
    let with = spec(&rig);
    assert!(with.contains("\"createRuntime\"") && with.contains("\"set\""), "{with}");
    assert!(!with.contains("--required"), "{with}");
    assert!(
        with.contains(&rig.path("run/driver-limits").display().to_string()),
        "{with}"
    );
    // A new instance writes CDI files before it has asked the driver.
    drop(node);
    let mut node = rig.open();
    assert_eq!(spec(&rig), with, "the record has the answer");
    node.set_inventory(unable());
    let _ = node.renew_cdi_files(&node.locked());
    assert_eq!(spec(&rig), without);
}

#[test]
fn a_library_of_an_older_release_has_no_such_hook() {
    let rig = Rig::new(false);
    let mut node = rig.open();
    node.set_inventory(able());
    prepare(&mut node, configured("Prefer")).expect("prepared");
    let digest = node.library().expect("installed").to_owned();
    std::fs::remove_file(rig.path("store").join(digest).join(vgpu_abi::paths::DRIVER_LIMIT_FILE)).expect("removed");
    prepare(&mut node, configured("Prefer")).expect("prepared again");
    assert!(!spec(&rig).contains("createRuntime"));
}

#[test]
fn a_claim_that_requires_the_limit_is_refused_where_there_is_none_with_the_reason() {
    let rig = Rig::new(false);
    let mut node = rig.open();
    for (answer, said) in [
        (unable(), "the hierarchy of cgroups is hybrid"),
        (inventory(None), "not asked yet"),
        (
            silent(),
            "it did not answer when it was last asked (it hangs); kubelet retries",
        ),
    ] {
        node.set_inventory(answer);
        let error = prepare(&mut node, configured("Require"))
            .expect_err("no limit")
            .to_string();
        assert!(error.starts_with("memoryEnforcement Require: "), "{error}");
        assert!(error.contains("gpu-3f8a1c20") && error.contains(said), "{error}");
        assert_eq!(rig.leftovers(), [""; 0]);
    }
}

#[test]
fn a_claim_that_requires_the_limit_never_loses_its_hook() {
    let rig = Rig::new(false);
    let mut node = rig.open();
    node.set_inventory(able());
    prepare(&mut node, configured("Require")).expect("prepared");
    let required = spec(&rig);
    assert!(required.contains("--required"), "{required}");
    // The driver is replaced by one without limits: containers that start again are refused by the hook.
    node.set_inventory(unable());
    let _ = node.renew_cdi_files(&node.locked());
    assert_eq!(spec(&rig), required);
    let error = prepare(&mut node, configured("Require"))
        .expect_err("another pod")
        .to_string();
    assert!(error.contains("is hybrid"), "{error}");
    std::fs::write(rig.record("u1"), "damaged").expect("written");
    drop(node);
    node = rig.open();
    node.set_inventory(unable());
    let _ = node.renew_cdi_files(&node.locked());
    assert!(spec(&rig).contains("--required"), "{}", spec(&rig));
}

/// A claim whose record and CDI file are lost, on a node that knows this of its GPU: says whether its containers need the limit
/// after a restart of the plugin (`restarts`), or in the same instance.
fn is_required_after_the_loss(known: Result<Inventory, String>, restarts: bool) -> bool {
    let rig = Rig::new(false);
    let mut node = rig.open();
    node.set_inventory(known.clone());
    prepare(&mut node, configured("Prefer")).expect("prepared");
    std::fs::write(rig.record("u1"), "damaged").expect("written");
    std::fs::remove_file(rig.path("cdi/dra.vgpu-claim_u1.json")).expect("removed");
    if restarts {
        drop(node);
        // It has rebuilt the claim before it knows its GPUs.
        node = rig.open();
        assert!(node.entry("u1").expect("rebuilt").may_require_limit);
        node.set_inventory(known);
    }
    for _ in 0..2 {
        let _ = node.renew_cdi_files(&node.locked());
    }
    let is_required = spec(&rig).contains("--required");
    let record = rig.checkpoint().claims["u1"].clone();
    assert_eq!(record.may_require_limit, is_required, "{record:?}");
    assert_eq!(
        record.shares[0].share.memory_enforcement == MemoryEnforcement::Require,
        is_required
    );
    is_required
}

#[test]
fn nobody_could_prepare_a_claim_that_requires_the_limit_where_the_driver_refuses_it() {
    for restarts in [false, true] {
        assert!(!is_required_after_the_loss(unable(), restarts), "restarts: {restarts}");
        for (known, why) in [
            (able(), "it may require it"),
            (silent(), "the driver may have answered before"),
            (inventory(None), "the driver was not asked"),
        ] {
            assert!(is_required_after_the_loss(known, restarts), "{why}");
        }
    }
}

#[test]
fn a_record_has_no_answer_of_a_gpu_that_was_not_found_out() {
    let rig = Rig::new(false);
    let mut node = rig.open();
    node.set_inventory(silent());
    prepare(&mut node, configured("Prefer")).expect("prepared");
    let text = std::fs::read_to_string(rig.record("u1")).expect("a record");
    // A release that does not know this answer could not read it.
    assert!(!text.contains("driverLimit"), "{text}");
    node.set_inventory(unable());
    prepare(&mut node, configured("Prefer")).expect("prepared again");
    let record = rig.checkpoint();
    let known = record.gpus.values().next().and_then(|gpu| gpu.driver_limit.clone());
    assert!(matches!(known, Some(DriverLimit::None(_))), "{known:?}");
}

#[test]
fn a_claim_whose_record_does_not_say_that_it_requires_the_limit_gets_it_at_the_next_prepare() {
    let rig = Rig::new(false);
    let mut node = rig.open();
    node.set_inventory(able());
    // As a release writes it that does not know the field.
    prepare(&mut node, configured("Prefer")).expect("prepared");
    prepare(&mut node, configured("Require")).expect("prepared again");
    assert!(spec(&rig).contains("--required"));
    drop(node);
    let _ = rig.open();
    assert!(spec(&rig).contains("--required"), "its record has it");
}

#[test]
fn a_claim_without_record_and_cdi_file_is_required_to_have_the_limit_until_it_has_its_name() {
    let rig = Rig::new(false);
    let mut node = rig.open();
    prepare(&mut node, configured("Prefer")).expect("prepared");
    std::fs::write(rig.record("u1"), "damaged").expect("written");
    let _ = node.renew_cdi_files(&node.locked());
    assert!(!spec(&rig).contains("--required"), "its CDI file says so");
    std::fs::write(rig.record("u1"), "damaged").expect("written");
    std::fs::remove_file(rig.path("cdi/dra.vgpu-claim_u1.json")).expect("removed");
    let _ = node.renew_cdi_files(&node.locked());
    assert!(spec(&rig).contains("--required"));
    let (id, claim) = configured("Prefer");
    assert!(node.name_claim(&node.locked(), &id, &claim).expect("named"));
    assert!(!spec(&rig).contains("createRuntime"));
}
