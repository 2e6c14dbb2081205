//! What the chart renders for the webhook: nothing without dialects, else the objects, flags and rights that
//! `driver/src/webhook` counts on.

use serde_json::{Value, json};
use vgpu_cache::go;
use vgpu_controller::webhook::names::{PATH, WEBHOOK};
use vgpu_dialects::{Dialect, asking_annotations, asking_resources, asks_by_annotation};

mod support;

use support::{helm, render};

/// The objects of a kind.
fn all<'a>(rendered: &'a [Value], kind: &str) -> Vec<&'a Value> {
    rendered.iter().filter(|object| object["kind"] == kind).collect()
}

fn one<'a>(rendered: &'a [Value], kind: &str) -> &'a Value {
    let [object] = all(rendered, kind)[..] else {
        panic!("not one {kind}");
    };
    object
}

fn arguments(rendered: &[Value]) -> Vec<String> {
    let container = &one(rendered, "Deployment")["spec"]["template"]["spec"]["containers"][0];
    let arguments = container["args"].as_array().expect("arguments").iter();
    arguments
        .map(|text| text.as_str().expect("a text").to_owned())
        .collect()
}

#[test]
fn without_dialects_there_is_no_webhook() {
    let Some(helm) = helm("without_dialects_there_is_no_webhook") else {
        return;
    };
    // The values that `helm upgrade --reuse-values` uses after a chart without these values.
    for values in [&[][..], &["translate=null"], &["translate.dialects=null"]] {
        // Usages also have a Role and a Lease.
        let values = &[values, &["usage.enabled=false"]].concat();
        let rendered = render(&helm, values).expect("rendered");
        for kind in [
            "MutatingWebhookConfiguration",
            "Service",
            "Secret",
            "Role",
            "PodDisruptionBudget",
        ] {
            assert!(all(&rendered, kind).is_empty(), "{values:?}: {kind}");
        }
        let arguments = arguments(&rendered);
        let of_webhook =
            |text: &String| text.contains("translate") || text.contains("webhook") || text.contains("lease");
        assert!(!arguments.iter().any(of_webhook), "{arguments:?}");
        assert_eq!(one(&rendered, "Deployment")["spec"]["replicas"], 1);
    }
}

#[test]
fn the_webhook_fails_closed_and_is_asked_about_labelled_namespaces_only() {
    let Some(helm) = helm("the_webhook_fails_closed_and_is_asked_about_labelled_namespaces_only") else {
        return;
    };
    let rendered = render(&helm, &["translate.dialects={hami}"]).expect("rendered");
    let configuration = one(&rendered, "MutatingWebhookConfiguration");
    assert_eq!(configuration["webhooks"].as_array().map(Vec::len), Some(1));
    let webhook = &configuration["webhooks"][0];
    for (field, value) in [
        ("name", json!(WEBHOOK)),
        ("failurePolicy", json!("Fail")),
        ("sideEffects", json!("None")),
        ("timeoutSeconds", json!(5)),
        ("reinvocationPolicy", json!("IfNeeded")),
        ("admissionReviewVersions", json!(["v1"])),
        (
            "namespaceSelector",
            json!({"matchLabels": {"dra.vgpu/translate": "true"},
                "matchExpressions": [{"key": "hami.io/webhook", "operator": "NotIn", "values": ["ignore"]}]}),
        ),
        (
            "rules",
            json!([{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"],
                "operations": ["CREATE", "UPDATE"], "scope": "Namespaced"}]),
        ),
        (
            "clientConfig",
            json!({"service": {"namespace": "n", "name": "x-webhook", "path": PATH, "port": 443}}),
        ),
    ] {
        assert_eq!(webhook[field], value, "{field}");
    }
    // The Service's port leads to the port that the flag sets, on the pods of the Deployment.
    let service = &one(&rendered, "Service")["spec"];
    assert_eq!(
        service["ports"],
        json!([{"name": "webhook", "port": 443, "targetPort": "webhook"}])
    );
    let deployment = &one(&rendered, "Deployment")["spec"];
    assert_eq!(service["selector"], deployment["selector"]["matchLabels"]);
    // While nodes are drained one serving replica remains, and a single replica does not block the drain.
    let budget = &one(&rendered, "PodDisruptionBudget")["spec"];
    assert_eq!(budget["selector"], deployment["selector"]);
    assert_eq!(
        (&budget["maxUnavailable"], &deployment["replicas"]),
        (&json!(1), &json!(2))
    );
    let ports = &deployment["template"]["spec"]["containers"][0]["ports"];
    assert_eq!(ports[1], json!({"name": "webhook", "containerPort": 9443}));
    for object in [
        "Service",
        "Secret",
        "MutatingWebhookConfiguration",
        "PodDisruptionBudget",
    ] {
        assert_eq!(one(&rendered, object)["metadata"]["name"], "x-webhook");
    }
    // An upgrade of the chart must not write the certificates.
    assert!(one(&rendered, "Secret").get("data").is_none());
    assert!(webhook["clientConfig"].get("caBundle").is_none());
}

