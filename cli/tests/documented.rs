//! Reads every YAML block of the documents and every example as their readers would: the example of docs/allocate.md runs as
//! it is written there, workloads have room on two GPUs, and configs and quotas are without mistakes.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use vgpu_api::config;
use vgpu_api::quota::{VgpuQuotaDefaultSpec, VgpuQuotaSpec, read_spec};

/// The blocks of a language in a Markdown text, in order.
fn blocks<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    let open = format!("```{language}\n");
    // Blocks within lists would be missed.
    let indented = format!(" ```{language}\n");
    assert!(!text.contains(&indented), "an indented block of {language}");
    let parts = text.split(open.as_str()).skip(1);
    parts.map(|part| part.split("```").next().unwrap()).collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The files below a folder with this ending.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut found = Vec::new();
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.extension().is_some_and(|extension| extension == ending) {
            found.push(path);
        }
    }
    found
}

fn vgpu(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vgpu"));
    command.args(args).current_dir(folder).output().unwrap()
}

/// The text without share IDs, which change with each run.
fn without_share_ids(text: &str) -> String {
    let lines = text.lines().map(|line| match line.split_once("shareID: ") {
        Some((indent, _)) => format!("{indent}shareID: ...\n"),
        None => format!("{line}\n"),
    });
    lines.collect()
}

#[test]
fn the_documented_example_says_what_is_documented() {
    let path = root().join("docs/allocate.md");
    let text = std::fs::read_to_string(path).unwrap();
    let ([objects], [explained, refused, allocated]) = (&blocks(&text, "yaml")[..], &blocks(&text, "text")[..]) else {
        panic!("docs/allocate.md has other blocks than this test knows");
    };
    let folder = tempfile::tempdir().unwrap();
    let write = |text: &str| std::fs::write(folder.path().join("objects.yaml"), text).unwrap();
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();

    write(objects);
    let output = vgpu(
        folder.path(),
        &["explain", "claim/train", "-n", "team", "-f", "objects.yaml"],
    );
    assert_eq!(
        (output.status.code(), said(&output.stdout)),
        (Some(1), (*explained).to_owned())
    );
    let output = vgpu(folder.path(), &["allocate", "-f", "objects.yaml"]);
    assert_eq!(
        (output.status.code(), said(&output.stderr)),
        (Some(1), (*refused).to_owned())
    );

    write(&objects.replace("memory: 40Gi", "memory: 20Gi"));
    let output = vgpu(folder.path(), &["allocate", "-f", "objects.yaml"]);
    let list = without_share_ids(&said(&output.stdout));
    assert_eq!((output.status.code(), list), (Some(0), without_share_ids(allocated)));
}

/// Every YAML text that a reader may copy, with its position.
fn documented() -> Vec<(String, String)> {
    let root = root();
    let mut pages = files(&root.join("docs"), "md");
    pages.extend(files(&root.join("deploy"), "md"));
    pages.push(root.join("README.md"));
    let mut texts = Vec::new();
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        for (at, block) in blocks(&text, "yaml").into_iter().enumerate() {
            texts.push((format!("{}, block {}", page.display(), at + 1), block.to_owned()));
        }
    }
    for entry in std::fs::read_dir(root.join("deploy/examples")).unwrap() {
        let folder = entry.unwrap().path();
        // Pods of other systems have no claims: the tests of `vgpu translate` and of clusters read them.
        if folder.is_dir() && !folder.ends_with("dialects") {
            let manifests: Vec<_> = files(&folder, "yaml")
                .iter()
                .map(|file| std::fs::read_to_string(file).unwrap())
                .collect();
            texts.push((folder.display().to_string(), manifests.join("---\n")));
        }
    }
    texts
}

/// A node with `gpus` GPUs of this memory and so many instances of another one, which claims share, and the chart's classes.
fn cluster(gpus: usize, memory: &str, instances: usize) -> Vec<Value> {
    let gpu = |at: usize| {
        json!({"name": format!("gpu-{at}"), "allowMultipleAllocations": true, "attributes": {
            "type": {"string": "gpu"}, "profile": {"string": "none"}, "driverLimit": {"string": "dmem"}, "uuid": {"string": format!("GPU-{at}")},
            "nvlinkClique": {"string": "GPU-0"}}, "capacity": {
            "memory": {"value": memory, "requestPolicy": {"default": memory, "validRange": {"min": "64Mi", "step": "1Mi"}}},
            "cores": {"value": "100", "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": "100", "step": "1"}}}}})
    };
    let mut instance = gpu(0);
    instance["name"] = "mig-0".into();
    instance["attributes"]["type"] = json!({"string": "mig"});
    instance["attributes"]["profile"] = json!({"string": "3g.40gb"});
    instance["capacity"]["memory"]["value"] = "40448Mi".into();
    instance["capacity"]["memory"]["requestPolicy"]["default"] = "40448Mi".into();
    let class = |name: &str, kind: &str| {
        let kind = format!("device.attributes[\"dra.vgpu\"].type == \"{kind}\"");
        let shared = "device.attributes[\"dra.vgpu\"].type == \"mig\" && device.allowMultipleAllocations";
        let expression = match name {
            "vgpu" => format!("device.driver == \"dra.vgpu\" && ({kind} || {shared})"),
            _ => format!("device.driver == \"dra.vgpu\" && {kind}"),
        };
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": {
            "selectors": [{"cel": {"expression": expression}}]}})
    };
    vec![
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}),
        class("vgpu", "gpu"),
        class("gpu", "gpu"),
        class("vgpu-mig", "mig"),
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "n1-vgpu"}, "spec": {
            "driver": "dra.vgpu", "nodeName": "n1", "pool": {"name": "n1/vgpu", "generation": 1, "resourceSliceCount": 1},
            "devices": (0..gpus).map(gpu).chain(std::iter::repeat_n(instance, instances)).collect::<Vec<_>>()}}),
    ]
}

