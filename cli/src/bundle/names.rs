//! Pseudonyms for the names of tenants' namespaces, pods, claims and templates: the same one for a name in every object,
//! event and log of a bundle.
//!
//! ```text
//!  objects ─► all names ─► namespace-1, pod-1, claim-1 ... ─► whole words of texts, and of the objects' strings
//! ```
//!
//! How it fails: a name that is also a common word is replaced wherever that word appears, except for [`WORDS`], which
//! stay even if they are a name. Names of deleted objects are recognised by their context: `NAMESPACE/NAME`, and after
//! `namespace`. Not replaced: names of containers, of requests and of nodes, and the text of claims' selectors.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::doctor::{is_labelled, list, text};

/// Namespaces that every cluster has, and our own words: they reveal nothing about a tenant and occur everywhere.
const WORDS: [&str; 27] = [
    "default",
    "kube-system",
    "kube-public",
    "kube-node-lease",
    "namespace",
    "vgpu",
    "gpu",
    "dra-driver-vgpu",
    "controller",
    "plugin",
    "kubelet",
    "kubectl",
    "scheduler",
    "v1",
    "v1alpha1",
    "status",
    "apps",
    "docs",
    "pod",
    "pods",
    "nodes",
    "events",
    "claim",
    "resourceclaims",
    "resourceslices",
    "vgpuquotas",
    "deployment",
];
/// Fields whose values are never a tenant's name, even if they look like one.
const FIXED: [&str; 16] = [
    "apiVersion",
    "kind",
    "driver",
    "pool",
    "device",
    "deviceClassName",
    "type",
    "status",
    "phase",
    "reason",
    "node",
    "nodeName",
    "uid",
    "resourceVersion",
    "reportingController",
    "resource",
];
/// Kinds whose names are not a tenant's.
const WITHOUT: [&str; 9] = [
    "nodes",
    "deviceclasses",
    "resourceslices",
    "devicetaintrules",
    "daemonsets",
    "deployments",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
    "leases",
];
pub(super) struct Names {
    /// If false, all names stay.
    replaces: bool,
    known: BTreeMap<String, String>,
    counts: BTreeMap<&'static str, usize>,
    ours: BTreeSet<String>,
    /// The namespaces of the chart.
    own: BTreeSet<String>,
}

impl Names {
    pub(super) fn kept() -> Self {
        Self {
            replaces: false,
            known: BTreeMap::new(),
            counts: BTreeMap::new(),
            ours: BTreeSet::new(),
            own: BTreeSet::new(),
        }
    }

