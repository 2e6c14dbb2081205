//! Pods that wait for the same, as one answer: a text that names no pod, and the pods.
//!
//! Claims from templates have a different name for each pod, so the text uses the name in the pod's spec.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Blocked, Explanation, Found, Requested, Standing};

/// Pods that wait for the same.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Waiting {
    pub state: Standing,
    pub reason: String,
    /// Why they wait, from the explanation of one of them, without its name.
    pub sentences: Vec<String>,
    pub requested: Vec<Requested>,
    pub obstacles: Vec<Found>,
    pub blocked: Vec<Blocked>,
    /// True if it waits for administrative access, which is not a share.
    pub is_monitor: bool,
    /// `namespace/name`.
    pub pods: Vec<String>,
}

/// Groups explanations with the same text, the largest group first. `more` are sentences in addition to those of an
/// explanation, such as events.
#[must_use]
pub fn groups(explanations: Vec<(Explanation, Vec<String>)>) -> Vec<Waiting> {
    let mut groups: BTreeMap<(Vec<String>, bool), Waiting> = BTreeMap::new();
    for (explanation, more) in explanations {
        let sentences = explanation.sentences(more);
        let pod = explanation.key().to_owned();
        let key = (sentences.clone(), explanation.is_monitor);
        let group = groups.entry(key).or_insert_with(|| Waiting {
            state: explanation.state,
            reason: explanation.reason,
            sentences,
            requested: explanation.requested,
            obstacles: explanation.obstacles,
            blocked: explanation.blocked,
            is_monitor: explanation.is_monitor,
            pods: Vec::new(),
        });
        group.pods.push(pod);
    }
    let mut groups: Vec<Waiting> = groups.into_values().collect();
    groups.sort_by_key(|group| (group.is_monitor, std::cmp::Reverse(group.pods.len())));
    groups
}

impl Explanation {
    /// `namespace/name`.
    fn key(&self) -> &str {
        self.subject.split_once(' ').map_or(&*self.subject, |(_, key)| key)
    }

    /// The sentences of the answer. Claim names that no other pod has are replaced by the names in the pod's spec.
    fn sentences(&self, more: Vec<String>) -> Vec<String> {
        let obstacles = self.obstacles.iter().map(|found| found.message.clone());
        let mut sentences: Vec<String> = obstacles.chain(self.summary.iter().cloned()).chain(more).collect();
        let mut entries: Vec<&(String, String)> = self.entries.iter().collect();
        // Longest first: a name may be a prefix of another one.
        entries.sort_by_key(|(key, _)| std::cmp::Reverse(key.len()));
        for sentence in &mut sentences {
            for (key, entry) in &entries {
                *sentence = sentence.replace(&format!("claim {key}"), &format!("claim {entry}"));
            }
        }
        sentences
    }
}

impl Waiting {
    /// Who waits, with at most `most` names.
    #[must_use]
    pub fn who(&self, most: usize) -> String {
        let named = self.pods[..self.pods.len().min(most)].join(", ");
        let more = match self.pods.len().saturating_sub(most) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let what = match (self.is_monitor, self.pods.len()) {
            (true, 1) => "monitor",
            (true, _) => "monitors",
            (false, 1) => "pod",
            (false, _) => "pods",
        };
        format!("{} {what} ({named}{more})", self.pods.len())
    }
}