#[test]
fn the_controller_gets_the_values_as_flags_in_both_modes() {
    let Some(helm) = helm("the_controller_gets_the_values_as_flags_in_both_modes") else {
        return;
    };
    for allocator in ["scheduler", "controller"] {
        let rendered = render(
            &helm,
            &[
                &format!("allocator={allocator}"),
                "translate.dialects={hami,kai}",
                "translate.mode=report",
                "translate.schedulers={volcano,kai-scheduler}",
                "translate.highPriorityClass=high",
                "translate.limitVcudaCores=true",
                r"translate.resourceNames.nvidia\.com/vgpu=nvidia.com/gpu",
                r"translate.resourceNames.nvidia\.com/vmem=nvidia.com/gpumem",
                "translate.port=8443",
                "admission.derivedClasses={mine,high}",
            ],
        )
        .expect("rendered");
        let arguments = arguments(&rendered);
        for flag in [
            "--translate-dialects=hami,kai",
            "--translate-mode=report",
            "--translate-schedulers=volcano,kai-scheduler",
            "--translate-high-priority-class=high",
            "--translate-limit-vcuda-cores=true",
            "--translate-resource-names=nvidia.com/vgpu=nvidia.com/gpu,nvidia.com/vmem=nvidia.com/gpumem",
            "--translate-derived-classes=mine,high",
            "--webhook-address=0.0.0.0:8443",
            "--webhook-name=x-webhook",
            "--lease-name=x-controller",
            "--lease-namespace=n",
        ] {
            let found = arguments.iter().filter(|argument| *argument == flag).count();
            assert_eq!(found, 1, "{flag}: {arguments:?}");
        }
        // When one replica goes, another serves.
        assert_eq!(one(&rendered, "Deployment")["spec"]["replicas"], 2, "{allocator}");
    }
}

/// The program takes the flags that the chart writes.
#[test]
fn the_flags_are_accepted() {
    use clap::Parser as _;
    let Some(helm) = helm("the_flags_are_accepted") else {
        return;
    };
    let dialects = Dialect::ALL.map(Dialect::name).join(",");
    let rendered = render(&helm, &[&format!("translate.dialects={{{dialects}}}")]).expect("rendered");
    let flags = [vec!["vgpu-controller".to_owned()], arguments(&rendered)].concat();
    let config = vgpu_controller::Config::try_from(vgpu_controller::Flags::parse_from(flags)).expect("valid");
    let webhook = config.webhook.expect("a webhook");
    assert_eq!(webhook.settings, vgpu_dialects::Settings::default());
    assert_eq!(
        (webhook.names.namespace.as_str(), webhook.names.name.as_str()),
        ("n", "x-webhook")
    );
}

