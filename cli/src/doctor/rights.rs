//! The rights that the chart's ServiceAccounts need. Only the API server knows what an account may do: it answers
//! SubjectAccessReviews, and does not store them.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::finding::Finding;
use super::release::flag;
use super::seen::{Seen, key, text};
use crate::cluster::{ACCESS_REVIEWS, Cluster};

/// Verbs, group and resource, as in the chart's roles. The first two lists are those of the plugin and the controller;
/// the others belong to the controller if the flag of their name is set.
type Rule = (&'static str, &'static str, &'static str);

const PLUGIN: &[Rule] = &[
    ("list watch create update delete", "resource.k8s.io", "resourceslices"),
    ("get", "resource.k8s.io", "resourceclaims"),
    ("patch", "resource.k8s.io", "resourceclaims/status"),
    ("list", "", "pods"),
    ("get", "", "nodes"),
    ("create patch", "dra.vgpu", "vgpunodes"),
    ("create", "events.k8s.io", "events"),
];
const CONTROLLER: &[Rule] = &[
    ("list watch", "resource.k8s.io", "resourceclaims"),
    ("list watch", "resource.k8s.io", "resourceslices"),
    ("list watch", "resource.k8s.io", "deviceclasses"),
    ("list watch", "", "pods"),
    ("list watch", "", "nodes"),
    ("create patch", "events.k8s.io", "events"),
];
const ALLOCATOR: &[Rule] = &[
    ("get", "resource.k8s.io", "resourceslices"),
    ("patch", "resource.k8s.io", "resourceclaims"),
    ("patch", "resource.k8s.io", "resourceclaims/status"),
];
const QUOTA: &[Rule] = &[
    ("list watch create patch", "dra.vgpu", "vgpuquotas"),
    ("update", "dra.vgpu", "vgpuquotas/status"),
    ("list watch patch", "", "namespaces"),
    ("get patch", "", "pods"),
    ("create", "", "pods/eviction"),
];
const USAGE: &[Rule] = &[
    ("list watch", "dra.vgpu", "vgpunodes"),
    ("list create patch delete", "dra.vgpu", "vgpuusages"),
];
const TRANSLATION: &[Rule] = &[
    ("list watch create delete", "resource.k8s.io", "resourceclaimtemplates"),
    ("patch", "", "pods"),
];

/// A right that an account should have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Question {
    /// `namespace/name` of the ServiceAccount.
    pub(super) account: String,
    /// Namespace of the right; `None` if it is cluster-wide.
    within: Option<String>,
    /// `list pods`.
    pub(super) right: String,
}

impl Question {
    /// A SubjectAccessReview.
    pub(super) fn review(&self) -> Value {
        let (namespace, name) = self.account.split_once('/').unwrap_or_default();
        let (verb, what) = self.right.split_once(' ').unwrap_or_default();
        let (resource, group) = what.split_once('.').unwrap_or((what, ""));
        // A subresource follows its group here: `pods/eviction`, `resourceclaims.resource.k8s.io/status`.
        let (group, of_group) = group.split_once('/').unwrap_or((group, ""));
        let (resource, of_core) = resource.split_once('/').unwrap_or((resource, ""));
        let groups = [
            "system:serviceaccounts",
            &format!("system:serviceaccounts:{namespace}"),
            "system:authenticated",
        ];
        json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {
            "user": format!("system:serviceaccount:{namespace}:{name}"), "groups": groups,
            "resourceAttributes": {"verb": verb, "group": group, "resource": resource,
                "subresource": format!("{of_group}{of_core}"), "namespace": self.within.as_deref().unwrap_or_default()}}})
    }
}

fn questions_of<'a>(account: &'a str, rules: &'a [Rule]) -> impl Iterator<Item = Question> + 'a {
    rules.iter().flat_map(move |(verbs, group, resource)| {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let dot = if group.is_empty() { "" } else { "." };
        let slash = if subresource.is_empty() { "" } else { "/" };
        verbs.split(' ').map(move |verb| Question {
            account: account.to_owned(),
            within: None,
            right: format!("{verb} {resource}{dot}{group}{slash}{subresource}"),
        })
    })
}

fn account(workload: &Value) -> String {
    let name = text(workload, "/spec/template/spec/serviceAccountName");
    format!("{}/{name}", text(workload, "/metadata/namespace"))
}

/// The questions about the rights of the chart's programs.
pub(super) fn questions(seen: &Seen) -> Vec<Question> {
    let mut all = Vec::new();
    for daemon_set in seen.daemon_sets.iter() {
        all.extend(questions_of(&account(daemon_set), PLUGIN));
    }
    for deployment in seen.deployments.iter() {
        let account = account(deployment);
        all.extend(questions_of(&account, CONTROLLER));
        if flag(deployment, "--allocator") == Some("controller") {
            all.extend(questions_of(&account, ALLOCATOR));
        }
        if flag(deployment, "--quota").is_some() {
            all.extend(questions_of(&account, QUOTA));
        }
        if flag(deployment, "--usage").is_some() {
            all.extend(questions_of(&account, USAGE));
        }
        if flag(deployment, "--translate-dialects").is_some() {
            all.extend(questions_of(&account, TRANSLATION));
        }
        let leases = flag(deployment, "--lease-namespace").map(|namespace| Question {
            account: account.clone(),
            within: Some(namespace.to_owned()),
            right: "create leases.coordination.k8s.io".to_owned(),
        });
        all.extend(leases);
    }
    all
}

/// Asks the API server which rights the accounts lack.
pub(super) fn ask(seen: &mut Seen, cluster: &Cluster) {
    let questions = questions(seen);
    let reviews: Vec<Value> = questions.iter().map(Question::review).collect();
    let answers = cluster.create(ACCESS_REVIEWS, None, &reviews);
    for (question, answer) in questions.into_iter().zip(answers) {
        match answer {
            Ok(review) if review.pointer("/status/allowed") == Some(&false.into()) => {
                seen.denied.push((question.account, question.right));
            }
            Ok(_) => {}
            // Every question fails with the same error.
            Err(error) => return seen.unread.push(format!("rights of the ServiceAccounts: {error}")),
        }
    }
}

pub(super) fn of(seen: &Seen) -> Vec<Finding> {
    let mut missing: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (account, right) in &seen.denied {
        missing.entry(account).or_default().push(right);
    }
    let workloads = || seen.daemon_sets.iter().chain(seen.deployments.iter());
    let finding = |(account, rights): (&str, Vec<&str>)| {
        let (namespace, name) = account.split_once('/').unwrap_or_default();
        let workload = workloads().find(|workload| self::account(workload) == account).map(key);
        Finding {
            object: format!("ServiceAccount {account}"),
            value: format!("has no right to {}", rights.join(", ")),
            breaks: format!(
                "what {} needs it for fails: its log has the API server's words",
                workload.unwrap_or_default()
            ),
            mend: format!(
                "helm -n {namespace} upgrade RELEASE CHART writes the chart's roles and bindings again: \
                 kubectl get clusterrole,clusterrolebinding {name}"
            ),
        }
    };
    missing.into_iter().map(finding).collect()
}
