//! The cases of `deploy/admission-cases`: the chart's policies, evaluated by Kubernetes' own packages, and `driver/api`
//! accept and refuse the same, in the same words.
//!
//! The end-to-end tests send the same files to a real API server. Files about rules that only the policy has
//! (tolerations, admin access, names that the cluster's scheduler does not know) are not shown to `driver/api`.

use std::path::{Path, PathBuf};

use serde::Deserialize as _;
use serde_json::{Value, json};
use vgpu_api::config::{self, Entry, Grant};
use vgpu_api::{DRIVER_NAME, class, request};
use vgpu_cache::go;

mod support;

fn cases(kind: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../deploy/admission-cases")
        .join(kind);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() > 5, "{} holds too few cases", folder.display());
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

/// The configs of the class with this name, for the chart's own classes with default values. Other classes are not
/// known.
fn class_configs(name: &str) -> Option<Vec<Entry>> {
    let parameters = json!({"apiVersion": "dra.vgpu/v1alpha1", "kind": "VgpuConfig", "sharing": "Exclusive"});
    match name {
        class::GPU => Some(vec![Entry::parse(format!("class {name}"), &parameters).unwrap()]),
        _ => class::is_ours(name).then(Vec::new),
    }
}

/// All errors of `driver/api` for an object.
fn errors(object: &Value) -> Vec<String> {
    // A class has configs, and no requests.
    let (devices, path) = match object["kind"].as_str() {
        Some("ResourceClaim") => (&object["spec"]["devices"], "spec.devices"),
        Some("ResourceClaimTemplate") => (&object["spec"]["spec"]["devices"], "spec.spec.devices"),
        Some("DeviceClass") => (&object["spec"], "spec"),
        other => panic!("kind {other:?}"),
    };
    let mut errors = Vec::new();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut configs = Vec::new();
    for (i, entry) in list(&devices["config"]).iter().enumerate() {
        if entry["opaque"]["driver"] == DRIVER_NAME {
            let at = format!("{path}.config[{i}].opaque.parameters");
            let requests: Vec<String> = list(&entry["requests"]).iter().map(quantity).collect();
            match Entry::parse(at, &entry["opaque"]["parameters"]) {
                Ok(entry) => configs.push((requests, entry)),
                Err(error) => errors.push(error.to_string()),
            }
        }
    }
    for (i, request) in list(&devices["requests"]).iter().enumerate() {
        let at = format!("{path}.requests[{i}]");
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
        .and_then(|effective| match class_name {
            class::VGPU_MONITOR => effective.check_without_limit("a monitor"),
            _ => effective.check(&grant),
        })
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
        if ["access-", "toleration-", "domain-"]
            .iter()
            .any(|of| name.starts_with(of))
        {
            println!("skipped: {name}: only the admission policy sees it");
            continue;
        }
        let (first, object) = read(&file);
        let words = first
            .strip_prefix("refused: ")
            .unwrap_or_else(|| panic!("{name}: the first line must say `# refused: `"));
        let errors = errors(&object);
        // The API server replaces a quantity that is too large by the largest one that it knows.
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

/// Kubernetes' answer to one object under the chart's policies.
#[derive(Debug, serde::Deserialize)]
struct Verdict {
    /// How many policies apply to its kind.
    policies: usize,
    #[serde(default)]
    denied: Vec<String>,
    /// Errors of expressions. The API server refuses the object, and shows the expression.
    #[serde(default)]
    errors: Vec<String>,
}

/// `None` if this machine has no helm, or cannot build the program with Kubernetes' packages.
fn verdicts(test: &str, values: &[&str], objects: &[Value]) -> Option<Vec<Verdict>> {
    answers(test, values, "Deny", "objects", objects)
}

/// Like [`verdicts`], for the policies with this action. `kind` is `objects` that somebody creates, or `requests` with
/// a user, an old object and a new one.
fn answers(test: &str, values: &[&str], action: &str, kind: &str, objects: &[Value]) -> Option<Vec<Verdict>> {
    #[derive(Debug, serde::Deserialize)]
    struct Answer {
        verdicts: Vec<Verdict>,
        #[serde(default)]
        error: String,
    }
    let helm = support::helm(test)?;
    let rendered = support::render(&helm, values).expect("rendered");
    let acts = |policy: &Value| {
        rendered.iter().any(|object| {
            object["kind"] == "ValidatingAdmissionPolicyBinding"
                && object["spec"]["policyName"] == policy["metadata"]["name"]
                && object["spec"]["validationActions"] == json!([action])
        })
    };
    let policies: Vec<_> = rendered
        .iter()
        .filter(|object| object["kind"] == "ValidatingAdmissionPolicy" && acts(object))
        .collect();
    let mut kubernetes = match go::Answers::of_kubernetes("admission") {
        Ok(answers) => answers,
        Err(why) => {
            vgpu_skip::skip(test, &why);
            return None;
        }
    };
    let question = json!({"policies": policies, kind: objects});
    let answer = kubernetes.ask(&question.to_string()).expect("an answer");
    let answer: Answer = serde_json::from_str(&answer).unwrap_or_else(|e| panic!("{answer}: {e}"));
    assert_eq!(answer.error, "");
    assert_eq!(answer.verdicts.len(), objects.len());
    Some(answer.verdicts)
}

#[test]
fn the_policies_accept_what_is_to_be_accepted() {
    let files = cases("accept");
    let objects: Vec<Value> = files.iter().map(|file| read(file).1).collect();
    let Some(verdicts) = verdicts("the_policies_accept_what_is_to_be_accepted", &[], &objects) else {
        return;
    };
    for (file, verdict) in files.iter().zip(verdicts) {
        let Verdict {
            policies,
            denied,
            errors,
        } = verdict;
        assert_eq!((policies, denied, errors), (1, vec![], vec![]), "{}", file.display());
    }
}

/// Each refusal has a message, not just the failed expression.
#[test]
fn the_policies_refuse_each_mistake_in_words() {
    let files = cases("refuse");
    let read: Vec<(String, Value)> = files.iter().map(|file| read(file)).collect();
    let objects: Vec<Value> = read.iter().map(|(_, object)| object.clone()).collect();
    let Some(verdicts) = verdicts("the_policies_refuse_each_mistake_in_words", &[], &objects) else {
        return;
    };
    for ((file, (first, _)), verdict) in files.iter().zip(read).zip(verdicts) {
        let name = file.display();
        let words = first
            .strip_prefix("refused: ")
            .expect("the first line says `# refused: `");
        assert_eq!(verdict.errors, Vec::<String>::new(), "{name}");
        // The API server shows only the first one.
        let shown = verdict.denied.first().unwrap_or_else(|| panic!("{name} is accepted"));
        assert!(shown.contains(words), "{name}: {words}: {shown}");
        for message in &verdict.denied {
            assert!(!message.contains("failed expression"), "{name}: {message}");
        }
    }
}

/// The instances of all requests of a claim are counted together. Without instances that claims make, any number is accepted.
#[test]
fn a_claim_asks_for_as_many_instances_as_their_places_are_found_in_time() {
    let test = "a_claim_asks_for_as_many_instances_as_their_places_are_found_in_time";
    let denied = |values: &[&str], files: &[(PathBuf, String, Value)]| {
        let objects: Vec<Value> = files.iter().map(|(_, _, object)| object.clone()).collect();
        let verdicts = verdicts(test, values, &objects)?.into_iter().zip(files);
        let denied = verdicts.map(|(verdict, (file, _, _))| {
            assert_eq!(verdict.errors, Vec::<String>::new(), "{}", file.display());
            verdict.denied
        });
        Some(denied.collect::<Vec<_>>())
    };
    let read = |of: &str| -> Vec<(PathBuf, String, Value)> {
        let files = cases(of).into_iter();
        files
            .map(|file| {
                let (first, object) = read(&file);
                (file, first, object)
            })
            .collect()
    };
    let (accepted, refused) = (read("mig/accept"), read("mig/refuse"));
    let (dynamic, shared, by_label) = (
        "mig.dynamic=instances",
        "mig.instances=shared",
        "mig.instancesPerClaim=8",
    );
    let Some(found) = denied(&[dynamic], &accepted) else {
        return;
    };
    assert_eq!(found, vec![Vec::<String>::new(); accepted.len()]);
    // Within the cost limit of CEL, also for the largest claim.
    denied(&[dynamic, shared], &read("accept")).expect("as before");
    // The two flags: the limit applies to class vgpu-mig, and to class vgpu.
    for (values, of_instances, of_shares) in [
        (&[dynamic][..], true, false),
        (&[dynamic, shared], true, true),
        (&[by_label], true, false),
        (&[by_label, shared], true, true),
        (&[], false, false),
        (&[shared], false, false),
        (&[dynamic, "mig.instancesPerClaim=12"], false, false),
    ] {
        let found = denied(values, &refused).expect("as before");
        for ((file, first, _), found) in refused.iter().zip(found) {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            let is_refused = if name.starts_with("shared-") {
                of_shares
            } else {
                of_instances
            };
            let words = first
                .strip_prefix("refused: ")
                .expect("the first line says `# refused: `");
            let said = found.iter().any(|said| said.contains(words));
            assert_eq!(
                (said, found.len()),
                (is_refused, usize::from(is_refused)),
                "{name}, {values:?}: {found:?}"
            );
        }
    }
}

/// A capacity under a name with the driver's domain is refused where kube-scheduler allocates and does not know it. Else the
/// policy has the rules, and the words, of `driver/api`.
#[test]
fn a_name_with_the_domain_is_refused_where_nobody_serves_it() {
    let test = "a_name_with_the_domain_is_refused_where_nobody_serves_it";
    let claim = |requests: Value, more: Value| {
        let mut devices = json!({"requests": [{"name": "gpu", "exactly":
            {"deviceClassName": "vgpu", "capacity": {"requests": requests}}}]});
        if more != Value::Null {
            let mut parameters = more;
            parameters["apiVersion"] = json!("dra.vgpu/v1alpha1");
            parameters["kind"] = json!("VgpuConfig");
            devices["config"] = json!([{"opaque": {"driver": DRIVER_NAME, "parameters": parameters}}]);
        }
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c", "namespace": "n"},
            "spec": {"devices": devices}})
    };
    let objects = [
        claim(
            json!({"dra.vgpu/memory": "20Gi", "dra.vgpu/cores": "25", "dra.vgpu/shares": "1"}),
            Value::Null,
        ),
        claim(
            json!({"dra.vgpu/memory": "20Gi", "dra.vgpu/cores": "25"}),
            json!({"computePolicy": "Guaranteed"}),
        ),
        claim(
            json!({"dra.vgpu/memory": "20Gi", "cores": "0"}),
            json!({"computePolicy": "Guaranteed"}),
        ),
        claim(json!({"dra.vgpu/memory": "20Gi"}), json!({"sharing": "Exclusive"})),
        claim(json!({"dra.vgpu/memory": "20Gi", "memory": "10Gi"}), Value::Null),
        claim(json!({"dra.vgpu/memory": "1Gi", "memory": "1Gi"}), Value::Null),
        claim(json!({"dra.vgpu/memory": "20"}), Value::Null),
        claim(json!({"dra.vgpu/cores": "101"}), Value::Null),
        claim(json!({"dra.vgpu/shares": "2"}), Value::Null),
        claim(json!({"dra.vgpu/colour": "2"}), Value::Null),
    ];
    for values in [&["allocator=controller"][..], &["allocator=to-scheduler"], &[]] {
        let is_served = values.first() == Some(&"allocator=controller");
        let Some(verdicts) = verdicts(test, values, &objects) else {
            return;
        };
        for (object, verdict) in objects.iter().zip(verdicts) {
            assert_eq!(verdict.errors, Vec::<String>::new(), "{object}");
            let shown = verdict.denied.first().map(String::as_str);
            if is_served {
                let words = errors(object);
                assert_eq!(shown.is_some(), !words.is_empty(), "{object}: {words:?}, {shown:?}");
                // What the policy says of a config names the request too.
                let is_same = |(shown, words): (&str, &String)| words.contains(".opaque.") || shown.contains(words);
                assert!(shown.zip(words.first()).is_none_or(is_same), "{object}: {shown:?}");
            } else {
                let is_unknown = object.to_string().contains("colour");
                let words = if is_unknown {
                    "no GPU has this capacity"
                } else {
                    "before Kubernetes 1.38 finds no GPU"
                };
                assert!(shown.is_some_and(|shown| shown.contains(words)), "{object}: {shown:?}");
            }
        }
    }
}