    /// `own`: the chart's namespaces. Their names, the names of the chart's pods, and those of nodes stay as they are.
    pub(super) fn new<'n>(own: &BTreeSet<&'n str>, nodes: impl Iterator<Item = &'n str>) -> Self {
        let stay = WORDS.into_iter().chain(nodes).chain(own.iter().copied());
        Self {
            replaces: true,
            known: BTreeMap::new(),
            counts: BTreeMap::new(),
            ours: stay.map(str::to_owned).collect(),
            own: own.iter().copied().map(str::to_owned).collect(),
        }
    }

    /// Learns the names of objects, and the names that their fields refer to.
    pub(super) fn learn<'v>(&mut self, plural: &str, objects: impl Iterator<Item = &'v Value>) {
        if !self.replaces || WITHOUT.contains(&plural) {
            return;
        }
        let mut found: BTreeSet<(&'static str, String)> = BTreeSet::new();
        let mut add = |kind: &'static str, name: &str| {
            found.insert((kind, name.to_owned()));
        };
        for object in objects {
            let namespace = text(object, "/metadata/namespace");
            add("namespace", namespace);
            // Others may have objects in the chart's namespace. Events there are about the chart's pods.
            if !self.own.contains(namespace) || !(plural == "events" || is_labelled(object)) {
                named_by(plural, object, &mut add);
            }
        }
        for (kind, name) in found {
            self.pseudonym(kind, &name);
        }
    }

    /// Returns the name itself if it is not a tenant's.
    fn pseudonym(&mut self, kind: &'static str, name: &str) -> String {
        if name.is_empty() || self.ours.contains(name) {
            return name.to_owned();
        }
        if let Some(known) = self.known.get(name) {
            return known.clone();
        }
        let count = self.counts.entry(kind).or_default();
        *count += 1;
        let made = format!("{kind}-{count}");
        self.known.insert(name.to_owned(), made.clone());
        made
    }

    pub(super) fn in_object(&mut self, plural: &str, object: &Value) -> Value {
        match WITHOUT.contains(&plural) {
            true => object.clone(),
            false => self.in_value(object),
        }
    }

    fn in_value(&mut self, value: &Value) -> Value {
        match value {
            // A VgpuNode may have any text for a name.
            Value::String(words) => match self.known.get(words) {
                Some(known) => known.as_str().into(),
                None => self.in_text(words).into(),
            },
            Value::Array(items) => items.iter().map(|item| self.in_value(item)).collect(),
            Value::Object(fields) => {
                let replaced = fields.iter().map(|(key, value)| match value {
                    Value::String(_) if FIXED.contains(&key.as_str()) => (key.clone(), value.clone()),
                    _ => (key.clone(), self.in_value(value)),
                });
                replaced.collect()
            }
            other => other.clone(),
        }
    }

    pub(super) fn in_text(&mut self, text: &str) -> String {
        if !self.replaces {
            return text.to_owned();
        }
        let mut replaced = String::with_capacity(text.len());
        let (mut rest, mut before) = (text, String::new());
        while let Some(start) = rest.find(is_of_name) {
            let (between, from) = rest.split_at(start);
            replaced.push_str(between);
            let escape = escape(between, from);
            if !escape.is_empty() && !self.known.contains_key(word_of(from).0) {
                replaced.push_str(escape);
                rest = &from[escape.len()..];
                continue;
            }
            let end = from.find(|letter| !is_of_name(letter)).unwrap_or(from.len());
            let (word, after) = from.split_at(end);
            // The dot of a sentence.
            let name = word.trim_end_matches(['.', '-']);
            let follows_namespace = matches!(before.as_str(), "namespace" | "namespaces")
                && matches!(between, " " | "=" | "/" | "=\"" | "\":\"" | " \"");
            let partner = after.strip_prefix('/').map(word_of);
            let is_pair = partner.is_some_and(|of| !of.0.is_empty() && !of.1.starts_with('/'))
                && !matches!(between.chars().last(), Some('/' | ':' | '.'))
                && is_namespace(word);
            let new = match () {
                () if follows_namespace && is_namespace(name) => self.pseudonym("namespace", name),
                () if is_pair && !self.ours.contains(word) => {
                    if let Some((partner, _)) = partner {
                        self.pseudonym("name", partner.trim_end_matches(['.', '-']));
                    }
                    self.pseudonym("namespace", word)
                }
                () => self.known_of(name),
            };
            replaced.push_str(&new);
            replaced.push_str(&word[name.len()..]);
            before = name.to_owned();
            rest = after;
        }
        replaced.push_str(rest);
        replaced
    }

    /// Returns the pseudonym of a name. In a DNS name each part that is known is replaced.
    fn known_of(&self, name: &str) -> String {
        match self.known.get(name) {
            Some(known) => known.clone(),
            None if name.contains('.') => {
                let parts = name
                    .split('.')
                    .map(|part| self.known.get(part).map_or(part, String::as_str));
                parts.collect::<Vec<_>>().join(".")
            }
            None => name.to_owned(),
        }
    }
}

/// The object's own name and the names that it refers to, except its namespace's.
fn named_by(plural: &str, object: &Value, add: &mut impl FnMut(&'static str, &str)) {
    let own = match plural {
        "namespaces" => "namespace",
        "pods" => "pod",
        "resourceclaims" => "claim",
        "resourceclaimtemplates" => "template",
        "vgpuquotas" => "quota",
        // A VgpuNode has its node's name, and every VgpuUsage has the same name.
        _ => "",
    };
    if !own.is_empty() {
        add(own, text(object, "/metadata/name"));
    }
    for claim in list(object, "/spec/resourceClaims") {
        add("claim", text(claim, "/resourceClaimName"));
        add("template", text(claim, "/resourceClaimTemplateName"));
    }
    for status in list(object, "/status/resourceClaimStatuses") {
        add("claim", text(status, "/resourceClaimName"));
    }
    for share in ["/status/shares", "/status/claims"]
        .iter()
        .flat_map(|path| list(object, path))
    {
        add("namespace", text(share, "/namespace"));
        add("claim", text(share, "/claim"));
    }
    for user in list(object, "/status/reservedFor") {
        add("pod", text(user, "/name"));
    }
    for about in ["/regarding", "/related"]
        .iter()
        .filter_map(|path| object.pointer(path))
    {
        if about["kind"] != "Node" {
            add("namespace", text(about, "/namespace"));
            let kind = match text(about, "/kind") {
                "Pod" => "pod",
                "ResourceClaim" => "claim",
                _ => "name",
            };
            add(kind, text(about, "/name"));
        }
    }
}

/// Returns the rest of an escape such as `\n` or `%2F`, whose letters are not the name's.
fn escape<'t>(before: &str, from: &'t str) -> &'t str {
    let length = match (before.chars().last(), from.chars().next()) {
        (Some('\\'), Some('n' | 'r' | 't')) => 1,
        (Some('\\'), Some('x')) => 3,
        (Some('\\'), Some('u')) => 5,
        (Some('%'), _) => 2,
        _ => 0,
    };
    let is_hex = |rest: &&str| {
        length == 1
            || rest
                .trim_start_matches(['u', 'x'])
                .bytes()
                .all(|of| of.is_ascii_hexdigit())
    };
    from.get(..length).filter(is_hex).unwrap_or_default()
}