#[test]
fn rights_for_the_webhook_name_its_objects() {
    let Some(helm) = helm("rights_for_the_webhook_name_its_objects") else {
        return;
    };
    let rights = |values: &[&str], kind: &str| -> Vec<Value> {
        let rendered = render(&helm, values).expect("rendered");
        let roles = all(&rendered, kind).into_iter();
        let ours = roles.filter(|role| role["metadata"]["name"] == "x-controller");
        ours.flat_map(|role| role["rules"].as_array().expect("rules").clone())
            .collect()
    };
    let with = ["translate.dialects={hami}"];
    let more = |kind: &str| {
        let before = rights(&["usage.enabled=false"], kind);
        let all = rights(&with, kind).into_iter();
        all.filter(|rule| !before.contains(rule)).collect::<Vec<_>>()
    };
    let rule = |group: &str, resource: &str, names: Option<&str>, verbs: &[&str]| {
        let mut rule = json!({"apiGroups": [group], "resources": [resource], "verbs": verbs});
        if let Some(name) = names {
            rule["resourceNames"] = json!([name]);
        }
        rule
    };
    assert_eq!(
        more("ClusterRole"),
        [rule(
            "admissionregistration.k8s.io",
            "mutatingwebhookconfigurations",
            Some("x-webhook"),
            &["get", "patch"]
        )]
    );
    assert_eq!(
        more("Role"),
        [
            rule("coordination.k8s.io", "leases", None, &["create"]),
            rule(
                "coordination.k8s.io",
                "leases",
                Some("x-controller"),
                &["get", "update"]
            ),
            rule("", "secrets", None, &["create"]),
            rule("", "secrets", Some("x-webhook"), &["get", "list", "watch", "update"]),
        ]
    );
}

/// The condition that matches pods that ask for GPUs.
fn asks(rendered: &[Value]) -> String {
    let conditions = one(rendered, "MutatingWebhookConfiguration")["webhooks"][0]["matchConditions"].clone();
    let asks = conditions
        .as_array()
        .expect("conditions")
        .iter()
        .find(|condition| condition["name"] == "asks");
    asks.expect("asks")["expression"].as_str().expect("CEL").to_owned()
}

/// The texts in the lists of the condition: of a pod that is created, and of one that is updated.
fn lists(rendered: &[Value]) -> Vec<Vec<String>> {
    let expression = asks(rendered).replace("orValue([])", "").replace("null ? []", "");
    let lists = expression.split('[').skip(1).filter_map(|rest| rest.split_once(']'));
    let texts = |(list, _): (&str, &str)| {
        let texts = list.split(", ").filter(|text| !text.is_empty());
        texts.map(|text| text.trim_matches('\'').to_owned()).collect::<Vec<_>>()
    };
    // `[?key]` is no list.
    lists.map(texts).filter(|list| list != &["?key"]).collect()
}

/// A resource that asks in a dialect and is in no list of names.
fn of_instances(dialect: Dialect) -> Option<&'static str> {
    (dialect == Dialect::Hami).then_some("nvidia.com/mig-1g.10gb")
}

fn sorted<'a>(texts: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut texts: Vec<String> = texts.into_iter().map(str::to_owned).collect();
    texts.sort();
    texts
}

/// The chart and the translator know the same keys: a pod that the chart does not send would run untranslated.
#[test]
fn pods_that_ask_in_an_enabled_dialect_are_sent_and_no_others() {
    let Some(helm) = helm("pods_that_ask_in_an_enabled_dialect_are_sent_and_no_others") else {
        return;
    };
    let every: Vec<&str> = Dialect::ALL.into_iter().flat_map(asking_resources).copied().collect();
    for dialect in Dialect::ALL {
        let rendered = render(&helm, &[&format!("translate.dialects={{{}}}", dialect.name())]).expect("rendered");
        let lists = lists(&rendered);
        let (created, updated) = (&lists[0], &lists[1]);
        let known = sorted(asking_resources(dialect).iter().copied());
        assert_eq!(sorted(created.iter().map(String::as_str)), known);
        // Updates of translated pods are sent even if their dialect is switched off.
        assert_eq!(
            sorted(updated.iter().map(String::as_str)),
            sorted(every.iter().copied())
        );
        let mut annotations = lists[2..].iter();
        if !asking_annotations(dialect).is_empty() {
            let created = annotations.next().expect("a list");
            assert_eq!(
                sorted(created.iter().map(String::as_str)),
                sorted(asking_annotations(dialect).iter().copied())
            );
        }
        let compared = annotations.next().expect("a list");
        for key in Dialect::ALL
            .into_iter()
            .flat_map(asking_annotations)
            .chain(&[vgpu_dialects::TRANSLATED])
        {
            assert!(compared.iter().any(|compared| compared == key), "{key}");
        }
        assert_eq!(annotations.next(), None, "{}", dialect.name());
    }
}

