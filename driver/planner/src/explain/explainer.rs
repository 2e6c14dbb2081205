//! Explains pods and claims of one set of objects. Pods with equal claims are only analysed once.

use std::collections::HashMap;
use std::rc::Rc;

use vgpu_allocator::model::{Node, ResourceClaim};
use vgpu_allocator::offline::{Objects, OfflineError, Options};
use vgpu_allocator::{Answer as OnNode, Budget, Largest, Reason};

use super::answers::Answer;
use super::question::{Question, Shape};
use super::requested::{blocked, is_monitor, requested};
use super::sentences::Sentences;
use super::summary::Summary;
use super::{ExplainError, Explanation, Standing, Subject, SubjectKind, held, state_of};
use crate::mistakes::Mistake;
use crate::model::{Pod, PodClaim};
use crate::obstacle::{Namesake, Obstacle};
use crate::state::State;
use crate::time::Time;

/// Explains why the subject waits, if it does.
///
/// # Errors
/// It is not among the objects, or a mistake in them allows no answer.
pub fn explain(
    objects: &Objects,
    subject: &Subject,
    options: &Options,
    now: Time,
) -> Result<Explanation, ExplainError> {
    Explainer::new(objects, options, now).explain(subject)
}

/// Answers about one set of objects.
pub struct Explainer<'a> {
    objects: &'a Objects,
    options: &'a Options,
    state: State,
    /// By what was asked for, and the node that a pod is bound to.
    looked: HashMap<(Shape, Option<String>), Rc<Looked>>,
}

/// The result of checking every node.
pub(super) struct Looked {
    pub(super) answer: Answer,
    nodes: Vec<String>,
    fits: Vec<String>,
    reasons: Vec<Reason>,
    largest: Largest,
}

impl<'a> Explainer<'a> {
    #[must_use]
    pub fn new(objects: &'a Objects, options: &'a Options, now: Time) -> Self {
        Self {
            objects,
            options,
            state: state_of(objects, options.features, now),
            looked: HashMap::new(),
        }
    }

    /// Explains why the subject waits, if it does.
    ///
    /// # Errors
    /// It is not among the objects, or a mistake in them allows no answer.
    pub fn explain(&mut self, subject: &Subject) -> Result<Explanation, ExplainError> {
        let asked = Asked::find(self.objects, &self.state, subject)?;
        let mut explanation = asked.explanation(self.objects, &self.state);
        if asked.question.asks() {
            let looked = self.look(&asked)?;
            explanation.set_looked(&looked, &asked.question);
            let said = Sentences::of(&looked.answer, &asked.question, &self.state, &subject.namespace);
            let standing = match looked.answer {
                Answer::Fits { .. } => Standing::Fits,
                _ if said.is_never => Standing::Never,
                _ => Standing::Waits,
            };
            explanation.state = explanation.state.max(standing);
            explanation.reason = said.reason.to_owned();
            explanation.summary = said.reasons.into_iter().chain(said.ends).collect();
        } else {
            // Files without a node are a mistake, even if the subject needs none.
            self.objects.nodes_of(self.options.node.as_deref())?;
        }
        explanation.add_obstacles(Obstacle::of_fits(&explanation.fits, &self.state));
        explanation.settle();
        Ok(explanation)
    }

    /// Explains a pod without a line for each device, so that pods with the same answer can be grouped.
    ///
    /// # Errors
    /// The errors of [`Self::explain`].
    pub fn explain_briefly(&mut self, subject: &Subject) -> Result<Explanation, ExplainError> {
        let mut explanation = self.explain(subject)?;
        explanation.reasons = Vec::new();
        Ok(explanation)
    }

    /// Reports which claims the subject has and which it waits for, from the subject's own objects alone.
    ///
    /// # Errors
    /// It is not among the objects.
    pub fn outline(&self, subject: &Subject) -> Result<Explanation, ExplainError> {
        let asked = Asked::find(self.objects, &self.state, subject)?;
        let mut explanation = asked.outline(self.objects, &self.state);
        if asked.question.asks() {
            explanation.state = explanation.state.max(Standing::Waits);
        }
        explanation.is_outline = true;
        explanation.settle();
        Ok(explanation)
    }

