//! `vgpu top` and `vgpu advise` on a cluster whose API server is a stand-in.

#[path = "support/api.rs"]
mod api;
#[path = "support/said.rs"]
mod said;

use std::os::fd::OwnedFd;
use std::process::Command;

use api::Api;
use said::Said;
use serde_json::{Value, json};

const USAGES_OF_TEAM: &str = "/apis/dra.vgpu/v1alpha1/namespaces/team/vgpuusages";
const USAGES: &str = "/apis/dra.vgpu/v1alpha1/vgpuusages";
const NODES: &str = "/apis/dra.vgpu/v1alpha1/vgpunodes";
const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaims";
const PODS: &str = "/api/v1/namespaces/team/pods";
const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";

fn list(items: &[Value]) -> String {
    json!({"kind": "List", "apiVersion": "v1", "items": items}).to_string()
}

fn usage() -> Value {
    json!({"apiVersion": "dra.vgpu/v1alpha1", "kind": "VgpuUsage",
        "metadata": {"name": "vgpu", "namespace": "team", "managedFields": [{"manager": "m"}]}, "spec": {},
        "status": {"asOf": "2999-01-01T00:00:00Z", "shares": 1, "memory": {"held": "20Gi", "used": "9Gi"}, "coresHeld": 25,
            "gpuTimePercent": 4, "claims": [{"claim": "mine", "node": "n1", "device": "gpu-0", "memory": "20Gi",
                "memoryUsed": "8Gi", "memoryPeak": "9Gi", "memoryMean": "7Gi", "cores": 25, "gpuTimePercent": 4,
                "gpuTimePeakPercent": 8, "gpuTimeMeanPercent": 4, "processes": 1, "refusals": 0,
                "since": "2998-12-31T00:00:00Z"}]}})
}

fn claim() -> Value {
    json!({"metadata": {"name": "mine", "namespace": "team"}, "status": {
        "reservedFor": [{"resource": "pods", "name": "train"}],
        "allocation": {"devices": {"results": [{"driver": "dra.vgpu", "request": "gpu", "pool": "n1", "device": "gpu-0"}]}}}})
}

/// A namespace with one share, for a user of that namespace.
fn serving() -> Api {
    let api = Api::start();
    api.set(USAGES_OF_TEAM, list(&[usage()]));
    api.set(CLAIMS, list(&[claim()]));
    api.set(PODS, list(&[json!({"metadata": {"name": "train"}, "spec": {}})]));
    for path in [USAGES, NODES, SLICES] {
        api.refuse(path, 403);
    }
    api
}

fn command(api: &Api, words: &str) -> Command {
    let mut command = said::vgpu(words);
    command.env_remove("COLUMNS").env("KUBECONFIG", api.kubeconfig());
    command
}

fn vgpu(api: &Api, words: &str) -> Said {
    Said::of(&mut command(api, words))
}

#[test]
fn rights_in_the_namespace_are_enough_for_its_shares() {
    let api = serving();
    let table = "\
CLAIM  POD    NODE  GPU    HELD  USED  PEAK  CORES  GPU TIME  REFUSALS
mine   train  n1    gpu-0  20Gi   8Gi   9Gi     25        4%         0
shares: 1; memory: 20Gi held, 9Gi used; cores: 25 held, 4% of a GPU's time used; waiting pods: 0
";
    let said = vgpu(&api, "top").ended(0);
    assert_eq!((&*said.out, &*said.err), (table, ""));
    vgpu(&api, "top --as=jane").ended(0);
    assert!(api.users().iter().all(|user| user == "jane") && !api.users().is_empty());
    // Without claims and pods their names are not known.
    api.refuse(CLAIMS, 403);
    api.refuse(PODS, 403);
    vgpu(&api, "top").out_has("\nmine   -    n1 ");

    let [item] = &vgpu(&api, "top -o json").items()[..] else {
        panic!("one item");
    };
    assert_eq!(item["metadata"], json!({"name": "vgpu", "namespace": "team"}));
    assert_eq!(item["status"], usage()["status"]);
}

