//! The content and the paths of metadata, which Kubernetes' own package reads.

use super::*;
use crate::dra::share::tests::share;
use crate::publish::inventory::tests::gpu;
use serde_json::{Value, json};
use vgpu_cache::go;

fn id() -> ClaimId {
    ClaimId {
        namespace: "team".into(),
        name: "train-gpu-x7k2p".into(),
        uid: "5c0f3b9a-0000-4000-8000-000000000001".into(),
    }
}

fn of(named_by: &NamedBy, shares: &[Share]) -> Result<Vec<File>, Error> {
    let gpu = gpu(0);
    let on_gpu: Vec<_> = shares.iter().map(|share| (share, &gpu)).collect();
    files(&id(), named_by, &on_gpu, &Pools::of("n1"))
}

fn pod(name: &str) -> NamedBy {
    NamedBy::Pod(name.into())
}

fn asked_for(request: &str) -> Share {
    Share {
        request: request.into(),
        ..share("s1")
    }
}

/// A request for two shares, an alternative of another request, and a monitor.
fn some() -> Vec<Share> {
    let monitor = Share {
        role: Role::Monitor,
        device: "gpu-3f8a1c20-monitor".into(),
        ..asked_for("watch")
    };
    let alternative = Share {
        host_memory: 4 << 30,
        ..asked_for("other/small")
    };
    vec![share("s1"), share("s2"), alternative, monitor]
}

#[test]
fn a_share_is_described_by_its_device_and_its_own_amounts() {
    let files = of(&pod("gpu"), &[asked_for("gpu/small")]).expect("files");
    let [file] = files.as_slice() else { panic!("{files:?}") };
    assert_eq!(file.name(), "gpu.metadata.json");
    let folder = "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates";
    assert_eq!(file.target, format!("{folder}/gpu/gpu/dra.vgpu-metadata.json"));
    let found: Value = serde_json::from_slice(&file.replacement(None).expect("new")).expect("JSON");
    let mut attributes = json!({"memory": {"int": 21_474_836_480_u64}, "cores": {"int": 25}, "hostMemory": {"int": 0},
        "share": {"string": "s1"}});
    for (name, value) in slice::attributes("gpu", &gpu(0)) {
        attributes[name] = serde_json::to_value(value).expect("JSON");
    }
    let expected = json!({"apiVersion": "metadata.resource.k8s.io/v1beta1", "kind": "DeviceMetadata",
        "metadata": {"name": "train-gpu-x7k2p", "namespace": "team", "uid": id().uid, "generation": 1},
        "podClaimName": "gpu",
        "requests": [{"name": "gpu/small", "devices": [{"driver": "dra.vgpu", "pool": "n1/vgpu",
            "name": "gpu-3f8a1c20", "attributes": attributes}]}]});
    assert_eq!(found, expected);
}

#[test]
fn a_name_that_leads_out_of_a_folder_is_refused_and_named() {
    for bad in [
        "",
        "..",
        "a/b",
        "../../../../dev/vgpu/s1/limits",
        "a.b",
        "-a",
        "a-",
        "A",
        &"a".repeat(64),
    ] {
        let error = of(&pod(bad), &[share("s1")]).expect_err(bad).to_string();
        assert!(
            error.contains(POD_CLAIM_NAME) && error.contains(&format!("{bad:?}")),
            "{error}"
        );
    }
    for bad in ["", "..", "../x", "gpu/../x", "gpu/", "gpu/a/b", "/gpu"] {
        let error = of(&NamedBy::Claim, &[asked_for(bad)]).expect_err(bad).to_string();
        assert!(error.contains(&format!("request {bad:?}")), "{error}");
    }
    let odd = ClaimId {
        name: "../c".into(),
        ..id()
    };
    let (share, gpu) = (share("s1"), gpu(0));
    let error = files(&odd, &NamedBy::Claim, &[(&share, &gpu)], &Pools::of("n1"));
    assert_eq!(error, Err(Error::ClaimName("../c".into())));
    let odd = ClaimId {
        name: format!("a.{}", "b".repeat(100)),
        ..id()
    };
    let found = files(&odd, &NamedBy::Claim, &[(&share, &gpu)], &Pools::of("n1"));
    assert!(found.is_ok(), "a claim's name may have dots and long parts: {found:?}");
}

