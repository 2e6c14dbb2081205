use super::*;
use crate::publish::inventory::tests::{gpu, instance};
use serde_json::{Value, json};

const POOL: &str = "n1/vgpu";

fn inventory() -> Inventory {
    Inventory::new(vec![gpu(0), gpu(1)])
}

fn result(device: &str, share: &str) -> Value {
    json!({"request": "gpu", "driver": DRIVER_NAME, "pool": POOL, "device": device, "shareID": share,
           "consumedCapacity": {"memory": "20Gi", "cores": "25", "shares": "1"}})
}

fn claim_with(results: Vec<Value>, configs: Vec<Value>) -> ResourceClaim {
    let claim = json!({
        "metadata": {"name": "c", "namespace": "d", "uid": "u"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "vgpu"}}]}},
        "status": {"allocation": {"devices": {"results": results, "config": configs}}},
    });
    serde_json::from_value(claim).expect("a claim")
}

fn config(source: &str, requests: &[&str], parameters: Value) -> Value {
    let mut parameters = parameters;
    parameters["apiVersion"] = vgpu_api::CONFIG_API_VERSION.into();
    parameters["kind"] = vgpu_api::CONFIG_KIND.into();
    json!({"source": source, "requests": requests, "opaque": {"driver": DRIVER_NAME, "parameters": parameters}})
}

fn one(result: Value, configs: Vec<Value>) -> Result<Share, Error> {
    shares(&claim_with(vec![result], configs), &Pools::of("n1"), &inventory()).map(|mut shares| shares.remove(0))
}

#[test]
fn a_result_becomes_a_share() {
    let share = one(result("gpu-3f8a1c20", "s1"), vec![]).expect("a share");
    assert_eq!(share, crate::dra::share::tests::share("s1"));
}

#[test]
fn a_share_of_all_memory_without_cores_is_not_held_back() {
    for (memory, cores, expected) in [
        ("80Gi", "0", limits::ComputePolicy::Unlimited),
        ("80Gi", "25", limits::ComputePolicy::Balanced),
        ("79Gi", "0", limits::ComputePolicy::Balanced),
    ] {
        let mut result = result("gpu-3f8a1c20", "s1");
        result["consumedCapacity"] = json!({"memory": memory, "cores": cores, "shares": "1"});
        assert_eq!(one(result, vec![]).expect("a share").compute_policy, expected);
    }
}

/// It is not shared, so the allocation has neither a share ID nor consumed capacity.
#[test]
fn an_instance_is_a_share_of_all_that_it_has() {
    let instance = instance(1, "MIG-aaaabbbb-1111-5222-8333-444455556666");
    let allocated =
        json!({"request": "gpu", "driver": DRIVER_NAME, "pool": "n1/vgpu-mig", "device": "mig-aaaabbbb-3g-40gb-4"});
    let of = |result: &Value, configs: Vec<Value>| {
        let inventory = Inventory::new(vec![gpu(0), instance.clone()]);
        let claim = claim_with(vec![result.clone()], configs);
        shares(&claim, &Pools::of("n1"), &inventory).map(|mut shares| shares.remove(0))
    };
    let exclusive = config("FromClass", &[], json!({"sharing": "Exclusive"}));
    let share = of(&allocated, vec![exclusive.clone()]).expect("a share");
    assert_eq!(
        (share.name.as_str(), &share.share_id, &share.gpu),
        ("mig-aaaabbbb-3g-40gb-4", &None, &instance.uuid)
    );
    assert_eq!((share.memory, share.cores), (instance.memory, 0));
    assert_eq!(share.compute_policy, limits::ComputePolicy::Unlimited);
    let required = config("FromClaim", &[], json!({"memoryEnforcement": "Require"}));
    assert!(
        of(&allocated, vec![exclusive, required]).is_err(),
        "an instance has no limit beside its own size"
    );
    let mut admin = allocated;
    admin["adminAccess"] = true.into();
    assert!(matches!(of(&admin, vec![]), Err(Error::AdminOnGpu { .. })));
}

