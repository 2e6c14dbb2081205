//! Why a pod or a claim waits: `vgpu explain` without its input and output.
//!
//! ```text
//!  subject ─► its claims: allocated ones limit the nodes, the others are asked about, together
//!                 │
//!                 ▼ node by node
//!  it fits here, or the reasons, and the largest fractions that would fit
//! ```
//!
//! It looks at devices only; kube-scheduler's own event says what else a node must have for a pod.

use std::fmt;

use serde::Serialize;

use super::{Cluster, Objects, OfflineError, Options};
use crate::allocate::Attempt;
use crate::budget::Budget;
use crate::explain::{Answer, Largest};
use crate::model::{Pod, ResourceClaim};
use crate::node_selector;
use crate::pools::NodeView;
use crate::reason::{Reason, ReasonKind};
use crate::selectors::SelectorCache;

/// The pod or claim to explain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// `None` if the user named no kind.
    kind: Option<SubjectKind>,
    namespace: String,
    name: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SubjectKind {
    Pod,
    Claim,
}

impl SubjectKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::Claim => "claim",
        }
    }
}

/// The answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// `pod ns/name` or `claim ns/name`.
    pub subject: String,
    /// The claims that wait.
    pub waiting: Vec<String>,
    /// Why nobody may allocate claims that wait, whatever is free. The caller adds it, because the allocator does not
    /// know.
    pub refused: Vec<String>,
    /// Why the subject gets no devices even if enough are free. The caller adds them.
    pub obstacles: Vec<String>,
    /// Remarks that are no reason to wait. The caller adds them.
    pub notes: Vec<String>,
    /// Claims that a pod names and that do not exist.
    pub missing: Vec<String>,
    /// The devices that the subject has already, as sentences.
    pub held: Vec<String>,
    /// The nodes that were looked at.
    pub nodes: Vec<String>,
    /// Those of them on which the claims fit.
    pub fits: Vec<String>,
    pub reasons: Vec<Reason<String>>,
    pub largest: Largest<String>,
}

impl Subject {
    /// `pod/NAME`, `claim/NAME`, or `NAME` of either.
    ///
    /// # Errors
    /// Another kind.
    pub fn parse(text: &str, namespace: &str) -> Result<Self, OfflineError> {
        let (kind, name) = match text.split_once('/') {
            None => (None, text),
            Some(("pod" | "pods" | "po", name)) => (Some(SubjectKind::Pod), name),
            Some(("claim" | "claims" | "resourceclaim" | "resourceclaims", name)) => (Some(SubjectKind::Claim), name),
            Some((kind, _)) => return Err(OfflineError::SubjectKind(kind.to_owned())),
        };
        Ok(Self {
            kind,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }

    /// `namespace/name` of a pod, if it may be one.
    #[must_use]
    pub fn pod(&self) -> Option<String> {
        (self.kind != Some(SubjectKind::Claim)).then(|| self.key())
    }

    fn key(&self) -> String {
        match self.namespace.as_str() {
            "" => self.name.clone(),
            namespace => format!("{namespace}/{}", self.name),
        }
    }
}

/// Explains why the subject waits, if it does.
///
/// # Errors
/// It is not among the objects, or a mistake in them allows no answer.
pub fn explain(
    objects: &Objects,
    subject: &Subject,
    options: &Options,
    cache: &mut SelectorCache<'_>,
) -> Result<Explanation, OfflineError> {
    let mut asked = Asked::find(objects, subject)?;
    let mut options = options.clone();
    if options.node.is_none() {
        // A pod may be bound to a node that is gone.
        let is_there = |name: &String| objects.nodes.iter().any(|node| node.metadata.name == *name);
        options.node = asked.node.take().filter(is_there);
    }
    let cluster = Cluster::of(objects, &options)?;
    let mut answer = Explanation {
        subject: asked.subject,
        waiting: asked.waiting.iter().map(|claim| claim.key()).collect(),
        missing: asked.missing,
        held: asked.held.iter().map(|claim| what_is_held(claim)).collect(),
        ..Explanation::default()
    };
    if asked.waiting.is_empty() {
        return Ok(answer);
    }
    let attempt = Attempt {
        claims: &asked.waiting,
        classes: &cluster.classes,
        allocated: &cluster.allocated,
        features: options.features,
        policy: options.policy,
    };
    let steps = Budget::of_each(cluster.nodes.len());
    let mut largest = Largest::default();
    for node in &cluster.nodes {
        if !asked.held.iter().all(|claim| is_for(claim, node)) {
            continue;
        }
        answer.nodes.push(node.metadata.name.clone());
        let view =
            NodeView::new((*node).clone(), &cluster.inventory, options.features).map_err(OfflineError::of_view)?;
        let said = attempt.answer(&view, steps, cache);
        match said.map_err(OfflineError::of_claims(&asked.waiting))? {
            Answer::Fits(_) => answer.fits.push(node.metadata.name.clone()),
            Answer::Not(why) => {
                let named = why.reasons.into_iter().map(|reason| reason.named(&asked.waiting));
                answer.reasons.extend(named);
                largest.merge(why.largest);
            }
        }
    }
    answer.largest = largest.named(&asked.waiting);
    Ok(answer)
}

/// The subject's claims.
struct Asked<'o> {
    subject: String,
    waiting: Vec<&'o ResourceClaim>,
    held: Vec<&'o ResourceClaim>,
    missing: Vec<String>,
    /// The node that the pod is on.
    node: Option<String>,
}

impl<'o> Asked<'o> {
    fn find(objects: &'o Objects, subject: &Subject) -> Result<Self, OfflineError> {
        let pod = objects.pod(&subject.key());
        let claim = objects.claim(&subject.key());
        match (subject.kind, pod, claim) {
            (None, Some(_), Some(_)) => Err(OfflineError::Ambiguous(subject.key())),
            (Some(SubjectKind::Pod) | None, Some(document), _) => {
                let pod: Pod = serde_path_to_error::deserialize(document)
                    .map_err(|error| OfflineError::Pod(subject.key(), error.to_string()))?;
                Ok(Self::of_pod(objects, &pod))
            }
            (Some(SubjectKind::Claim) | None, _, Some(claim)) => {
                let mut asked = Self::new(format!("claim {}", claim.key()));
                asked.add(claim);
                Ok(asked)
            }
            (kind, ..) => Err(OfflineError::NoSubject {
                what: kind.map_or("pod or claim", SubjectKind::name),
                name: subject.name.clone(),
                namespace: subject.namespace.clone(),
            }),
        }
    }