/// Pods with a resource name that the cluster chose are sent like those with the dialect's own name; updates always.
#[test]
fn pods_that_ask_under_a_chosen_name_are_sent() {
    let Some(helm) = helm("pods_that_ask_under_a_chosen_name_are_sent") else {
        return;
    };
    let chosen = r"translate.resourceNames.nvidia\.com/vgpu=nvidia.com/gpu";
    for (dialect, is_created) in [("hami", true), ("kai", false)] {
        let rendered = render(&helm, &[&format!("translate.dialects={{{dialect}}}"), chosen]).expect("rendered");
        let lists = lists(&rendered);
        let has = |list: &Vec<String>| list.iter().any(|key| key == "nvidia.com/vgpu");
        assert_eq!((has(&lists[0]), has(&lists[1])), (is_created, true), "{dialect}");
    }
    for wrong in [
        r"translate.resourceNames.cpu=nvidia.com/gpu",
        r"translate.resourceNames.nvidia\.com/vgpu=nvidia.com/gpux",
    ] {
        assert!(render(&helm, &["translate.dialects={hami}", wrong]).is_err(), "{wrong}");
    }
}

/// Annotations with the container's name in their key, some of which ask for a GPU, spelled correctly or not.
const BY_CONTAINER: [&str; 6] = [
    "nvidia.com/container.main-1.gpu-memory.request",
    "nvidia.com/container.m.gpu-memory.limit",
    "nvidia.com/container.m.gpu-memory",
    "nvidia.com/container.gpu-memory.gpu-compute.mode",
    "nvidia.com/container.m.gpus.devices",
    "nvidia.com/containers.m.gpu-memory.limit",
];