/// The node publishes instances as devices that several claims may have.
#[test]
fn a_share_of_an_instance_is_a_part_of_its_memory_and_time() {
    let instance = instance(1, "MIG-aaaabbbb-1111-5222-8333-444455556666");
    let of = |memory: &str, share_id: Option<&str>| {
        let mut result = json!({"request": "gpu", "driver": DRIVER_NAME, "pool": "n1/vgpu-mig",
            "device": "mig-aaaabbbb-3g-40gb-4",
            "consumedCapacity": {"memory": memory, "cores": "25", "shares": "1", "multiprocessors": "0"}});
        if let Some(id) = share_id {
            result["shareID"] = id.into();
        }
        let inventory = Inventory::new(vec![gpu(0), instance.clone()]);
        shares(&claim_with(vec![result], vec![]), &Pools::of("n1"), &inventory).map(|mut shares| shares.remove(0))
    };
    let share = of("10Gi", Some("s1")).expect("a share");
    assert_eq!((share.name.as_str(), share.memory, share.cores), ("s1", 10 << 30, 25));
    assert_eq!(share.gpu, instance.uuid);
    let said = of("41Gi", Some("s1"))
        .expect_err("more than the instance has")
        .to_string();
    assert!(said.contains("memory") && said.contains("41Gi"), "{said}");
    assert!(
        matches!(of("10Gi", None), Err(Error::NoCapacity { .. })),
        "a share has a name"
    );
}

#[test]
fn several_instances_need_a_driver_that_takes_them() {
    let places = [
        (2, 4, "MIG-aaaabbbb-1111-5222-8333-444455556666"),
        (1, 0, "MIG-ccccdddd-1111-5222-8333-444455556666"),
    ];
    let with = |driver: &str, devices: &[&str]| {
        let mut all: Vec<Gpu> = places
            .iter()
            .map(|(id, start, uuid)| {
                let mut one = instance(1, uuid);
                let mig = one.mig.as_mut().expect("an instance");
                mig.gpu_instance = *id;
                mig.placement = Some(vgpu_node::gpus::Placement { start: *start, size: 4 });
                one
            })
            .chain([gpu(0)])
            .collect();
        all.iter_mut().for_each(|one| one.driver_version = driver.into());
        let result = |(at, device): (usize, &&str)| match device.starts_with("mig-") {
            true => json!({"request": "gpu", "driver": DRIVER_NAME, "pool": "n1/vgpu-mig", "device": device}),
            false => result(device, &format!("s{at}")),
        };
        let results = devices.iter().enumerate().map(result).collect();
        shares(&claim_with(results, vec![]), &Pools::of("n1"), &Inventory::new(all))
    };
    let (one, two, whole) = ("mig-aaaabbbb-3g-40gb-4", "mig-ccccdddd-3g-40gb-0", "gpu-3f8a1c20");
    for devices in [&[one, two][..], &[whole, one]] {
        let said = with("550.54.15", devices).expect_err("too old").to_string();
        assert!(
            said.contains("mig-") && said.contains("550.54.15") && said.contains("570"),
            "{said}"
        );
        assert_eq!(with("570.86.10", devices).expect("new enough").len(), 2);
    }
    for devices in [&[one][..], &[whole]] {
        assert!(with("550.54.15", devices).is_ok(), "{devices:?}");
    }
}

#[test]
fn quantities_are_numbers_in_any_format() {
    for (text, bytes) in [
        ("21474836480", 20 << 30),
        ("20480Mi", 20 << 30),
        ("1431Mi", 1431 << 20),
        ("64Mi", 64 << 20),
    ] {
        let mut result = result("gpu-3f8a1c20", "s1");
        result["consumedCapacity"]["memory"] = text.into();
        assert_eq!(one(result, vec![]).expect("a share").memory, bytes);
    }
}