    fn look(&mut self, asked: &Asked) -> Result<Rc<Looked>, ExplainError> {
        // A pod may be bound to a node that is gone.
        let bound = asked.pod.as_ref().and_then(|pod| pod.node.as_deref());
        let bound = bound.filter(|node| self.state.cluster.node(node).is_some());
        let shape = &asked.question.shape;
        let key = (shape.clone(), bound.map(str::to_owned));
        if let Some(known) = self.looked.get(&key) {
            return Ok(known.clone());
        }
        let reachable = |node: &&Node| shape.reaches(node, &self.state);
        let nodes = self.objects.nodes_of(self.options.node.as_deref().or(bound))?;
        let nodes: Vec<&Node> = nodes.into_iter().filter(reachable).collect();
        let all = match &self.options.node {
            Some(_) => self.objects.nodes_of(None)?.into_iter().filter(reachable).count(),
            None => nodes.len(),
        };
        let looked = Rc::new(Looked::look(&asked.question, &nodes, all, &mut self.state)?);
        self.looked.insert(key, looked.clone());
        Ok(looked)
    }
}

impl Looked {
    /// Checks the waiting claims on each of `nodes`. `all` is the number of nodes that could be checked.
    pub(super) fn look(
        question: &Question,
        nodes: &[&Node],
        all: usize,
        state: &mut State,
    ) -> Result<Self, ExplainError> {
        let mut looked = Self {
            answer: Answer::Nowhere {
                held: !question.shape.held.is_empty(),
            },
            nodes: nodes.iter().map(|node| node.metadata.name.clone()).collect(),
            fits: Vec::new(),
            reasons: Vec::new(),
            largest: Largest::default(),
        };
        let mut claims = match question.shape.to_claims(state) {
            Ok(claims) => claims,
            Err((claim, why)) => {
                looked.answer = Answer::Nobody(claim, why);
                looked.nodes = Vec::new();
                return Ok(looked);
            }
        };
        for (claim, named) in claims.iter_mut().zip(question.named()) {
            claim.metadata = named.metadata;
        }
        let claims: Vec<&ResourceClaim> = claims.iter().collect();
        let steps = Budget::of_each(nodes.len());
        let mut summary = Summary::default();
        let mut found = None;
        for name in &looked.nodes {
            match state.answer(&claims, name, steps) {
                Ok(Some(OnNode::Fits(allocations))) => {
                    found.get_or_insert_with(|| Answer::fits(name, &allocations));
                    looked.fits.push(name.clone());
                }
                Ok(Some(OnNode::Not(why))) => {
                    looked.reasons.extend(why.reasons.iter().cloned());
                    summary.add(*why);
                }
                Ok(None) => {}
                Err(error) => return Err(OfflineError::Claims(error.of_claims(&claims)).into()),
            }
        }
        looked.largest = summary.largest.clone();
        if let Some(fits) = found {
            looked.answer = fits;
        } else if !nodes.is_empty() {
            looked.answer = Answer::Not {
                summary: Box::new(summary),
                looked_at: nodes.len(),
                nodes: all,
            };
        }
        Ok(looked)
    }
}

/// The subject and what it asks for.
struct Asked {
    kind: SubjectKind,
    /// `namespace/name`
    key: String,
    /// `None` if the subject is a claim.
    pod: Option<Pod>,
    question: Question,
}

impl Asked {
    fn find(objects: &Objects, state: &State, subject: &Subject) -> Result<Self, ExplainError> {
        let key = subject.key();
        let pod: Option<Pod> = match subject.kind {
            Some(SubjectKind::Claim) => None,
            Some(SubjectKind::Pod) | None => objects.read_pod(&key)?,
        };
        match (subject.kind, pod, state.claim(&key)) {
            (None, Some(_), Some(_)) => Err(ExplainError::Ambiguous(key)),
            (Some(SubjectKind::Pod) | None, Some(pod), _) => Ok(Self {
                kind: SubjectKind::Pod,
                question: Question::of_pod(&pod, state),
                pod: Some(pod),
                key,
            }),
            (Some(SubjectKind::Claim) | None, _, Some(_)) => Ok(Self {
                kind: SubjectKind::Claim,
                pod: None,
                question: Question::of_claims([key.clone()].into_iter(), state),
                key,
            }),
            (kind, ..) => Err(ExplainError::NoSubject {
                what: kind.map_or("pod or claim", SubjectKind::name),
                name: subject.name.clone(),
                namespace: subject.namespace.clone(),
            }),
        }
    }