/// Each warning is given once, in these words. Files whose name begins with `off-` are for a cluster without dialects.
#[test]
fn the_policies_warn_of_what_probably_means_something_else() {
    let test = "the_policies_warn_of_what_probably_means_something_else";
    for (values, is_off) in [(&TRANSLATING[..], false), (&[][..], true)] {
        for kind in ["warn", "silent"] {
            let files = cases(&format!("warnings/{kind}"));
            let is_of = |file: &&PathBuf| file.file_name().unwrap().to_string_lossy().starts_with("off-") == is_off;
            let files: Vec<&PathBuf> = files.iter().filter(is_of).collect();
            let read: Vec<(String, Value)> = files.iter().map(|file| read(file)).collect();
            let requests: Vec<Value> = read.iter().map(|(_, request)| request.clone()).collect();
            let Some(verdicts) = answers(test, values, "Warn", "requests", &requests) else {
                return;
            };
            for ((file, (first, _)), verdict) in files.iter().zip(read).zip(verdicts) {
                let name = file.display();
                assert_eq!((verdict.policies, verdict.errors), (1, Vec::<String>::new()), "{name}");
                match (kind, first.strip_prefix("warned: ")) {
                    ("silent", _) => assert_eq!(verdict.denied, Vec::<String>::new(), "{name}"),
                    (_, words) => {
                        let words = words.expect("the first line says `# warned: `");
                        let [said] = &verdict.denied[..] else {
                            panic!("{name}: {:?}", verdict.denied);
                        };
                        assert!(said.contains(words), "{name}: {words}: {said}");
                        // For a message that is longer, or has two lines, the expression would be shown instead.
                        assert!(said.len() < 5 << 10 && !said.contains('\n'), "{name}: {said}");
                    }
                }
            }
        }
    }
}