/// From Kubernetes 1.38 on a result may have the names with our domain.
#[test]
fn amounts_are_found_under_both_names() {
    let mut long = result("gpu-3f8a1c20", "s1");
    long["consumedCapacity"] = json!({"dra.vgpu/memory": "20Gi", "dra.vgpu/cores": "25", "dra.vgpu/shares": "1"});
    assert_eq!(one(long.clone(), vec![]), one(result("gpu-3f8a1c20", "s1"), vec![]));
    long["consumedCapacity"]["memory"] = "10Gi".into();
    let error = one(long, vec![]).expect_err("both").to_string();
    let expected = format!(
        "{RESULTS}[0].consumedCapacity[dra.vgpu/memory]: \"20Gi\", and \"10Gi\" in memory, are one capacity under two names; \
         delete pod and claim, so that it is allocated again"
    );
    assert_eq!(error, expected);
}

#[test]
fn what_the_api_server_let_through_is_refused_by_its_field() {
    for (key, value) in [
        ("memory", "999Gi"),
        ("memory", "-1Gi"),
        ("memory", "20"),
        ("memory", "garbage"),
        ("cores", "101"),
        ("cores", "-1"),
        ("cores", "250m"),
        ("shares", "2"),
        ("shares", "0"),
        ("colour", "3"),
    ] {
        let mut result = result("gpu-3f8a1c20", "s1");
        result["consumedCapacity"][key] = value.into();
        let error = one(result, vec![]).expect_err(value).to_string();
        assert!(
            error.starts_with(&format!("{RESULTS}[0].consumedCapacity[{key}]")),
            "{error}"
        );
        assert!(key == "colour" || error.contains(value), "{error}");
    }
    let mut exotic = result("gpu-3f8a1c20", "../../etc");
    assert!(matches!(one(exotic.clone(), vec![]), Err(Error::ShareName { .. })));
    exotic["shareID"] = Value::Null;
    assert!(matches!(one(exotic, vec![]), Err(Error::NoCapacity { .. })));
    for key in ["memory", "cores", "shares"] {
        let mut result = result("gpu-3f8a1c20", "s1");
        result["consumedCapacity"].as_object_mut().expect("a map").remove(key);
        assert!(matches!(one(result, vec![]), Err(Error::NoCapacity { key: missing, .. }) if missing == key));
    }
}

#[test]
fn one_share_is_not_given_twice() {
    let again = [result("gpu-3f8a1c20", "s1"), result("gpu-3f8a1c21", "s1")];
    let error = shares(&claim_with(again.to_vec(), vec![]), &Pools::of("n1"), &inventory()).expect_err("twice");
    assert!(
        error
            .to_string()
            .starts_with(&format!("{RESULTS}[1] is share \"s1\" a second time")),
        "{error}"
    );
    let mut monitor = result("gpu-3f8a1c20-monitor", "s1");
    monitor["adminAccess"] = true.into();
    monitor["pool"] = "n1/vgpu-monitor".into();
    let both = shares(
        &claim_with(vec![monitor.clone(), monitor], vec![]),
        &Pools::of("n1"),
        &inventory(),
    );
    assert_eq!(both.expect("two looks at one GPU").len(), 2);
}

#[test]
fn other_drivers_are_not_looked_at() {
    let mut foreign = result("gpu-nowhere", "x");
    foreign["driver"] = "gpu.example.com".into();
    foreign["consumedCapacity"] = json!({"memory": "garbage"});
    let foreign_config = json!({"source": "FromClaim", "requests": [],
        "opaque": {"driver": "gpu.example.com", "parameters": {"colour": 3}}});
    let claim = claim_with(
        vec![foreign.clone(), result("gpu-3f8a1c21", "s1")],
        vec![foreign_config],
    );
    let found = shares(&claim, &Pools::of("n1"), &inventory()).expect("shares");
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].device, "gpu-3f8a1c21");
    assert_eq!(
        shares(&claim_with(vec![foreign], vec![]), &Pools::of("n1"), &inventory()),
        Err(Error::NoResult)
    );
}

