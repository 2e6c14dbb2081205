//! Why a pod or a claim waits: the controller's event, and `vgpu explain` without its input and output.
//!
//! ```text
//!  the controller: State, pods that wait ─► Answers ─┐ State::answer, node by node, for a Question:
//!  files ─► Objects ─► State, a pod or a claim ──────┤ allocated claims limit the nodes, the others are asked about
//!                                                    ▼
//!                                      Answer, with the reasons in a Summary
//!  Mistake, Obstacle ────────────────────────┐       ▼
//!                                            ├── Sentences ─► in one text: the event (`pending`)
//!                                            │            ─► a line each, then every reason: Explanation (`words`)
//!  claims that are allocated ─► HeldDevice ──┘                 └─► pods that wait for the same: Waiting (`groups`)
//! ```
//!
//! The state is the same as in controller mode, so devices and claims are seen as their allocator sees them. If no
//! device has a taint of `docs/controller.md`, that is kube-scheduler. Only devices are considered; kube-scheduler's
//! own event says what else a pod needs of a node.

mod answers;
mod explainer;
mod fit;
mod groups;
mod held;
mod pending;
mod question;
mod requested;
mod sentences;
mod summary;
mod text;
mod waiting;
mod words;

use serde::Serialize;
use vgpu_allocator::offline::{Objects, OfflineError};
use vgpu_allocator::{Features, Largest, Reason};
use vgpu_api::decode::decode;

use crate::change::Change;
use crate::model::{Claim, Slice, Version};
use crate::obstacle::Obstacle;
use crate::planner::Settings;
use crate::state::{Mode, State};
use crate::time::Time;

pub use answers::{Answer, Answers, MOST_TURNS};
pub use explainer::{Explainer, explain};
pub use fit::{Fit, Workload, fit};
pub use groups::{Waiting, groups};
pub use held::{HeldCondition, HeldDevice, MemoryWall};
pub use pending::{Message, MessageKind, TEXT_MAX, message, messages};
pub use question::{Question, Shape, SpecRef};
pub use requested::{Blocked, Requested};
pub use summary::{Beyond, Group, Section, Summary};
pub use text::cut;
pub use waiting::waiting;
pub use words::Lines;

/// Why there is no explanation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExplainError {
    #[error("{0:?} is not a kind that can be explained; write pod/NAME or claim/NAME")]
    SubjectKind(String),
    #[error("there is a pod and a claim {0} in the input; write pod/NAME or claim/NAME")]
    Ambiguous(String),
    #[error("{what} {name} not found in namespace {namespace}; give the object too, and its namespace by -n")]
    NoSubject {
        what: &'static str,
        name: String,
        namespace: String,
    },
    #[error(transparent)]
    Offline(#[from] OfflineError),
}

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

/// The state of a pod or a claim.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Standing {
    /// It asks for nothing.
    #[default]
    NoClaims,
    /// All its claims are allocated.
    HasDevices,
    /// Its claims would fit now.
    Fits,
    /// Something is used up, missing or too small.
    Waits,
    /// Something other than lack of free devices blocks it.
    Blocked,
    /// It can never be served in its present form.
    Never,
}

/// Why the subject gets no devices even if enough are free.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Found {
    /// One word.
    pub reason: String,
    pub message: String,
}