/// Evaluates the conditions in Kubernetes' own CEL, in a policy that refuses the pods they accept. Each dialect alone:
/// the lists of the others are empty then. A condition that fails refuses a pod that asks for nothing.
#[test]
fn kubernetes_sends_the_pods_that_ask_and_no_others() {
    const TEST: &str = "kubernetes_sends_the_pods_that_ask_and_no_others";
    let Some(helm) = helm(TEST) else { return };
    let mut kubernetes = match go::Answers::of_kubernetes("admission") {
        Ok(answers) => answers,
        Err(why) => return vgpu_skip::skip(TEST, &why),
    };
    let pod = |metadata: Value, key: &str, init: bool| {
        let asks = json!({"name": "c", "image": "i", "resources": {"limits": {key: "1"}}});
        let plain = json!({"name": "d", "image": "i"});
        let (containers, init) = if init { (plain, asks) } else { (asks, plain) };
        let spec = json!({"containers": [containers], "initContainers": [init]});
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    };
    let named = |more: Value| {
        let mut metadata = json!({"name": "p", "namespace": "n"});
        metadata
            .as_object_mut()
            .expect("a map")
            .extend(more.as_object().expect("a map").clone());
        metadata
    };
    let (none, ignored) = (
        named(json!({})),
        named(json!({"labels": {"hami.io/webhook": "ignore"}})),
    );
    let annotated = |key: &str| named(json!({"annotations": {key: "0.5"}}));
    let translated = || pod(annotated(vgpu_dialects::TRANSLATED), "cpu", false);
    for dialect in Dialect::ALL {
        let rendered = render(&helm, &[&format!("translate.dialects={{{}}}", dialect.name())]).expect("rendered");
        let webhook = &one(&rendered, "MutatingWebhookConfiguration")["webhooks"][0];
        let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE", "UPDATE"]});
        let policy = json!({"metadata": {"name": "p"}, "spec": {
            "failurePolicy": "Fail", "matchConstraints": {"resourceRules": [rule]},
            "matchConditions": webhook["matchConditions"],
            "validations": [{"expression": "false", "message": "sent"}],
        }});
        let mut cases = vec![
            (pod(none.clone(), "cpu", false), None, false),
            (translated(), Some(translated()), false),
            (
                pod(none.clone(), "nvidia.com/gpu", false),
                Some(pod(none.clone(), "cpu", false)),
                false,
            ),
            (pod(named(json!({})), "cpu", false), Some(translated()), true),
        ];
        // A pod with very many containers that ask for nothing stays within the cost limit of a condition.
        let mut many = pod(none.clone(), "cpu", false);
        many["spec"]["containers"] = json!(vec![many["spec"]["containers"][0].clone(); 500]);
        cases.push((many, None, false));
        // So does one with as many annotations as the API server allows.
        let mut many = pod(none.clone(), "cpu", false);
        let keys = (0..6_000).map(|at| (format!("nvidia.com/container.container-{at:05}.x"), json!("")));
        many["metadata"]["annotations"] = Value::Object(keys.collect());
        cases.push((many, None, false));
        for of in Dialect::ALL {
            for key in asking_resources(of).iter().copied().chain(of_instances(of)) {
                for init in [false, true] {
                    cases.push((pod(none.clone(), key, init), None, of == dialect));
                }
                cases.push((pod(ignored.clone(), key, false), None, false));
                // A second apply is sent, whichever dialects are read now.
                cases.push((
                    pod(annotated(vgpu_dialects::TRANSLATED), key, false),
                    Some(translated()),
                    true,
                ));
            }
            for key in asking_annotations(of) {
                cases.push((pod(annotated(key), "cpu", false), None, of == dialect));
            }
        }
        for key in BY_CONTAINER {
            let asks = asks_by_annotation(dialect, key);
            cases.push((pod(annotated(key), "cpu", false), None, asks));
        }
        let requests: Vec<Value> = cases
            .iter()
            .map(|(object, old, _)| match old {
                Some(old) => json!({"user": "u", "object": object, "old": old}),
                None => json!({"user": "u", "object": object}),
            })
            .collect();
        let question = json!({"policies": [policy], "requests": requests}).to_string();
        let answer: Value = serde_json::from_str(&kubernetes.ask(&question).expect("an answer")).expect("JSON");
        let verdicts = answer["verdicts"].as_array().unwrap_or_else(|| panic!("{answer}"));
        assert_eq!(verdicts.len(), cases.len());
        for ((object, _, is_sent), verdict) in cases.iter().zip(verdicts) {
            let expected = if *is_sent { json!(["sent"]) } else { Value::Null };
            let name = dialect.name();
            assert_eq!(
                (&verdict["denied"], &verdict["errors"]),
                (&expected, &Value::Null),
                "{name}: {object}"
            );
        }
    }
}

/// A pod of KAI asks by annotations, which stay: a second `kubectl apply` sends nothing but its scheduler.
#[test]
fn an_update_of_the_scheduler_alone_is_sent() {
    let Some(helm) = helm("an_update_of_the_scheduler_alone_is_sent") else {
        return;
    };
    let rendered = render(&helm, &["translate.dialects={kai}"]).expect("rendered");
    let expression = asks(&rendered);
    let (created, updated) = expression
        .rsplit_once("request.operation == 'CREATE'")
        .expect("two cases");
    let compared = "object.spec.?schedulerName != oldObject.spec.?schedulerName";
    assert!(
        updated.contains(compared) && !created.contains(compared),
        "{expression}"
    );
}

