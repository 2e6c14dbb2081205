//! The object that `vgpu explain` is asked about, from the command line.

use vgpu_quantity::quoted;

use crate::cluster::{self, Kind};

#[derive(Debug, thiserror::Error)]
pub(in crate::offline) enum AskedError {
    #[error("{} is not a kind that can be explained{}: {}", quoted(.kind), suggested(.meant.as_deref()), kinds())]
    Kind { kind: String, meant: Option<String> },
    #[error("{}: a name is missing; write KIND/NAME, or no NAME for all pods that wait", quoted(.0))]
    NoName(String),
    #[error("{} and {}: one object is explained at a time; without NAME it is all pods that wait", quoted(.0), quoted(.1))]
    Several(String, String),
    #[error("-A is about all pods that wait; leave out {}, or name its namespace by -n", quoted(.0))]
    NameAndAll(String),
    #[error("{kind} {} not found in namespace {namespace}{}; {hint}", vgpu_quantity::shortened(.name), suggested(.meant.as_deref()))]
    NotFound {
        kind: String,
        name: String,
        namespace: String,
        meant: Option<String>,
        hint: &'static str,
    },
}

fn suggested(name: Option<&str>) -> String {
    name.map_or_else(String::new, |name| format!("; did you mean {name}?"))
}

fn kinds() -> String {
    let names: Vec<&str> = KINDS.iter().map(|(names, _)| names[0]).collect();
    names.join(", ")
}

/// A kind of workload, with the kinds between it and its pods, such as ReplicaSet.
#[derive(Debug, PartialEq)]
pub(super) struct WorkloadKind {
    pub(super) name: &'static str,
    pub(super) lists: &'static [Kind],
}