fn is_of_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '-' | '.')
}

fn is_namespace(word: &str) -> bool {
    let is_label = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
    word.chars().all(is_label) && word.contains(|letter: char| letter.is_ascii_lowercase())
}

/// The name at the beginning of a text, and what follows.
fn word_of(text: &str) -> (&str, &str) {
    text.split_at(text.find(|letter| !is_of_name(letter)).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn names() -> Names {
        let pod = json!({"metadata": {"name": "train-7d9", "namespace": "acme"},
            "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "quarter"}]}});
        let labels = json!({"app.kubernetes.io/name": "dra-driver-vgpu"});
        let own = json!({"metadata": {"name": "vgpu-plugin-a", "namespace": "dra-driver-vgpu", "labels": labels}});
        let beside = json!({"metadata": {"name": "dashboard", "namespace": "dra-driver-vgpu"}});
        let quiet = json!({"metadata": {"name": "quiet-tenant"}});
        let node = json!({"metadata": {"name": "n1"}, "status": {"shares": [{"namespace": "gone", "claim": "old"}]}});
        let mut names = Names::new(&BTreeSet::from(["dra-driver-vgpu"]), ["n1"].into_iter());
        for (plural, objects) in [("pods", vec![pod, own]), ("vgpunodes", vec![node])] {
            names.learn(plural, objects.iter());
        }
        names.learn("pods", [beside].iter());
        names.learn("namespaces", [quiet].iter());
        names
    }

    #[test]
    fn a_name_is_replaced_by_the_same_everywhere() {
        let mut names = names();
        for (text, expected) in [
            ("pod acme/train-7d9 waits.", "pod namespace-1/pod-1 waits."),
            ("of quarter, train-7d9.", "of template-1, pod-1."),
            ("claim gone/old of node n1", "claim namespace-2/claim-1 of node n1"),
            // A name inside a longer word is not replaced.
            ("acmexyz train-7d9-x", "acmexyz train-7d9-x"),
            (
                "system:serviceaccount:acme:default",
                "system:serviceaccount:namespace-1:default",
            ),
            ("svc.acme.svc", "svc.namespace-1.svc"),
            (
                "{namespace=\"acme\",pod=\"train-7d9\"}",
                "{namespace=\"namespace-1\",pod=\"pod-1\"}",
            ),
            ("seen in quiet-tenant", "seen in namespace-3"),
            ("beside us: dashboard", "beside us: pod-2"),
            (
                r"a\nacme\tacme \u003cacme %2Facme \acme %acme",
                r"a\nnamespace-1\tnamespace-1 \u003cnamespace-1 %2Fnamespace-1 \namespace-1 %namespace-1",
            ),
            // These objects were deleted, so no list has them.
            ("claim=secret-team/secret-claim", "claim=namespace-4/name-1"),
            (
                "again secret-claim in namespace late.",
                "again name-1 in namespace namespace-5.",
            ),
            // These words look like `namespace/name` and are something else.
            (
                "/var/lib/vgpu, dra.vgpu/lost, 1/2, docs/using.md",
                "/var/lib/vgpu, dra.vgpu/lost, 1/2, docs/using.md",
            ),
            ("Pod dra-driver-vgpu/vgpu-plugin-a", "Pod dra-driver-vgpu/vgpu-plugin-a"),
            ("pool n1/vgpu, apps/v1, v1 of vgpu", "pool n1/vgpu, apps/v1, v1 of vgpu"),
        ] {
            assert_eq!(names.in_text(text), expected);
        }
    }

    #[test]
    fn objects_keep_their_structure() {
        let mut names = names();
        let claim = json!({"metadata": {"name": "c", "namespace": "acme"}, "status": {"phase": "acme", "pool": "acme",
            "message": "of acme", "devices": [{"device": "quarter"}]}});
        assert_eq!(
            names.in_object("resourceclaims", &claim),
            json!({"metadata": {"name": "c", "namespace": "namespace-1"}, "status": {"phase": "acme", "pool": "acme",
                "message": "of namespace-1", "devices": [{"device": "quarter"}]}})
        );
        assert_eq!(names.in_object("resourceslices", &claim), claim);
        assert_eq!(Names::kept().in_text("pod acme/train"), "pod acme/train");
    }
}