#[test]
fn another_node_and_no_allocation_are_named() {
    let mut elsewhere = result("gpu-3f8a1c20", "s1");
    elsewhere["pool"] = "n2/vgpu".into();
    assert!(matches!(one(elsewhere, vec![]), Err(Error::Pool { pool, .. }) if pool == "n2/vgpu"));
    let mut claim = claim_with(vec![], vec![]);
    claim.status = None;
    assert_eq!(shares(&claim, &Pools::of("n1"), &inventory()), Err(Error::NotAllocated));
    assert!(matches!(one(result("gpu-0", "s1"), vec![]), Err(Error::Device { device, .. }) if device == "gpu-0"));
}

#[test]
fn a_monitor_needs_admin_access_and_a_gpu_refuses_it() {
    let mut monitor = result("gpu-3f8a1c20-monitor", "s1");
    monitor.as_object_mut().expect("a map").remove("consumedCapacity");
    monitor.as_object_mut().expect("a map").remove("shareID");
    assert!(matches!(
        one(monitor.clone(), vec![]),
        Err(Error::MonitorWithoutAdmin { .. })
    ));
    monitor["adminAccess"] = true.into();
    monitor["pool"] = "n1/vgpu-monitor".into();
    let share = one(monitor.clone(), vec![]).expect("a monitor");
    assert_eq!(
        (share.role, share.name.as_str()),
        (Role::Monitor, "gpu-3f8a1c20-monitor")
    );
    // It has no limit that could be enforced. The class says so, or the claim.
    for (source, at) in [
        ("FromClass", "DeviceClass vgpu (FromClass), status."),
        ("FromClaim", "status."),
    ] {
        let require = config(source, &[], json!({"memoryEnforcement": "Require"}));
        let error = one(monitor.clone(), vec![require]).expect_err("no limit").to_string();
        let expected = format!(
            "{at}allocation.devices.config[0].opaque.parameters.memoryEnforcement: Require asks for the driver's limit of a \
             share's memory, and a monitor has no limit; remove the field"
        );
        assert!(error.starts_with(&expected), "{error}");
    }
    let mixed = claim_with(vec![monitor, result("gpu-3f8a1c20", "s1")], vec![]);
    assert!(matches!(
        shares(&mixed, &Pools::of("n1"), &inventory()),
        Err(Error::Mixed { .. })
    ));
    let mut admin = result("gpu-3f8a1c20", "s1");
    admin["adminAccess"] = true.into();
    assert!(matches!(one(admin, vec![]), Err(Error::AdminOnGpu { .. })));
}

#[test]
fn configs_apply_by_request_and_class_comes_first() {
    let class = config(
        "FromClass",
        &[],
        json!({"priority": "High", "computePolicy": "Unlimited"}),
    );
    let for_sub = config("FromClaim", &["gpu/large"], json!({"computePolicy": "Guaranteed"}));
    let for_other = config("FromClaim", &["other"], json!({"priority": "Low"}));
    let mut sub = result("gpu-3f8a1c20", "s1");
    sub["request"] = "gpu/large".into();
    let configs = vec![class, for_sub, for_other];
    let share = one(sub, configs.clone()).expect("a share");
    assert_eq!(share.compute_policy, limits::ComputePolicy::Guaranteed);
    assert_eq!(share.priority, limits::Priority::High);
    assert_eq!(share.request, "gpu/large");
    let share = one(result("gpu-3f8a1c20", "s1"), configs).expect("a share");
    assert_eq!(share.compute_policy, limits::ComputePolicy::Unlimited);
}

