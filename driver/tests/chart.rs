//! The Helm chart as helm renders it: what its schema refuses, and what it gives the two programs.
//!
//! helm is what the end-to-end tests built (`make demo`, `make test`), or one on PATH.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/helm/dra-driver-vgpu")
}

/// The helm of this project's tools, else of this machine.
fn helm(test: &str) -> Option<PathBuf> {
    let tools = vgpu_cache::root()
        .ok()
        .and_then(|cache| std::fs::read_dir(cache.join("tools")).ok());
    let built = tools
        .into_iter()
        .flatten()
        .flatten()
        .map(|tool| tool.path().join("helm"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join("helm"));
    let helm = built.chain(found).find(|helm| helm.is_file());
    if helm.is_none() {
        vgpu_skip::skip(test, "no helm; `make demo` builds one");
    }
    helm
}

/// All objects of the chart, or what helm has against these values.
fn render(helm: &Path, values: &[&str]) -> Result<Vec<Value>, String> {
    let mut command = Command::new(helm);
    command
        .args(["template", "x", "--namespace", "n", "--kube-version", "1.37.1"])
        .arg(chart());
    for value in values {
        command.args(["--set", value]);
    }
    let output = command.output().expect("helm runs");
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let text = String::from_utf8(output.stdout).expect("text");
    let documents = serde_saphyr::from_multiple::<Value>(&text).expect("YAML");
    Ok(documents.into_iter().filter(|object| !object.is_null()).collect())
}

#[test]
fn the_schema_refuses_what_the_values_do_not_list() {
    let Some(helm) = helm("the_schema_refuses_what_the_values_do_not_list") else {
        return;
    };
    for (values, named) in [
        ("plugin.share=4", "share"),
        ("sotfGpu.state=/x", "sotfGpu"),
        ("plugin.shares=1000000", "/plugin/shares"),
        ("plugin.shares=0", "/plugin/shares"),
        ("plugin.contextReserve=some", "/plugin/contextReserve"),
        ("plugin.kubeletRoot=kubelet", "/plugin/kubeletRoot"),
        ("driverRoot=run/nvidia", "/driverRoot"),
        ("softGpu.state=state", "/softGpu/state"),
        ("controller.repeatAfter=1", "/controller/repeatAfter"),
        ("images.pullPolicy=Sometimes", "/images/pullPolicy"),
        ("deviceClasses.mine.create=true", "mine"),
        ("deviceClasses.vgpu-slot.create=true", "vgpu-slot"),
        (
            "deviceClasses.vgpu.config.computePolicy=unlimited",
            "/deviceClasses/vgpu/config/computePolicy",
        ),
        (
            "deviceClasses.vgpu.config.computepolicy=Unlimited",
            "/deviceClasses/vgpu/config",
        ),
        (
            "deviceClasses.vgpu.config.memoryPolicy.type=Oversubscribe",
            "/deviceClasses/vgpu/config/memoryPolicy",
        ),
        (
            "deviceClasses.gpu.config.sharing=Shared",
            "/deviceClasses/gpu/config/sharing",
        ),
    ] {
        match render(&helm, &[values]) {
            Ok(_) => panic!("--set {values} is accepted"),
            Err(text) => assert!(text.contains(named), "--set {values}: {text}"),
        }
    }
}

#[test]
fn what_the_values_offer_is_accepted() {
    let Some(helm) = helm("what_the_values_offer_is_accepted") else {
        return;
    };
    for values in [
        &[][..],
        &["images.tag=dev", "driverRoot=/opt/soft", "softGpu.state=/var/lib/soft"],
        &["plugin.shares=1", "plugin.contextReserve=300Mi", "plugin.httpPort=1"],
        &["plugin.contextReserve=0", "plugin.nodeSelector.gpu=yes"],
        &[
            "deviceClasses.vgpu.config.computePolicy=Unlimited",
            "deviceClasses.vgpu.config.priority=High",
        ],
        &[
            "deviceClasses.vgpu.config.memoryPolicy.type=Oversubscribe",
            "deviceClasses.vgpu.config.memoryPolicy.hostMemory=10Gi",
        ],
        &["deviceClasses.gpu.extendedResourceName=nvidia.com/gpu"],
        &["deviceClasses.gpu.create=false", "admission.derivedClasses={a,b}"],
    ] {
        let rendered = render(&helm, values).unwrap_or_else(|text| panic!("{values:?}: {text}"));
        assert!(rendered.len() > 8, "{values:?}: {} objects", rendered.len());
    }
}

/// Every class selects devices that the plugin publishes.
#[test]
fn device_classes_select_a_type_that_exists() {
    let Some(helm) = helm("device_classes_select_a_type_that_exists") else {
        return;
    };
    let rendered = render(&helm, &[]).expect("rendered");
    let classes: Vec<_> = rendered
        .iter()
        .filter(|object| object["kind"] == "DeviceClass")
        .collect();
    assert_eq!(classes.len(), 3);
    for class in classes {
        let expression = class["spec"]["selectors"][0]["cel"]["expression"]
            .as_str()
            .expect("CEL");
        let known = ["gpu", "monitor"].map(|kind| format!(".type == \"{kind}\""));
        assert!(known.iter().any(|end| expression.ends_with(end)), "{expression}");
    }
}

/// All rights of the chart's ClusterRole of this name, as `group/resource: verbs`.
fn rights(rendered: &[Value], role: &str) -> Vec<String> {
    let role = rendered
        .iter()
        .find(|object| object["kind"] == "ClusterRole" && object["metadata"]["name"] == role)
        .expect("the role");
    let words = |value: &Value| -> Vec<String> {
        let list = value.as_array().expect("a list");
        list.iter()
            .map(|word| word.as_str().expect("a word").to_owned())
            .collect()
    };
    let mut rights = Vec::new();
    for rule in role["rules"].as_array().expect("rules") {
        assert!(rule["resourceNames"].is_null(), "{rule}");
        for group in words(&rule["apiGroups"]) {
            for resource in words(&rule["resources"]) {
                rights.push(format!("{group}/{resource}: {}", words(&rule["verbs"]).join(" ")));
            }
        }
    }
    rights
}

/// The rights that the code uses: kubelet-plugin/src/api.rs and run.rs, driver/src/watch.rs and publish.rs. A call
/// that is new there belongs here and in the chart.
#[test]
fn the_programs_have_the_rights_that_they_use_and_no_other() {
    let Some(helm) = helm("the_programs_have_the_rights_that_they_use_and_no_other") else {
        return;
    };
    let rendered = render(&helm, &[]).expect("rendered");
    assert_eq!(
        rights(&rendered, "x-plugin"),
        [
            "resource.k8s.io/resourceslices: list watch create update delete",
            "resource.k8s.io/resourceclaims: get",
            "/nodes: get",
            "events.k8s.io/events: create",
        ]
    );
    assert_eq!(
        rights(&rendered, "x-controller"),
        [
            "resource.k8s.io/resourceclaims: list watch",
            "resource.k8s.io/resourceslices: list watch",
            "resource.k8s.io/deviceclasses: list watch",
            "resource.k8s.io/devicetaintrules: list watch",
            "/pods: list watch",
            "/nodes: list watch",
            "events.k8s.io/events: create patch",
        ]
    );
}