    fn of_pod(objects: &'o Objects, pod: &Pod) -> Self {
        let key = |name: &str| match pod.metadata.namespace.as_str() {
            "" => name.to_owned(),
            namespace => format!("{namespace}/{name}"),
        };
        let mut asked = Self::new(format!("pod {}", key(&pod.metadata.name)));
        asked.node = Some(pod.spec.node_name.clone()).filter(|node| !node.is_empty());
        let made = &pod.status.resource_claim_statuses;
        let named = pod.spec.resource_claims.iter().map(|entry| {
            let of_template = || {
                made.iter()
                    .find(|made| made.name == entry.name)?
                    .resource_claim_name
                    .as_ref()
            };
            (&*entry.name, entry.resource_claim_name.as_ref().or_else(of_template))
        });
        let extended = pod.status.extended_resource_claim_status.iter();
        let extended = extended.map(|made| ("extended resources", Some(&made.resource_claim_name)));
        for (entry, name) in named.chain(extended) {
            match name.map(|name| (name, objects.claim(&key(name)))) {
                Some((_, Some(claim))) => asked.add(claim),
                Some((name, None)) => asked.missing.push(key(name)),
                None => asked
                    .missing
                    .push(format!("{entry}, which its template has not made yet")),
            }
        }
        asked
    }

    fn new(subject: String) -> Self {
        Self {
            subject,
            waiting: Vec::new(),
            held: Vec::new(),
            missing: Vec::new(),
            node: None,
        }
    }

    fn add(&mut self, claim: &'o ResourceClaim) {
        match claim.status.allocation {
            Some(_) => self.held.push(claim),
            None => self.waiting.push(claim),
        }
    }
}

/// Returns true if a claim's allocation can be used on a node; one without a node selector can be used on every node.
fn is_for(claim: &ResourceClaim, node: &crate::model::Node) -> bool {
    let selector = claim
        .status
        .allocation
        .as_ref()
        .and_then(|allocation| allocation.node_selector.as_ref());
    selector.is_none_or(|selector| node_selector::matches(selector, node).unwrap_or(false))
}

fn what_is_held(claim: &ResourceClaim) -> String {
    let results = claim
        .status
        .allocation
        .iter()
        .flat_map(|allocation| &allocation.devices.results);
    let devices: Vec<String> = results
        .map(|result| format!("{} of pool {}", result.device, result.pool))
        .collect();
    format!("claim {} has {}", claim.key(), devices.join(", "))
}

impl Explanation {
    /// Returns true if nothing that was looked at blocks the subject.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.missing.is_empty()
            && self.refused.is_empty()
            && self.obstacles.is_empty()
            && (self.waiting.is_empty() || !self.fits.is_empty())
    }

    /// The name of the pod that it is about, if it is about a pod.
    #[must_use]
    pub fn pod(&self) -> Option<&str> {
        let pod = self.subject.strip_prefix("pod ")?;
        pod.rsplit('/').next()
    }