    /// The part of the answer that depends only on the subject's own objects.
    fn outline(&self, objects: &Objects, state: &State) -> Explanation {
        let question = &self.question;
        let held = || question.shape.held.iter().filter_map(|key| state.claim(key));
        let (namespace, name) = self.key.split_once('/').unwrap_or(("", &self.key));
        let mut answer = Explanation {
            subject: format!("{} {}", self.kind.name(), self.key),
            kind: self.kind.name(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            waiting: question.waiting().collect(),
            requested: requested(question, state),
            held: held().map(held::sentence).collect(),
            is_ours: self.is_ours(state),
            is_monitor: is_monitor(question, state),
            ..Explanation::default()
        };
        let node = self.pod.as_ref().and_then(|pod| pod.node.as_deref());
        for claim in held() {
            let document = objects.claim(&claim.key());
            answer.devices.extend(held::devices(claim, document, node, state));
        }
        if let Some(pod) = &self.pod {
            answer.entries = entries(pod, objects);
            answer.missing = missing(pod, state);
            answer.has_ended = pod.is_finished || pod.is_deleted;
            answer.is_placed = node.is_some() && answer.waiting.is_empty() && answer.missing.is_empty();
            let namesake = |name: &str| Namesake::of(name, pod, objects);
            answer.add_obstacles(Obstacle::of_missing(pod, state, namesake));
            answer.add_obstacles(not_made(pod, objects));
            for key in deleted(pod, state) {
                let what = "which its template made, was deleted: delete the pod, and a new one gets a new claim";
                answer.add("ClaimDeleted", format!("claim {key}, {what}"));
            }
            answer.add_obstacles(Obstacle::of_gates(pod));
            // Without a claim of ours no container could have a GPU.
            let mut claims = pod.claim_keys().filter_map(|key| state.claim(&key));
            let has_ours = claims.any(|claim| state.asks_for_ours(claim));
            let without = pod.unusual().claimless.iter().filter(|_| has_ours);
            let without = without.map(|name| format!("container {name} names none of its claims, so it has no GPU"));
            answer.notes = without.chain(Obstacle::sharers(pod, state)).collect();
        }
        answer
    }

    /// The answer before any node is checked.
    fn explanation(&self, objects: &Objects, state: &State) -> Explanation {
        let mut answer = self.outline(objects, state);
        for (claim, asked) in self.question.claims.iter().zip(&self.question.shape.specs) {
            for mistake in Mistake::of(claim, asked.spec(), state) {
                answer.add("ClaimMistake", mistake.text);
                if mistake.refused {
                    answer.state = Standing::Never;
                }
            }
        }
        if let Some(pod) = &self.pod {
            answer.add_obstacles(Obstacle::of_pod(pod, state));
        } else {
            let claims = self.question.claims.iter().chain(&self.question.shape.held);
            for claim in claims.filter_map(|key| state.claim(key)) {
                answer.add_obstacles(Obstacle::of_claim(claim, state));
                answer.add_obstacles(claim.is_deleted.then(|| Obstacle::ClaimDeleted(claim.key())));
            }
        }
        answer
    }

    /// Returns false if everything that it asks for is known to be of other drivers. A claim that does not exist, and a
    /// class that is not known, may be ours.
    fn is_ours(&self, state: &State) -> bool {
        let knows_classes = state.classes().next().is_some();
        let missing = self.pod.as_ref().is_some_and(|pod| !missing(pod, state).is_empty());
        let claims = self.question.claims.iter().chain(&self.question.shape.held);
        let has_claims = !self.question.claims.is_empty() || !self.question.shape.held.is_empty();
        missing
            || self.question.waiting().count() > self.question.claims.len()
            || (has_claims && !knows_classes)
            || claims
                .filter_map(|key| state.claim(key))
                .any(|claim| state.asks_for_ours(claim) || state.asks_for_no_class(claim))
    }
}

impl Explanation {
    fn set_looked(&mut self, looked: &Looked, question: &Question) {
        let named = question.named();
        let named: Vec<&ResourceClaim> = named.iter().collect();
        self.nodes.clone_from(&looked.nodes);
        self.fits.clone_from(&looked.fits);
        self.reasons = looked
            .reasons
            .iter()
            .cloned()
            .map(|reason| reason.named(&named))
            .collect();
        self.largest = looked.largest.clone().named(&named);
        match &looked.answer {
            Answer::Nobody(claim, why) => {
                self.refused
                    .push(why.clone().verdict(question.name(*claim)).to_string());
                self.state = Standing::Never;
            }
            Answer::Not { summary, .. } => self.blocked = blocked(summary, question),
            _ => {}
        }
    }