const DEPLOYMENT: WorkloadKind = WorkloadKind {
    name: "Deployment",
    lists: &[cluster::DEPLOYMENTS, cluster::REPLICA_SETS],
};
const REPLICA_SET: WorkloadKind = WorkloadKind {
    name: "ReplicaSet",
    lists: &[cluster::REPLICA_SETS],
};
const STATEFUL_SET: WorkloadKind = WorkloadKind {
    name: "StatefulSet",
    lists: &[cluster::STATEFUL_SETS],
};
const DAEMON_SET: WorkloadKind = WorkloadKind {
    name: "DaemonSet",
    lists: &[cluster::DAEMON_SETS],
};
const JOB: WorkloadKind = WorkloadKind {
    name: "Job",
    lists: &[cluster::JOBS],
};
const CRON_JOB: WorkloadKind = WorkloadKind {
    name: "CronJob",
    lists: &[cluster::CRON_JOBS, cluster::JOBS],
};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Of {
    Pod,
    Claim,
    Template,
    Workload(&'static WorkloadKind),
}

/// Each kind with all its names; the first is ours, and the others are kubectl's.
const KINDS: &[(&[&str], Of)] = &[
    (&["pod", "pods", "po"], Of::Pod),
    (&["claim", "claims", "resourceclaim", "resourceclaims"], Of::Claim),
    (
        &[
            "template",
            "templates",
            "resourceclaimtemplate",
            "resourceclaimtemplates",
        ],
        Of::Template,
    ),
    (&["deployment", "deployments", "deploy"], Of::Workload(&DEPLOYMENT)),
    (&["statefulset", "statefulsets", "sts"], Of::Workload(&STATEFUL_SET)),
    (&["replicaset", "replicasets", "rs"], Of::Workload(&REPLICA_SET)),
    (&["daemonset", "daemonsets", "ds"], Of::Workload(&DAEMON_SET)),
    (&["job", "jobs"], Of::Workload(&JOB)),
    (&["cronjob", "cronjobs", "cj"], Of::Workload(&CRON_JOB)),
];

#[derive(Debug, PartialEq)]
pub(super) enum Asked {
    /// All pods that wait.
    Waiting,
    /// A pod or claim, as [`Subject::parse`](vgpu_planner::explain::Subject::parse) reads it.
    One(String),
    Template(String),
    Workload(&'static WorkloadKind, String),
}

impl Asked {
    /// Reads `KIND/NAME`, `KIND NAME`, `NAME` of a pod or claim, or nothing.
    pub(super) fn parse(words: &[String], all_namespaces: bool) -> Result<Self, AskedError> {
        let (kind, name) = match words {
            [] => return Ok(Self::Waiting),
            [word, ..] if all_namespaces => return Err(AskedError::NameAndAll(word.clone())),
            [word] => match word.split_once('/') {
                None if of(word).is_some() => return Err(AskedError::NoName(word.clone())),
                None => return Ok(Self::One(word.clone())),
                Some((_, "")) => return Err(AskedError::NoName(word.clone())),
                Some(parts) => parts,
            },
            [kind, name, ..] if of(kind).is_some() && !name.contains('/') => (&**kind, &**name),
            // A misspelled kind before a name.
            [kind, name, ..] if !kind.contains('/') && !name.contains('/') && kind_like(kind).is_some() => {
                (&**kind, &**name)
            }
            [one, other, ..] => return Err(AskedError::Several(one.clone(), other.clone())),
        };
        let Some(of) = of(kind) else {
            return Err(AskedError::Kind {
                kind: kind.to_owned(),
                meant: kind_like(kind),
            });
        };
        Ok(match of {
            Of::Pod => Self::One(format!("pod/{name}")),
            Of::Claim => Self::One(format!("claim/{name}")),
            Of::Template => Self::Template(name.to_owned()),
            Of::Workload(kind) => Self::Workload(kind, name.to_owned()),
        })
    }

    /// The kinds of objects to read beside pods, claims and templates.
    pub(super) fn lists(&self) -> &'static [Kind] {
        match self {
            Self::Workload(kind, _) => kind.lists,
            _ => &[],
        }
    }
}

/// `deployment.apps` is what `kubectl get -o name` prints.
fn of(kind: &str) -> Option<Of> {
    let kind = kind.split('.').next()?.to_lowercase();
    let known = KINDS.iter().find(|(names, _)| names.contains(&&*kind));
    known.map(|(_, of)| *of)
}

/// Returns the kind that may have been meant.
fn kind_like(word: &str) -> Option<String> {
    nearest(word, KINDS.iter().flat_map(|(names, _)| *names).copied())
}

/// Returns the known name that is most similar to a name that does not exist: few letters differ, or a workload of this
/// name made the pod.
pub(super) fn nearest<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> Option<String> {
    let rank = |other: &str| {
        let made = other.strip_prefix(name).is_some_and(|rest| rest.starts_with('-'));
        let distance = strsim::osa_distance(name, other);
        (made || distance <= (name.chars().count() / 3).clamp(1, 3)).then_some((!made, distance))
    };
    let ranked = known.filter_map(|other| Some((rank(other)?, other)));
    ranked.min().map(|(_, other)| other.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Asked, String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        Asked::parse(&words, false).map_err(|error| error.to_string())
    }

    #[test]
    fn kubectls_names_of_kinds_are_read() {
        for (words, asked) in [
            (&[][..], Asked::Waiting),
            (&["train"], Asked::One("train".into())),
            (&["po/train"], Asked::One("pod/train".into())),
            (&["pod", "train"], Asked::One("pod/train".into())),
            (&["resourceclaim.resource.k8s.io/mine"], Asked::One("claim/mine".into())),
            (&["template/quarter"], Asked::Template("quarter".into())),
            (&["deploy/train"], Asked::Workload(&DEPLOYMENT, "train".into())),
            (&["deployment.apps/train"], Asked::Workload(&DEPLOYMENT, "train".into())),
            (&["sts", "train"], Asked::Workload(&STATEFUL_SET, "train".into())),
            (&["Job/train"], Asked::Workload(&JOB, "train".into())),
        ] {
            assert_eq!(parse(words), Ok(asked), "{words:?}");
        }
    }

    #[test]
    fn mistakes_are_named_with_what_may_be_meant() {
        for (words, said) in [
            (
                &["deploymnt/train"][..],
                "\"deploymnt\" is not a kind that can be explained; did you mean deployment?: pod, claim",
            ),
            (
                &["deploymnt", "train"],
                "\"deploymnt\" is not a kind that can be explained; did you mean deployment?: pod, claim",
            ),
            (&["node/n"], "\"node\" is not a kind that can be explained: pod, claim"),
            (&["pod"], "\"pod\": a name is missing"),
            (&["pod/"], "\"pod/\": a name is missing"),
            (
                &["pod/a", "pod/b"],
                "\"pod/a\" and \"pod/b\": one object is explained at a time",
            ),
            (&["\u{1b}[31m/x"], "\"\\u{1b}[31m\" is not a kind"),
        ] {
            let error = parse(words).unwrap_err();
            assert!(error.starts_with(said), "{words:?}: {error}");
        }
        let error = Asked::parse(&["pod/a".to_owned()], true).unwrap_err().to_string();
        assert!(
            error.starts_with("-A is about all pods that wait; leave out \"pod/a\""),
            "{error}"
        );
    }

    #[test]
    fn a_name_is_suggested_only_if_it_is_like_the_one_that_was_typed() {
        let known = ["train", "train-7f6c-x", "notebook"];
        let nearest = |name| nearest(name, known.into_iter());
        assert_eq!(nearest("trian").as_deref(), Some("train"));
        assert_eq!(
            nearest("train-7f6c").as_deref(),
            Some("train-7f6c-x"),
            "a pod of that ReplicaSet"
        );
        assert_eq!(nearest("inference"), None);
    }
}