/// A template of this spec, and a pod that uses it.
fn with_a_pod(spec: &Value) -> [Value; 2] {
    let pod = json!({"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "of-the-block"}],
        "containers": [{"name": "main", "image": "train", "resources": {"claims": [{"name": "gpu"}]}}]});
    [
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "of-the-block"},
            "spec": {"spec": spec}}),
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "of-the-block"}, "spec": pod}),
    ]
}

/// The objects of one document that `vgpu fit` reads. Panics at a mistake in the others.
fn read(place: &str, object: Value) -> Vec<Value> {
    match object["kind"].as_str() {
        Some("VgpuConfig") => {
            config::parse("the block", &object).unwrap_or_else(|error| panic!("{place}: {error}"));
            Vec::new()
        }
        Some("VgpuQuota") => {
            read_spec::<VgpuQuotaSpec>(&object["spec"]).unwrap_or_else(|error| panic!("{place}: {error}"));
            Vec::new()
        }
        Some("VgpuQuotaDefault") => {
            read_spec::<VgpuQuotaDefaultSpec>(&object["spec"]).unwrap_or_else(|error| panic!("{place}: {error}"));
            Vec::new()
        }
        Some("Pod" | "Deployment" | "StatefulSet" | "Job" | "ResourceClaimTemplate") => vec![object],
        // platforms.rs of the cluster tests sends most of them to an API server.
        Some("Service" | "ResourceQuota" | "DeviceTaintRule") => Vec::new(),
        // Kueue's kinds, which a test on the cluster applies.
        Some("ResourceFlavor" | "ClusterQueue" | "LocalQueue" | "WorkloadPriorityClass") => Vec::new(),
        // Values of Kueue's chart.
        None if object["managerConfig"].is_object() => Vec::new(),
        // Files of kubeadm, which no test here has.
        Some("ClusterConfiguration" | "KubeletConfiguration") => Vec::new(),
        Some(kind) => panic!("{place}: nothing here reads a {kind}"),
        // The spec of a claim without the rest.
        None if object["spec"]["devices"].is_object() => with_a_pod(&object["spec"]).into(),
        None if object["devices"].is_object() => with_a_pod(&object).into(),
        // Talos' machine configuration, which nothing here reads.
        None if object["machine"].is_object() => Vec::new(),
        None => panic!("{place}: neither an object nor the spec of a claim"),
    }
}