    /// If all claims of the subject are allocated or missing, sets its state and reason.
    fn settle(&mut self) {
        if !self.held.is_empty() {
            self.state = self.state.max(Standing::HasDevices);
        }
        if !self.missing.is_empty() {
            self.state = self.state.max(Standing::Waits);
        }
        if let Some(first) = self.obstacles.first() {
            self.reason.clone_from(&first.reason);
        }
    }
}

/// The claims of a pod that do not exist.
fn missing(pod: &Pod, state: &State) -> Vec<String> {
    let claims = pod.distinct_claims().filter_map(|claim| match claim {
        PodClaim::Named(name) | PodClaim::Made(name) => {
            Some(pod.claim_key(name)).filter(|key| state.claim(key).is_none())
        }
        PodClaim::NotYet(entry) => Some(format!("{entry}, which its template has not made yet")),
    });
    claims.collect()
}

/// Returns the claims that templates made for the pod and somebody deleted. No controller makes them again.
fn deleted(pod: &Pod, state: &State) -> Vec<String> {
    let made = pod.claims.iter().filter_map(|claim| match claim {
        PodClaim::Made(name) => Some(pod.claim_key(name)),
        _ => None,
    });
    made.filter(|key| !pod.is_finished && !pod.is_deleted && state.claim(key).is_none())
        .collect()
}

/// The claims of a pod that its templates have not made yet.
fn not_made(pod: &Pod, objects: &Objects) -> Vec<Obstacle> {
    let document = objects.pod(&pod.key());
    let entries = document.and_then(|pod| pod["spec"]["resourceClaims"].as_array());
    let template = |entry: &str| {
        let found = entries.into_iter().flatten().find(|known| known["name"] == entry);
        let template = found.and_then(|known| known["resourceClaimTemplateName"].as_str());
        template.unwrap_or_default().to_owned()
    };
    let claims = pod.claims.iter().filter_map(|claim| match claim {
        PodClaim::NotYet(entry) => Some(Obstacle::NotMade {
            entry: entry.clone(),
            template: template(entry),
            namespace: pod.namespace.clone(),
        }),
        _ => None,
    });
    claims.collect()
}

/// The pod's claims from templates, by `namespace/name`, and the names that the pod uses for them.
fn entries(pod: &Pod, objects: &Objects) -> Vec<(String, String)> {
    let document = objects.pod(&pod.key());
    let made = document.and_then(|pod| pod["status"]["resourceClaimStatuses"].as_array());
    let entry = |made: &serde_json::Value| {
        let name = made["resourceClaimName"].as_str()?;
        Some((pod.claim_key(name), made["name"].as_str()?.to_owned()))
    };
    made.into_iter().flatten().filter_map(entry).collect()
}

impl Namesake {
    /// Finds another object with the name of a claim that does not exist.
    fn of(name: &str, pod: &Pod, objects: &Objects) -> Option<Self> {
        if objects.has_template(&pod.claim_key(name)) {
            return Some(Self::Template);
        }
        let metadata = objects.claims().map(|(claim, _)| &claim.metadata);
        let mut namesakes = metadata.filter(|found| found.name == name);
        namesakes.next().map(|found| Self::Claim(found.namespace.clone()))
    }
}