/// There are no warnings about names that another system serves, and all warnings can be switched off.
#[test]
fn the_policies_do_not_warn_of_what_others_serve() {
    let test = "the_policies_do_not_warn_of_what_others_serve";
    let pod = json!({"user": "tenant", "object": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "main", "image": "cuda", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}}});
    for (values, warnings) in [
        (&[][..], 1),
        (&["admission.foreignResources={nvidia.com/gpu}"][..], 0),
        (&["deviceClasses.gpu.extendedResourceName=nvidia.com/gpu"][..], 0),
        (&["admission.warnings=false"][..], 0),
    ] {
        let Some(verdicts) = answers(test, values, "Warn", "requests", std::slice::from_ref(&pod)) else {
            return;
        };
        assert_eq!(verdicts[0].denied.len(), warnings, "{values:?}: {:?}", verdicts[0]);
    }
    // An instance's profile is in the name: one entry is for it alone, and one for all of them.
    let mut pod = pod;
    pod["object"]["spec"]["containers"][0]["resources"]["limits"] = json!({"nvidia.com/mig-1g.10gb": "1"});
    for (served, warnings) in [
        ("nvidia.com/mig-1g.10gb", 0),
        ("nvidia.com/mig-", 0),
        ("nvidia.com/mig-3g.40gb", 1),
    ] {
        let value = format!("admission.foreignResources={{{served}}}");
        let Some(verdicts) = answers(test, &[&value], "Warn", "requests", std::slice::from_ref(&pod)) else {
            return;
        };
        assert_eq!(verdicts[0].errors, Vec::<String>::new(), "{served}");
        assert_eq!(verdicts[0].denied.len(), warnings, "{served}: {:?}", verdicts[0]);
    }
}