/// Evaluates the policy in Kubernetes' own CEL: it names a key that nobody reads, but not one that the webhook reads.
#[test]
fn a_pod_with_keys_that_nobody_reads_is_warned() {
    const TEST: &str = "a_pod_with_keys_that_nobody_reads_is_warned";
    let Some(helm) = helm(TEST) else { return };
    let mut kubernetes = match go::Answers::of_kubernetes("admission") {
        Ok(answers) => answers,
        Err(why) => return vgpu_skip::skip(TEST, &why),
    };
    for read in [Dialect::Hami, Dialect::Kai] {
        let chosen = r"translate.resourceNames.nvidia\.com/vgpu=nvidia.com/gpu";
        let rendered = render(&helm, &[&format!("translate.dialects={{{}}}", read.name()), chosen]).expect("rendered");
        let of = |kind: &str| {
            let policies = all(&rendered, kind).into_iter();
            let mut named = policies.filter(|policy| policy["metadata"]["name"] == "x-pod-warnings");
            named.next().unwrap_or_else(|| panic!("no {kind}")).clone()
        };
        assert_eq!(
            of("ValidatingAdmissionPolicyBinding")["spec"]["validationActions"],
            json!(["Warn"])
        );
        let mut policy = of("ValidatingAdmissionPolicy");
        assert_eq!(policy["spec"]["failurePolicy"], "Ignore");
        // Makes errors of expressions visible here.
        policy["spec"]["failurePolicy"] = json!("Fail");
        let mut cases = Vec::new();
        for of in Dialect::ALL {
            let mut keys: Vec<(&str, bool)> = asking_resources(of).iter().map(|key| (*key, false)).collect();
            keys.extend(asking_annotations(of).iter().map(|key| (*key, true)));
            let by_container = BY_CONTAINER.into_iter().filter(|key| asks_by_annotation(of, key));
            keys.extend(by_container.map(|key| (key, true)));
            keys.extend((of == Dialect::Hami).then_some(("nvidia.com/vgpu", false)));
            keys.extend(of_instances(of).map(|key| (key, false)));
            for (key, is_annotation) in keys {
                for (labels, is_labelled, is_ignored) in [
                    (json!({}), false, false),
                    (json!({"dra.vgpu/translate": "true"}), true, false),
                    (json!({"hami.io/webhook": "ignore"}), false, true),
                ] {
                    let mut container = json!({"name": "c", "image": "i"});
                    let mut metadata = json!({"name": "p", "namespace": "n"});
                    match is_annotation {
                        true => metadata["annotations"] = json!({key: "1"}),
                        false => container["resources"] = json!({"limits": {key: "1"}}),
                    }
                    let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {
                        "containers": [{"name": "d", "image": "i"}], "initContainers": [container]}});
                    let is_read = is_labelled && of == read;
                    let is_said = !is_read && !is_ignored;
                    let request = json!({"user": "u", "object": object, "namespace": labels});
                    cases.push((request, key, of == read, is_said));
                }
            }
        }
        let requests: Vec<&Value> = cases.iter().map(|(request, ..)| request).collect();
        let question = json!({"policies": [policy], "requests": requests}).to_string();
        let answer: Value = serde_json::from_str(&kubernetes.ask(&question).expect("an answer")).expect("JSON");
        let verdicts = answer["verdicts"].as_array().unwrap_or_else(|| panic!("{answer}"));
        assert_eq!(verdicts.len(), cases.len());
        for ((request, key, is_on, is_said), verdict) in cases.iter().zip(verdicts) {
            assert_eq!(verdict["errors"], Value::Null, "{request}");
            let said = verdict["denied"][0].as_str();
            assert_eq!(said.is_some(), *is_said, "{request}: {verdict}");
            let why = match is_on {
                true => "dra.vgpu/translate=true",
                false => "translate.dialects",
            };
            let is_whole = |said: &str| said.contains(&format!("[{key}]: ")) && said.contains(why);
            assert!(said.is_none_or(is_whole), "{said:?}");
        }
    }
}