#[test]
fn bad_configs_name_their_path() {
    for (source, parameters, field) in [
        ("FromClaim", json!({"colour": 3}), "colour"),
        ("FromClaim", json!({"computePolicy": "Unlimited"}), "computePolicy"),
        ("FromClaim", json!({"computePolicy": "Perhaps"}), "computePolicy"),
        ("FromClass", json!({"sharing": "Exclusive"}), "sharing"),
    ] {
        let unrelated = config("FromClass", &["other"], json!({}));
        let error = one(
            result("gpu-3f8a1c20", "s1"),
            vec![unrelated, config(source, &[], parameters)],
        );
        let error = error.expect_err(field).to_string();
        let of_class = if source == "FromClass" {
            "DeviceClass vgpu (FromClass), "
        } else {
            ""
        };
        assert!(
            error.starts_with(&format!("{of_class}{CONFIGS}[1].opaque.parameters.{field}")),
            "{error}"
        );
    }
    let mut all = result("gpu-3f8a1c20", "s1");
    all["consumedCapacity"]["memory"] = "80Gi".into();
    one(all, vec![config("FromClass", &[], json!({"sharing": "Exclusive"}))]).expect("the whole GPU");
}

#[test]
fn wrong_units_in_the_request_are_refused_by_their_field() {
    let with = |class: &str, requests: Value| {
        let mut claim = claim_with(vec![result("gpu-3f8a1c20", "s1")], vec![]);
        let spec = json!({"requests": [{"name": "gpu", "exactly":
            {"deviceClassName": class, "capacity": {"requests": requests}}}]});
        claim.spec.as_mut().expect("a spec").devices = Some(serde_json::from_value(spec).expect("devices"));
        shares(&claim, &Pools::of("n1"), &inventory())
    };
    assert!(with("vgpu", json!({"memory": "20Gi", "cores": "25"})).is_ok());
    for (class, key, value) in [
        ("vgpu", "memory", "20"),
        ("vgpu", "memory", "-1Gi"),
        ("vgpu", "cores", "250m"),
        ("vgpu", "cores", "101"),
        ("vgpu", "colour", "1"),
        ("gpu", "memory", "20Gi"),
    ] {
        let error = with(class, json!({ key: value })).expect_err(value).to_string();
        let at = format!("spec.devices.requests[0].exactly.capacity.requests[{key}]");
        assert!(error.starts_with(&at), "{error}");
    }
}

proptest::proptest! {
    /// Whatever a scheduler writes, no share exceeds its GPU.
    #[test]
    fn no_share_exceeds_its_gpu(memory in "[-+]?[0-9]{1,14}(Ki|Mi|Gi|Ti|k|M|G|m|)", cores in "[-]?[0-9]{1,4}") {
        let mut result = result("gpu-3f8a1c20", "s1");
        result["consumedCapacity"]["memory"] = memory.into();
        result["consumedCapacity"]["cores"] = cores.into();
        if let Ok(share) = one(result, vec![]) {
            proptest::prop_assert!(share.memory <= gpu(0).memory && share.memory >= request::MEMORY_MIN);
            proptest::prop_assert!(share.cores <= 100);
        }
    }
}

#[test]
fn the_variables_of_a_dialect_are_those_of_the_config() {
    let report = |class: Value, claim: Value| {
        let configs = vec![config("FromClass", &[], class), config("FromClaim", &[], claim)];
        let mut result = result("gpu-3f8a1c20", "s1");
        result["consumedCapacity"]["memory"] = "80Gi".into();
        one(result, configs).expect("a share").report
    };
    assert_eq!(report(json!({}), json!({})), None);
    let plain = Report {
        dialect: config::Dialect::Hami,
        whole: false,
        priority: None,
    };
    assert_eq!(report(json!({}), json!({"reportAs": "hami"})), Some(plain));
    let all = Report {
        dialect: config::Dialect::Kai,
        whole: true,
        priority: Some(Priority::High),
    };
    let class = json!({"reportAs": "hami", "sharing": "Exclusive", "priority": "High"});
    assert_eq!(report(class, json!({"reportAs": "kai"})), Some(all));
}