/// The policies that hold vgpu-controller to its own templates, and to the annotations of dialects.
const TRANSLATING: [&str; 1] = ["translate.dialects={hami}"];

#[test]
fn the_controller_writes_only_what_it_gives_back_and_its_own_templates() {
    let test = "the_controller_writes_only_what_it_gives_back_and_its_own_templates";
    for kind in ["accept", "refuse"] {
        let files = cases(&format!("requests/{kind}"));
        let read: Vec<(String, Value)> = files.iter().map(|file| read(file)).collect();
        let requests: Vec<Value> = read.iter().map(|(_, request)| request.clone()).collect();
        let Some(verdicts) = answers(test, &TRANSLATING, "Deny", "requests", &requests) else {
            return;
        };
        for ((file, (first, _)), verdict) in files.iter().zip(read).zip(verdicts) {
            let name = file.display();
            assert_eq!(verdict.errors, Vec::<String>::new(), "{name}");
            match (kind, first.strip_prefix("refused: ")) {
                ("accept", _) => assert_eq!(verdict.denied, Vec::<String>::new(), "{name}"),
                (_, words) => {
                    let words = words.expect("the first line says `# refused: `");
                    let shown = verdict.denied.first().unwrap_or_else(|| panic!("{name} is accepted"));
                    assert!(shown.contains(words), "{name}: {words}: {shown}");
                }
            }
        }
    }
}