#[test]
fn a_file_is_replaced_only_if_it_says_something_else_and_by_the_next_generation() {
    let before = of(&NamedBy::Claim, &[share("s1")]).expect("files").remove(0);
    let more = Share {
        memory: 1 << 30,
        ..share("s1")
    };
    let after = of(&NamedBy::Claim, &[more]).expect("files").remove(0);
    let generation = |bytes: &[u8]| {
        let found: Value = serde_json::from_slice(bytes).expect("JSON");
        found["metadata"]["generation"].as_i64()
    };
    let mut bytes = before.replacement(None).expect("new");
    for next in [2, 3] {
        let file = if next == 2 { &after } else { &before };
        let newer = file.replacement(Some(&bytes)).expect("it differs");
        assert_eq!(generation(&newer), Some(next));
        assert_eq!(file.replacement(Some(&newer)), None, "unchanged");
        bytes = newer;
    }
    for damaged in [&bytes[..bytes.len() - 9], b"", b"{}", b"[1]"] {
        let anew = before.replacement(Some(damaged)).expect("it is damaged");
        assert_eq!(generation(&anew), Some(1));
    }
    let odd = String::from_utf8_lossy(&bytes).replace("\"generation\": 3", "\"generation\": -9");
    let anew = before.replacement(Some(odd.as_bytes()));
    assert_eq!(anew, None, "only the generation is odd, and no reader compares it");
}

#[test]
fn kubernetes_reads_each_file_at_its_path_and_finds_it_valid() {
    const TEST: &str = "kubernetes_reads_each_file_at_its_path_and_finds_it_valid";
    let mut kubernetes = match go::Answers::of_kubernetes("metadata") {
        Ok(kubernetes) => kubernetes,
        Err(why) => return vgpu_skip::skip(TEST, &why),
    };
    for (named_by, claim, pod_claim) in [
        (NamedBy::Claim, Some("train-gpu-x7k2p"), None),
        (pod("gpu"), None, Some("gpu")),
    ] {
        let files = of(&named_by, &some()).expect("files");
        let requests: Vec<&str> = files.iter().map(|file| file.request.as_str()).collect();
        assert_eq!(requests, ["gpu", "other", "watch"]);
        for file in files {
            let text = String::from_utf8(file.replacement(None).expect("new")).expect("text");
            let question = json!({"driver": "dra.vgpu", "claim": claim, "podClaim": pod_claim,
                "request": file.request, "text": text});
            let answer = kubernetes.ask(&question.to_string()).expect("an answer");
            let answer: Value = serde_json::from_str(&answer).expect("JSON");
            assert_eq!(
                (&answer["error"], &answer["invalid"]),
                (&Value::Null, &Value::Null),
                "{text}"
            );
            assert_eq!(answer["path"], file.target.as_str());
            let written: Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!(answer["read"], written, "as it was written");
        }
    }
    // The validation finds what is wrong.
    let file = of(&pod("gpu"), &[share("s1")]).expect("files").remove(0);
    let text = String::from_utf8(file.replacement(None).expect("new")).expect("text");
    for (from, to) in [
        ("\"gpu-3f8a1c20\"", "\"no name\""),
        ("{\n              \"int\": 25\n            }", "{}"),
    ] {
        let wrong = text.replace(from, to);
        assert_ne!(wrong, text, "{from}");
        let question = json!({"driver": "dra.vgpu", "podClaim": "gpu", "request": "gpu", "text": wrong});
        let answer = kubernetes.ask(&question.to_string()).expect("an answer");
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        assert!(answer["invalid"].is_string(), "{to}: {answer}");
    }
}
