//! Policies: which of the devices that fit are chosen.

use super::*;

/// Two nodes: one GPU in use by half, one by a quarter, the rest unused.
fn two_nodes() -> Vec<Value> {
    vec![
        node("n1"),
        node("n2"),
        class(),
        slice("n1", [gpu("a", "80Gi"), gpu("b", "80Gi")]),
        slice("n2", [gpu("a", "80Gi"), gpu("b", "80Gi"), gpu("c", "40Gi")]),
        held("half", "n1", "b", Some("40Gi")),
        held("quarter", "n2", "b", Some("20Gi")),
    ]
}

#[test]
fn policies_choose_among_nodes_and_devices() {
    for (policy, amount, expected) in [
        (AllocationPolicy::FirstFit, "20Gi", "n1/a"),
        (AllocationPolicy::Binpack, "20Gi", "n1/b"),
        (AllocationPolicy::Binpack, "41Gi", "n2/b"),
        (AllocationPolicy::Binpack, "70Gi", "n1/a"),
        (AllocationPolicy::Spread, "20Gi", "n2/a"),
        (AllocationPolicy::WholeGpus, "20Gi", "n1/b"),
        (AllocationPolicy::WholeGpus, "50Gi", "n2/b"),
        (AllocationPolicy::WholeGpus, "70Gi", "n1/a"),
    ] {
        let all = two_nodes().into_iter().chain([memory("mine", amount)]);
        assert_eq!(with_policy(all, policy), [expected], "{} {amount}", policy.name());
    }
}

#[test]
fn whole_gpus_leaves_unused_ones_where_binpack_would_not() {
    // The unused GPU has 40Gi left, less than the 60Gi of the GPU in use, so binpack prefers it.
    let all = || {
        let gpus = [gpu("small", "40Gi"), gpu("large", "80Gi")];
        [
            node("n"),
            class(),
            slice("n", gpus),
            held("h", "n", "large", Some("20Gi")),
            memory("mine", "10Gi"),
        ]
    };
    assert_eq!(with_policy(all(), AllocationPolicy::Binpack), ["n/small"]);
    assert_eq!(with_policy(all(), AllocationPolicy::WholeGpus), ["n/large"]);
}

#[test]
fn affinity_is_kept_where_it_can_be_and_given_up_where_it_cannot() {
    let at = |name: &str, numa: i64| {
        let mut gpu = gpu(name, "80Gi");
        gpu["attributes"]["resource.kubernetes.io/numaNode"] = json!({"int": numa});
        gpu["attributes"]["resource.kubernetes.io/pcieRoot"] = json!({"string": format!("pci{numa}")});
        gpu["attributes"]["dra.vgpu/nvlinkClique"] = json!({"string": format!("GPU-{numa}")});
        gpu
    };
    // Sorted by memory left alone, c and a would come first.
    let all = |claims: Vec<Value>| {
        let gpus = [at("a", 0), at("b", 1), at("c", 1), at("d", 0), at("e", 0)];
        let held = [held("h1", "n", "c", Some("20Gi")), held("h2", "n", "a", Some("10Gi"))];
        [node("n"), class(), slice("n", gpus)]
            .into_iter()
            .chain(held)
            .chain(claims)
    };
    let many = |count: i64| {
        vec![claim(
            &format!("c{count}"),
            json!({"count": count, "capacity": {"requests": {"memory": "10Gi"}}}),
        )]
    };
    for policy in [AllocationPolicy::Numa, AllocationPolicy::Pcie, AllocationPolicy::Nvlink] {
        assert_eq!(
            with_policy(all(many(2)), policy),
            ["n/c", "n/b"],
            "the smaller place that does"
        );
        assert_eq!(with_policy(all(many(3)), policy), ["n/a", "n/d", "n/e"]);
        assert_eq!(with_policy(all(many(5)), policy).len(), 5, "no place has five");
        // No NUMA node or PCIe root holds both claims of the pod, so each claim gets its own.
        let two = with_policy(all(many(2).into_iter().chain(many(3)).collect()), policy);
        assert_eq!(two.len(), 5);
    }
    assert_eq!(with_policy(all(many(2)), AllocationPolicy::Binpack), ["n/c", "n/a"]);
}
