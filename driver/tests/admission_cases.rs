//! `driver/api` accepts and refuses the cases of `deploy/admission-cases` as the admission policy does.
//!
//! The end-to-end tests send the same files to a real API server. Files about rules that only the policy has
//! (tolerations, admin access) are skipped here by their names.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use vgpu_api::config::{self, Entry, Grant};
use vgpu_api::{DRIVER_NAME, class, request};

fn cases(kind: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../deploy/admission-cases")
        .join(kind);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() > 10, "{} holds too few cases", folder.display());
    files
}

fn read(file: &Path) -> (String, Value) {
    let text = std::fs::read_to_string(file).unwrap();
    let first = text
        .lines()
        .next()
        .unwrap_or_default()
        .trim_start_matches("# ")
        .to_owned();
    // The largest claim repeats a few parts by aliases; the parser takes many of few anchors for an attack.
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { enforce_alias_anchor_ratio: false },
    };
    let object = serde_saphyr::from_str_with_options(&text, options);
    (first, object.unwrap_or_else(|e| panic!("{}: {e}", file.display())))
}

/// A quantity as the API server stores it, as far as the cases need: numbers become texts.
fn quantity(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// What the class of this name grants: the chart's own, as its values have them. Others are not known.
fn class_configs(name: &str) -> Option<Vec<Entry>> {
    let parameters = json!({"apiVersion": "dra.vgpu/v1alpha1", "kind": "VgpuConfig", "sharing": "Exclusive"});
    match name {
        class::GPU => Some(vec![Entry::parse(format!("class {name}"), &parameters).unwrap()]),
        _ => class::is_ours(name).then(Vec::new),
    }
}

/// Everything that `driver/api` has against an object.
fn errors(object: &Value) -> Vec<String> {
    let (spec, path) = match object["kind"].as_str() {
        Some("ResourceClaim") => (&object["spec"], "spec"),
        Some("ResourceClaimTemplate") => (&object["spec"]["spec"], "spec.spec"),
        other => panic!("kind {other:?}"),
    };
    let mut errors = Vec::new();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut configs = Vec::new();
    for (i, entry) in list(&spec["devices"]["config"]).iter().enumerate() {
        if entry["opaque"]["driver"] == DRIVER_NAME {
            let at = format!("{path}.devices.config[{i}].opaque.parameters");
            let requests: Vec<String> = list(&entry["requests"]).iter().map(quantity).collect();
            match Entry::parse(at, &entry["opaque"]["parameters"]) {
                Ok(entry) => configs.push((requests, entry)),
                Err(error) => errors.push(error.to_string()),
            }
        }
    }
    for (i, request) in list(&spec["devices"]["requests"]).iter().enumerate() {
        let at = format!("{path}.devices.requests[{i}]");
        let name = request["name"].as_str().unwrap();
        let subs = list(&request["firstAvailable"]);
        let asks = match request.get("exactly") {
            Some(exactly) => vec![(format!("{at}.exactly"), name.to_owned(), exactly.clone())],
            None => subs
                .iter()
                .enumerate()
                .map(|(j, sub)| {
                    (
                        format!("{at}.firstAvailable[{j}]"),
                        format!("{name}/{}", sub["name"].as_str().unwrap()),
                        sub.clone(),
                    )
                })
                .collect(),
        };
        for (at, name, ask) in asks {
            errors.extend(ask_errors(&at, &name, &ask, &configs));
        }
    }
    errors
}

fn ask_errors(at: &str, name: &str, ask: &Value, configs: &[(Vec<String>, Entry)]) -> Vec<String> {
    let class_name = ask["deviceClassName"].as_str().unwrap();
    let Some(class) = class_configs(class_name) else {
        return Vec::new();
    };
    let requests: Vec<(String, String)> = ask["capacity"]["requests"]
        .as_object()
        .map(|map| map.iter().map(|(key, value)| (key.clone(), quantity(value))).collect())
        .unwrap_or_default();
    let requests = requests.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let requested = match request::check(&format!("{at}.capacity.requests"), class_name, requests) {
        Ok(requested) => requested,
        Err(error) => return vec![error.to_string()],
    };
    let claim: Vec<Entry> = configs
        .iter()
        .filter(|(requests, _)| Entry::applies(requests, name))
        .map(|(_, entry)| entry.clone())
        .collect();
    let device_memory = 80 << 30;
    let grant = Grant {
        memory: requested.memory.unwrap_or(device_memory),
        device_memory,
        cores: requested.cores.unwrap_or(0),
    };
    config::merge(&class, &claim)
        .and_then(|effective| effective.check(&grant))
        .err()
        .map(|e| e.to_string())
        .into_iter()
        .collect()
}

#[test]
fn what_is_accepted_has_no_error() {
    for file in cases("accept") {
        let (_, object) = read(&file);
        assert_eq!(errors(&object), Vec::<String>::new(), "{}", file.display());
    }
}

#[test]
fn what_is_refused_is_refused_in_the_same_words() {
    let mut checked = 0;
    for file in cases("refuse") {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with("access-") || name.starts_with("toleration-") {
            println!("skipped: {name}: only the admission policy sees it");
            continue;
        }
        let (first, object) = read(&file);
        let words = first
            .strip_prefix("refused: ")
            .unwrap_or_else(|| panic!("{name}: the first line must say `# refused: `"));
        let errors = errors(&object);
        // The API server writes the largest quantity that it knows for anything larger.
        let words = words
            .split_once(": \"9223372036854775807\" ")
            .map_or(words, |(_, rest)| rest);
        assert!(
            errors.iter().any(|error| error.contains(words)),
            "{name}: {words}: {errors:#?}"
        );
        checked += 1;
    }
    assert!(checked > 40, "{checked} cases");
}