    fn unknown_class(&self) -> Option<&Reason<String>> {
        self.reasons
            .iter()
            .find(|reason| reason.reason == ReasonKind::UnknownClass)
    }

    /// The end of the first line if a selector of the request rules out each device of its class, whatever is free.
    fn unmatched(&self) -> String {
        let mut of_class = self
            .reasons
            .iter()
            .filter(|reason| !reason.is_of_another_class() && reason.reason != ReasonKind::NodeMismatch);
        let rules_out = |reason: &Reason<String>| reason.reason == ReasonKind::Selector;
        match of_class.clone().next() {
            Some(first) if of_class.all(rules_out) => {
                format!(": no device matches the selector of request {}", first.request)
            }
            _ => String::new(),
        }
    }

    fn headline(&self) -> String {
        let subject = &self.subject;
        if !self.missing.is_empty() {
            return format!(
                "{subject} waits for claims that are not there: {}",
                self.missing.join("; ")
            );
        }
        if self.waiting.is_empty() {
            return match self.held.is_empty() {
                true => format!("{subject} has no claims"),
                false => format!("{subject} has everything: {}", self.held.join("; ")),
            };
        }
        if !self.refused.is_empty() {
            return format!("{subject} can have nothing: {}", self.refused.join("; "));
        }
        let waiting = self.waiting.join(", ");
        // A claim as the subject waits only for itself.
        let who = match subject.starts_with("claim ") {
            true => subject.clone(),
            false => format!("{subject} waits for {waiting}, which"),
        };
        if self.unknown_class().is_some() {
            return format!("{who} fits nowhere: it names a DeviceClass that does not exist");
        }
        match (&self.nodes[..], &self.fits[..]) {
            ([], _) => format!("{who} fits nowhere: no node is where its other claims are"),
            ([node], []) => format!("{who} does not fit on node {node}{}", self.unmatched()),
            (nodes, []) => format!("{who} fits on none of {} nodes{}", nodes.len(), self.unmatched()),
            (nodes, fits) => {
                let more = match fits.len().saturating_sub(NODES_IN_WORDS) {
                    0 => String::new(),
                    more => format!(" and {more} more"),
                };
                let named = &fits[..fits.len().min(NODES_IN_WORDS)];
                format!(
                    "{who} fits on {} of {} nodes: {}{more}. As far as devices go it could run",
                    fits.len(),
                    nodes.len(),
                    named.join(", "),
                )
            }
        }
    }
}

/// The limits of the text; the JSON document has everything.
const REASONS_IN_WORDS: usize = 100;
const NODES_IN_WORDS: usize = 10;

impl fmt::Display for Explanation {
    /// In words, a line each: the answer, every reason, and what would fit.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for obstacle in &self.obstacles {
            writeln!(f, "{}: {obstacle}", self.subject)?;
        }
        // That a pod has everything, or names nothing, is not said after what it lacks.
        if self.obstacles.is_empty() || !self.waiting.is_empty() || !self.missing.is_empty() {
            writeln!(f, "{}", self.headline())?;
        }
        for note in &self.notes {
            writeln!(f, "  {note}")?;
        }
        if self.waiting.is_empty() || !self.fits.is_empty() || !self.refused.is_empty() {
            return Ok(());
        }
        for held in &self.held {
            writeln!(f, "  {held}, so that it must be where that is")?;
        }
        // That a class does not exist is the same on every node, and nothing else is known then.
        if let Some(reason) = self.unknown_class() {
            writeln!(
                f,
                "  claim {}, request {}: {}",
                reason.claim,
                reason.request,
                reason.in_words()
            )?;
            return Ok(());
        }
        for reason in self.reasons.iter().take(REASONS_IN_WORDS) {
            writeln!(f, "  {reason}")?;
        }
        let more = self.reasons.len().saturating_sub(REASONS_IN_WORDS);
        if more > 0 {
            writeln!(f, "  and {more} more reasons; the answer in JSON has all of them")?;
        }
        let Largest {
            memory,
            cores,
            is_of_several,
        } = &self.largest;
        // Where nothing is short, as with a selector that matches nothing, more memory would not help.
        let mut kinds = self.reasons.iter().map(|reason| reason.reason);
        let is_short = kinds.any(|kind| matches!(kind, ReasonKind::Capacity | ReasonKind::InUse));
        for (room, what, other) in [(memory, "memory", "cores"), (cores, "cores", "memory")] {
            match room {
                Some(room) => writeln!(
                    f,
                    "most {what} that one device has, with the {other} asked for: {} (request {} of claim {}; node {}, device {})",
                    room.amount.suggested(),
                    room.request,
                    room.claim,
                    room.node,
                    room.device
                )?,
                None if *is_of_several || !is_short => {}
                None => writeln!(f, "no eligible GPU has free {what} together with the requested {other}")?,
            }
        }
        Ok(())
    }
}
