//! `vgpu top` and `vgpu advise` on a cluster whose API server is a stand-in.

#[path = "support/api.rs"]
mod api;

use std::os::fd::OwnedFd;
use std::process::{Command, Output, Stdio};

use api::Api;
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

fn command(api: &Api, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vgpu"));
    command.args(args).stdin(Stdio::null()).env_remove("COLUMNS");
    command.env("KUBECONFIG", api.kubeconfig());
    command
}

fn vgpu(api: &Api, args: &[&str]) -> (String, String, Option<i32>) {
    said(&command(api, args).output().unwrap())
}

fn said(output: &Output) -> (String, String, Option<i32>) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr), output.status.code())
}

#[test]
fn rights_in_the_namespace_are_enough_for_its_shares() {
    let api = serving();
    let table = "\
CLAIM  POD    NODE  GPU    HELD  USED  PEAK  CORES  GPU TIME  REFUSALS
mine   train  n1    gpu-0  20Gi   8Gi   9Gi     25        4%         0
shares: 1; memory: 20Gi held, 9Gi used; cores: 25 held, 4% of a GPU's time used; waiting pods: 0
";
    assert_eq!(vgpu(&api, &["top"]), (table.to_owned(), String::new(), Some(0)));
    assert_eq!(vgpu(&api, &["top", "--as=jane"]).2, Some(0));
    assert!(api.users().iter().all(|user| user == "jane") && !api.users().is_empty());
    // Without claims and pods their names are not known.
    api.refuse(CLAIMS, 403);
    api.refuse(PODS, 403);
    let (text, _, _) = vgpu(&api, &["top"]);
    assert!(text.contains("\nmine   -    n1 "), "{text}");

    let (text, _, _) = vgpu(&api, &["top", "-o", "json"]);
    let answer: Value = serde_json::from_str(&text).unwrap();
    let metadata = &answer["items"][0]["metadata"];
    assert_eq!(*metadata, json!({"name": "vgpu", "namespace": "team"}));
    assert_eq!(answer["items"][0]["status"], usage()["status"]);
}

#[test]
fn a_missing_right_is_named_with_what_needs_none() {
    let api = serving();
    for (args, words) in [
        (
            &["top", "-A"][..],
            "vgpu top: the right to list vgpuusages.dra.vgpu in all namespaces is missing; -n NAMESPACE needs rights in that \
             namespace alone\n",
        ),
        (
            &["top", "--nodes"],
            "vgpu top: the right to list vgpunodes.dra.vgpu in all namespaces is missing; it is a right in the whole cluster\n",
        ),
    ] {
        assert_eq!(vgpu(&api, args), (String::new(), words.to_owned(), Some(2)));
    }
    api.refuse(USAGES_OF_TEAM, 403);
    for command in ["top", "advise"] {
        let (_, error, code) = vgpu(&api, &[command]);
        let words = format!("vgpu {command}: the right to list vgpuusages.dra.vgpu in namespace team is missing; ");
        assert!(error.starts_with(&words) && code == Some(2), "{error}");
    }
}

#[test]
fn without_usage_the_answer_says_which_usage_is_missing() {
    let api = serving();
    // An older chart.
    api.refuse(USAGES_OF_TEAM, 404);
    let (_, error, code) = vgpu(&api, &["top"]);
    assert!(
        error.starts_with("vgpu top: the cluster has no vgpuusages: "),
        "{error}"
    );
    assert_eq!(code, Some(2));
    // A claim with a device, and no controller that writes.
    api.set(USAGES_OF_TEAM, list(&[]));
    let (_, error, code) = vgpu(&api, &["top"]);
    let words =
        "vgpu top: namespace team has claims with a device (1), but vgpu-controller has written no VgpuUsage for it";
    assert!(error.starts_with(words) && code == Some(2), "{error}");
    // No share.
    api.set(CLAIMS, list(&[]));
    let (text, error, code) = vgpu(&api, &["top"]);
    assert!(text.starts_with("namespace team holds no share of a GPU; "), "{text}");
    assert_eq!((error.as_str(), code), ("", Some(0)));
    // Without claims it is not known that it holds none.
    api.refuse(CLAIMS, 403);
    for command in ["top", "advise"] {
        let (text, _, code) = vgpu(&api, &[command]);
        assert!(
            text.starts_with("namespace team has no VgpuUsage: ") && text.contains("usage.enabled"),
            "{text}"
        );
        assert_eq!(code, Some(0));
    }
    // A usage of a release that writes other types.
    let mut strange = usage();
    strange["status"]["shares"] = json!("\u{1b}[2Jmany");
    api.set(USAGES_OF_TEAM, list(&[strange]));
    let (_, error, _) = vgpu(&api, &["top"]);
    assert!(
        error.contains("\"vgpu\" cannot be read: ") && !error.contains('\u{1b}'),
        "{error}"
    );
}

#[test]
fn a_narrow_caller_gets_fewer_columns_and_a_closed_pipe_is_no_error() {
    let api = serving();
    let (text, _, _) = said(&command(&api, &["top"]).env("COLUMNS", "40").output().unwrap());
    let table: Vec<&str> = text.lines().take(2).collect();
    assert_eq!(
        table,
        [
            "CLAIM  HELD  USED  GPU TIME  REFUSALS",
            "mine   20Gi   8Gi        4%         0"
        ]
    );

    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = command(&api, &["top"]).stdout(OwnedFd::from(writer)).output().unwrap();
    assert_eq!(said(&output), (String::new(), String::new(), Some(0)));
}

#[test]
fn advice_is_about_one_workload_or_all() {
    let api = serving();
    let (text, error, code) = vgpu(&api, &["advise"]);
    let words = "ResourceClaim mine, request gpu: 1 share of memory: 20Gi, cores: 25, measured for 24h, since ";
    assert!(text.starts_with(words), "{text}");
    assert!(
        text.contains("  would have been enough: memory: 10Gi, cores: 10\n"),
        "{text}"
    );
    assert!(
        text.contains("not known: the right to list resourceslices.resource.k8s.io "),
        "{text}"
    );
    assert_eq!((error.as_str(), code), ("", Some(0)));
    assert_eq!(vgpu(&api, &["advise", "pod/train"]).0, text);
    let error = "vgpu advise: job/train: namespace team has no share of that name; it has pod/train\n";
    assert_eq!(
        vgpu(&api, &["advise", "job/train"]),
        (String::new(), error.to_owned(), Some(2))
    );

    // Since its figures moved last, the share was idle or nobody has measured. And 200 shares are listed at most.
    let mut idle = usage();
    let status = &mut idle["status"];
    (status["asOf"], status["notListed"]) = (json!("2026-01-01T00:01:00Z"), json!(100));
    status["claims"][0]["since"] = json!("2026-01-01T00:00:00Z");
    api.set(USAGES_OF_TEAM, list(&[idle]));
    let (text, _, _) = vgpu(&api, &["advise"]);
    for words in [
        "  no advice: it has to be measured for 10 minutes\n",
        "\nfigures of ",
        "\n100 shares with less memory are not listed, ",
    ] {
        assert!(text.contains(words), "{text}");
    }
    api.set(USAGES_OF_TEAM, list(&[usage()]));

    let (text, _, _) = vgpu(&api, &["advise", "-o", "json"]);
    let answer: Value = serde_json::from_str(&text).unwrap();
    let advice = json!({"verdict": "enough", "memoryBytes": 10_u64 << 30, "cores": 10});
    assert_eq!(answer["requests"][0]["advice"], advice);
}