/// The answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Explanation {
    /// `pod ns/name` or `claim ns/name`.
    pub subject: String,
    pub kind: &'static str,
    pub namespace: String,
    pub name: String,
    pub state: Standing,
    /// Why it waits, in one word; empty if it does not.
    pub reason: String,
    /// The claims that wait, and extended resources.
    pub waiting: Vec<String>,
    /// The requests of the claims that wait.
    pub requested: Vec<Requested>,
    /// Why nobody may allocate claims that wait, whatever is free.
    pub refused: Vec<String>,
    pub obstacles: Vec<Found>,
    /// What blocks the claims, added up for all nodes, and what would fit: the sentences of the event.
    pub summary: Vec<String>,
    /// What blocks the claims, as numbers.
    pub blocked: Vec<Blocked>,
    /// Remarks that do not explain the waiting.
    pub notes: Vec<String>,
    /// Claims that a pod names and that do not exist.
    pub missing: Vec<String>,
    /// The devices that the subject has already, as sentences.
    pub held: Vec<String>,
    /// Returns the devices of our driver, with their limits.
    pub devices: Vec<HeldDevice>,
    /// The nodes that were checked.
    pub nodes: Vec<String>,
    /// The checked nodes on which the claims fit.
    pub fits: Vec<String>,
    pub reasons: Vec<Reason<String>>,
    pub largest: Largest<String>,
    /// The subject's claims by `namespace/name`, and the names that the pod uses for them.
    #[serde(skip)]
    entries: Vec<(String, String)>,
    /// False if all of it is known to be for other drivers.
    #[serde(skip)]
    pub is_ours: bool,
    /// True if it only waits for administrative access, and so for no share.
    #[serde(skip)]
    pub is_monitor: bool,
    #[serde(skip)]
    pub has_ended: bool,
    /// True for a pod that is on a node with all its claims allocated: it waits for no scheduler, whatever else is wrong.
    #[serde(skip)]
    pub is_placed: bool,
    /// True if nothing is known about GPUs and nodes, so a GPU that the subject has may be lost.
    #[serde(skip)]
    is_outline: bool,
}

impl Subject {
    /// `pod/NAME`, `claim/NAME`, or `NAME` for either kind.
    ///
    /// # Errors
    /// The kind is something else.
    pub fn parse(text: &str, namespace: &str) -> Result<Self, ExplainError> {
        let (kind, name) = match text.split_once('/') {
            None => (None, text),
            Some(("pod" | "pods" | "po", name)) => (Some(SubjectKind::Pod), name),
            Some(("claim" | "claims" | "resourceclaim" | "resourceclaims", name)) => (Some(SubjectKind::Claim), name),
            Some((kind, _)) => return Err(ExplainError::SubjectKind(kind.to_owned())),
        };
        Ok(Self {
            kind,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }

    /// `namespace/name`, if the subject may be a pod.
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

/// Makes the state of a cluster that consists of these objects.
fn state_of(objects: &Objects, features: Features, now: Time) -> State {
    let settle = Settings::default().settle;
    let mut state = State::new(Mode::Controller { settle }, features);
    let claims = objects.claims().map(|(claim, document)| {
        decode(document).unwrap_or_else(|_| Claim {
            facts: claim.clone(),
            ..Claim::default()
        })
    });
    // This must be the first change: a device's taint takes effect only with a younger list of all claims.
    let mut changes = vec![Change::Claims {
        claims: claims.collect(),
        same: Vec::new(),
        version: Version::default(),
        read: Some(now),
    }];
    changes.extend(objects.classes().iter().cloned().map(Change::Class));
    let nodes = objects.nodes().filter_map(|(_, document)| decode(document).ok());
    changes.extend(nodes.map(Change::Node));
    changes.extend(objects.slices().iter().map(|facts| Change::Slice {
        slice: Slice {
            version: Version::default(),
            facts: facts.clone(),
        },
        read: None,
    }));
    changes.push(Change::Rules(objects.rules().to_vec()));
    changes.extend(objects.pods().filter_map(|pod| decode(pod).ok()).map(Change::Pod));
    for change in changes {
        state.apply(change, now);
    }
    state
}

impl Explanation {
    fn add_obstacles(&mut self, obstacles: impl IntoIterator<Item = Obstacle>) {
        for obstacle in obstacles {
            self.add(obstacle.word(), obstacle.to_string());
        }
    }

    /// Adds a reason why the subject gets no devices even if enough are free.
    pub fn add(&mut self, reason: &str, message: String) {
        // Two claims may have the same obstacle on one node.
        if self.obstacles.iter().all(|known| known.message != message) {
            self.obstacles.push(Found {
                reason: reason.to_owned(),
                message,
            });
        }
        self.state = self.state.max(Standing::Blocked);
        self.reason = self.obstacles[0].reason.clone();
    }
}

#[cfg(test)]
mod tests;