#[test]
fn a_missing_right_is_named_with_what_needs_none() {
    let api = serving();
    for (words, error) in [
        (
            "top -A",
            "vgpu top: the right to list vgpuusages.dra.vgpu in all namespaces is missing; -n NAMESPACE needs rights in that \
             namespace alone\n",
        ),
        (
            "top --nodes",
            "vgpu top: the right to list vgpunodes.dra.vgpu in all namespaces is missing; it is a right in the whole cluster\n",
        ),
    ] {
        let said = vgpu(&api, words).ended(2);
        assert_eq!((&*said.out, &*said.err), ("", error));
    }
    api.refuse(USAGES_OF_TEAM, 403);
    for command in ["top", "advise"] {
        let said = vgpu(&api, command).ended(2);
        let words = format!("vgpu {command}: the right to list vgpuusages.dra.vgpu in namespace team is missing; ");
        assert!(said.err.starts_with(&words), "{said:?}");
    }
}

#[test]
fn without_usage_the_answer_says_which_usage_is_missing() {
    let api = serving();
    let refused = |words: &str| {
        let said = vgpu(&api, "top").ended(2);
        assert!(said.err.starts_with(words), "{said:?}");
    };
    // An older chart.
    api.refuse(USAGES_OF_TEAM, 404);
    refused("vgpu top: the cluster has no vgpuusages: ");
    // A claim with a device, and no controller that writes.
    api.set(USAGES_OF_TEAM, list(&[]));
    refused(
        "vgpu top: namespace team has claims with a device (1), and vgpu-controller has written no VgpuUsage for it: it does within a \
         minute",
    );
    // No share.
    api.set(CLAIMS, list(&[]));
    let said = vgpu(&api, "top").ended(0);
    let words = "namespace team holds no share of a GPU; ";
    assert!(said.out.starts_with(words) && said.err.is_empty(), "{said:?}");
    // Without claims it is not known whether the namespace holds shares.
    api.refuse(CLAIMS, 403);
    for command in ["top", "advise"] {
        let said = vgpu(&api, command).ended(0);
        let words = "namespace team has no VgpuUsage: ";
        assert!(said.out.starts_with(words), "{said:?}");
        said.out_has("usage.enabled");
    }
    // The usage of a release whose fields have other types.
    let mut strange = usage();
    strange["status"]["shares"] = json!("\u{1b}[2Jmany");
    api.set(USAGES_OF_TEAM, list(&[strange]));
    let said = vgpu(&api, "top");
    said.err_has("\"vgpu\" cannot be read: ");
    assert!(!said.err.contains('\u{1b}'), "{said:?}");
}

#[test]
fn a_narrow_caller_gets_fewer_columns_and_a_closed_pipe_is_no_error() {
    let api = serving();
    let table = "\
CLAIM  HELD  USED  GPU TIME  REFUSALS
mine   20Gi   8Gi        4%         0
";
    let said = Said::of(command(&api, "top").env("COLUMNS", "40"));
    assert!(said.out.starts_with(table), "{said:?}");

    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let said = Said::of(command(&api, "top").stdout(OwnedFd::from(writer))).ended(0);
    assert_eq!((&*said.out, &*said.err), ("", ""));
}

#[test]
fn advice_is_about_one_workload_or_all() {
    let api = serving();
    let said = vgpu(&api, "advise").ended(0);
    let words = "ResourceClaim mine, request gpu: 1 share of memory: 20Gi, cores: 25, measured for 24h, since ";
    assert!(said.out.starts_with(words) && said.err.is_empty(), "{said:?}");
    said.out_has("  would have been enough: memory: 10Gi, cores: 10\n");
    said.out_has("not known: the right to list resourceslices.resource.k8s.io ");
    assert_eq!(vgpu(&api, "advise pod/train").out, said.out);
    let error = "vgpu advise: job/train: namespace team has no share of that name; it has pod/train\n";
    let said = vgpu(&api, "advise job/train").ended(2);
    assert_eq!((&*said.out, &*said.err), ("", error));

    // Since the figures last changed, the share was idle or nothing was measured. And at most 200 shares are listed.
    let mut idle = usage();
    let status = &mut idle["status"];
    (status["asOf"], status["notListed"]) = (json!("2026-01-01T00:01:00Z"), json!(100));
    status["claims"][0]["since"] = json!("2026-01-01T00:00:00Z");
    api.set(USAGES_OF_TEAM, list(&[idle]));
    let said = vgpu(&api, "advise");
    said.out_has("  no advice: it has to be measured for 10 minutes\n");
    said.out_has("\nfigures of ");
    said.out_has("\n100 shares with less memory are not listed, ");
    api.set(USAGES_OF_TEAM, list(&[usage()]));

    let answer = vgpu(&api, "advise -o json").json();
    let advice = json!({"verdict": "enough", "memoryBytes": 10_u64 << 30, "cores": 10});
    assert_eq!(answer["requests"][0]["advice"], advice);
}