/// What `vgpu fit` says to these objects: exit status, stdout and stderr.
fn fit(objects: Vec<Value>) -> (Option<i32>, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    std::fs::write(folder.path().join("all.json"), list.to_string()).unwrap();
    let output = vgpu(folder.path(), &["fit", "-f", "all.json"]);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn four_of_the_readmes_pods_run_on_a_gpu_and_the_fifth_waits() {
    let text = std::fs::read_to_string(root().join("README.md")).unwrap();
    let [block] = blocks(&text, "yaml")[..] else {
        panic!("README.md has other blocks than this test knows");
    };
    let mut objects = serde_saphyr::from_multiple::<Value>(block).unwrap();
    let pod = objects.iter_mut().find(|object| object["kind"] == "Pod").unwrap();
    let job = json!({"parallelism": 5, "template": {"spec": pod["spec"]}});
    *pod = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": job});
    // What NVML reports of an H100 with 80 GB.
    objects.extend(cluster(1, "81559Mi", 0));
    let (status, said, _) = fit(objects);
    assert_eq!(status, Some(1), "{said}");
    assert!(
        said.contains("4 of 5 pods fit now") && said.contains("7.6Gi of 79.6Gi free, held by"),
        "{said}"
    );
}

#[test]
fn every_documented_object_is_valid_and_has_room() {
    let mut checked = 0;
    for (place, text) in documented() {
        // This page describes a whole cluster: the test above runs it.
        if text.contains("kind: Node\n") {
            continue;
        }
        let documents = serde_saphyr::from_multiple::<Value>(&text).unwrap_or_else(|error| panic!("{place}: {error}"));
        let mut objects: Vec<Value> = documents.into_iter().flat_map(|object| read(&place, object)).collect();
        for object in &objects {
            let configs = object["spec"]["spec"]["devices"]["config"].as_array();
            for (at, entry) in configs.into_iter().flatten().enumerate() {
                config::parse(&format!("config[{at}]"), &entry["opaque"]["parameters"])
                    .unwrap_or_else(|error| panic!("{place}: {error}"));
            }
        }
        if objects.is_empty() {
            continue;
        }
        objects.extend(cluster(2, "80Gi", 1));
        let (status, said, errors) = fit(objects);
        assert_eq!((status, errors.as_str()), (Some(0), ""), "{place}: {said}");
        checked += 1;
    }
    assert!(checked >= 10, "{checked} texts with workloads were found");
}

/// The words that follow `vgpu` in each command of a shell text, up to the command's end. Knows only simple quotes and
/// no escapes: the documents have no other commands.
fn commands_of_vgpu(script: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for line in script.replace("\\\n", " ").lines() {
        let mut words = vec![String::new()];
        let mut quote = None;
        let mut commands = Vec::new();
        let ended = [line, "\n"].concat();
        for letter in ended.chars() {
            let is_in_word = words.last().is_some_and(|word| !word.is_empty());
            match (letter, quote) {
                (letter, Some(open)) if letter == open => quote = None,
                ('\'' | '"', None) => quote = Some(letter),
                ('#', None) if !is_in_word => {
                    commands.push(std::mem::take(&mut words));
                    break;
                }
                ('|' | ';' | '&' | '>' | '\n', None) => {
                    commands.push(std::mem::replace(&mut words, vec![String::new()]))
                }
                (' ', None) => words.push(String::new()),
                (letter, _) => words.last_mut().unwrap().push(letter),
            }
        }
        for mut words in commands {
            words.retain(|word| !word.is_empty());
            // `kubectl vgpu`, `dist/vgpu`, `watch kubectl vgpu`.
            let before = ["watch", "sudo", "kubectl", "$"];
            let program = words.iter().position(|word| !before.contains(&word.as_str()));
            if let Some(at) = program
                && (words[at] == "vgpu" || words[at].ends_with("/vgpu"))
            {
                found.push(words.split_off(at));
            }
        }
    }
    found
}

/// The texts of a page that its readers may type: blocks of a shell, commands of sessions, and code within sentences.
fn typed(text: &str) -> Vec<String> {
    let mut found: Vec<String> = ["sh", "bash"]
        .iter()
        .flat_map(|of| blocks(text, of))
        .map(str::to_owned)
        .collect();
    for block in blocks(text, "console") {
        let lines = block.lines().filter(|line| line.starts_with("$ "));
        found.extend(lines.map(str::to_owned));
    }
    let mut outside = String::new();
    for (at, part) in text.split("```").enumerate() {
        if at % 2 == 0 {
            outside.push_str(part);
        }
    }
    let spans = outside.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    // `vgpu explain [KIND/NAME]` and `vgpu run ...` describe commands.
    let whole = spans.filter(|span| !span.contains('[') && !span.contains("...") && !span.contains("COMMAND"));
    found.extend(whole.map(str::to_owned));
    found
}

#[test]
fn every_documented_command_of_vgpu_is_one_that_the_program_takes() {
    let root = root();
    let mut pages = files(&root.join("docs"), "md");
    pages.extend(files(&root.join("deploy"), "md"));
    pages.push(root.join("README.md"));
    let (mut refused, mut checked) = (Vec::new(), 0);
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        for words in typed(&text).iter().flat_map(|text| commands_of_vgpu(text)) {
            // `vgpu fit` in a sentence is the name of the command.
            if words.len() <= 2 {
                let name = words.get(1).cloned().unwrap_or_else(|| "--help".to_owned());
                let help = [words[0].clone(), name, "--help".to_owned()];
                if let Err(error) = vgpu_cli::flags::parse(help.map(Into::into)) {
                    refused.push(format!("{}: {}: {error}", page.display(), words.join(" ")));
                }
                continue;
            }
            // Likewise, `vgpu run --verbose` in a sentence names a way to use the command.
            let mut whole = words.clone();
            match (whole[1].as_str(), whole.last().map(String::as_str)) {
                ("run", _) if !whole.iter().any(|word| word == "--") => whole.extend(["--".into(), "true".into()]),
                (_, Some("-f")) => whole.push("pods.yaml".into()),
                _ => {}
            }
            if let Err(error) = vgpu_cli::flags::parse(whole.iter().map(Into::into)) {
                refused.push(format!("{}: {}: {error}", page.display(), words.join(" ")));
            }
            checked += 1;
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    assert!(checked >= 20, "{checked} commands were found");
}