/// Quotas, gates and status, also with translated pods: then another policy holds the controller to pods' annotations.
#[test]
fn quotas_gates_and_status_are_held_to_their_rules() {
    let test = "quotas_gates_and_status_are_held_to_their_rules";
    for values in [
        &["quota.enabled=true"][..],
        &["quota.enabled=true", "translate.dialects={hami}"],
    ] {
        for kind in ["accept", "refuse"] {
            let files = cases(&format!("quota/{kind}"));
            let read: Vec<(String, Value)> = files.iter().map(|file| read(file)).collect();
            let requests: Vec<Value> = read.iter().map(|(_, request)| request.clone()).collect();
            let Some(verdicts) = answers(test, values, "Deny", "requests", &requests) else {
                return;
            };
            for ((file, (first, _)), verdict) in files.iter().zip(read).zip(verdicts) {
                let name = file.display();
                assert_eq!(verdict.errors, Vec::<String>::new(), "{name}");
                match first.strip_prefix("refused: ") {
                    None => assert_eq!(verdict.denied, Vec::<String>::new(), "{name}"),
                    // With dialects the other policy refuses the same, in other words.
                    Some(words) if values.len() > 1 && words.starts_with("metadata: vgpu-controller") => {
                        assert!(!verdict.denied.is_empty(), "{name} is accepted");
                    }
                    Some(words) => {
                        let shown = verdict.denied.first().unwrap_or_else(|| panic!("{name} is accepted"));
                        assert!(shown.contains(words), "{name}: {words}: {shown}");
                    }
                }
            }
        }
    }
}

/// `driver/quota` refuses the same quotas and defaults as the policy, and no others.
#[test]
fn quotas_are_read_by_the_same_rules() {
    for (of, least) in [("quota-", 5), ("default-", 2)] {
        for kind in ["accept", "refuse"] {
            let files = cases(&format!("quota/{kind}"));
            let objects = files.iter().filter(|file| {
                let name = file.file_name().unwrap().to_string_lossy();
                // Names are checked by the API server alone.
                name.starts_with(of) && !name.ends_with("-name.yaml")
            });
            let mut count = 0;
            for file in objects {
                let object = &read(file).1["object"];
                let refused = match of {
                    "quota-" => vgpu_quota::Spec::parse(&object["spec"])
                        .map(drop)
                        .map_err(|e| e.to_string()),
                    _ => vgpu_quota::QuotaDefault::deserialize(object).unwrap().spec.map(drop),
                };
                assert_eq!(refused.is_ok(), kind == "accept", "{}: {refused:?}", file.display());
                count += 1;
            }
            assert!(count > least, "{count} cases of {of}");
        }
    }
}

/// A bound pod of each dialect, with its annotations: the policy's list contains all of them.
#[test]
fn the_controller_may_write_what_every_dialect_gives_back() {
    let limits =
        |limits: Value| json!({"containers": [{"name": "main", "image": "cuda", "resources": {"limits": limits}}]});
    let none = || json!({});
    let pods = [
        (
            none(),
            limits(json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"})),
        ),
        (
            none(),
            limits(json!({"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"})),
        ),
        (none(), limits(json!({"volcano.sh/gpu-memory": "3000"}))),
        (
            none(),
            limits(json!({"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "3000"})),
        ),
        (
            none(),
            limits(json!({"tencent.com/vcuda-core": "50", "tencent.com/vcuda-memory": "30"})),
        ),
        (json!({"gpu-fraction": "0.5"}), limits(json!({}))),
    ];
    let requests = pods.map(|(annotations, spec)| {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": spec,
            "metadata": {"name": "p", "namespace": "team", "uid": "u", "annotations": annotations}});
        let pod = vgpu_dialects::translate(&serde_json::from_value(pod).unwrap(), &Default::default());
        let mut old = pod.unwrap().unwrap().pod;
        old.spec.as_mut().unwrap().node_name = Some("n1".to_owned());
        let share = vgpu_dialects::GpuShare {
            uuid: "GPU-1".to_owned(),
            index: 0,
            memory: 3000 << 20,
            device_memory: 80 << 30,
            cores: 50,
            whole: false,
        };
        let bound = vgpu_dialects::Bound {
            node: "n1".to_owned(),
            at: std::time::Duration::from_secs(1_795_309_323),
            containers: [("main".to_owned(), vec![share])].into(),
        };
        let record = vgpu_dialects::Record::of(&old).unwrap().unwrap();
        let back = vgpu_dialects::legacy_view(&old, &record, &bound);
        assert!(!back.annotations.is_empty(), "{record:?}");
        let mut new = old.clone();
        new.metadata
            .annotations
            .get_or_insert_default()
            .extend(back.annotations);
        new.metadata.labels.get_or_insert_default().extend(back.labels);
        let user = "system:serviceaccount:n:x-controller";
        json!({"user": user, "old": old, "object": new})
    });
    let test = "the_controller_may_write_what_every_dialect_gives_back";
    let Some(verdicts) = answers(test, &TRANSLATING, "Deny", "requests", &requests) else {
        return;
    };
    for (request, verdict) in requests.iter().zip(verdicts) {
        assert_eq!(
            (verdict.policies, verdict.denied, verdict.errors),
            (1, vec![], vec![]),
            "{request}"
        );
    }
}
