//! What a waiting pod asks for: its unallocated claims, where its allocated claims are, and extended resources of our
//! classes, for which kube-scheduler creates a claim only once they fit.
//!
//! ```text
//!  pod ─► Question: the names of its claims
//!            └────► Shape: everything that decides the answer ─► the claims that the allocator is asked about
//! ```
//!
//! Pods with equal claims have one shape and share its answer. So an answer contains no claim names, only each claim's
//! index in the shape; [`Question::describe`] knows the name.

use std::borrow::Cow;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use vgpu_allocator::model::{ClaimSpec, DeviceClaim, Exactly, Mode, Node, Request, ResourceClaim};
use vgpu_allocator::node_selector;

use crate::device_ownership::Unallocatable;
use crate::mistakes::sub_requests;
use crate::model::{Extended, Pod};
use crate::state::State;

/// The spec of a claim. The state stores equal specs once, so specs are compared by address.
#[derive(Debug, Clone)]
pub struct SpecRef(Arc<ClaimSpec>);

impl SpecRef {
    pub fn spec(&self) -> &ClaimSpec {
        &self.0
    }
}

impl PartialEq for SpecRef {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for SpecRef {}

impl Hash for SpecRef {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        Arc::as_ptr(&self.0).hash(hasher);
    }
}

/// Everything that decides where a pod's devices can be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Shape {
    /// The specs of its unallocated claims.
    pub specs: Vec<SpecRef>,
    /// Extended resources: class and count.
    extended: Vec<(String, i64)>,
    /// Its allocated claims: the pod must run where their devices are.
    pub held: Vec<String>,
}

/// What one pod asks for, with the names of its claims.
#[derive(Debug, Clone, Default)]
pub struct Question {
    pub shape: Shape,
    /// The waiting claims by `namespace/name`, in the shape's order.
    pub claims: Vec<String>,
    /// Container and resource, in the shape's order.
    extended: Vec<Extended>,
}

impl Question {
    /// Returns what a pod asks for, or `None` if nothing of it is of our classes.
    #[must_use]
    pub fn of(pod: &Pod, state: &State) -> Option<Self> {
        let question = Self::of_pod(pod, state);
        let ours = |spec: &SpecRef| sub_requests(spec.spec()).any(|ask| state.is_class_ours(&ask.exactly.class));
        (!question.extended.is_empty() || question.shape.specs.iter().any(ours)).then_some(question)
    }

    /// Returns what a pod asks for. Once kube-scheduler has made a claim for its extended resources, they are that
    /// claim.
    pub(super) fn of_pod(pod: &Pod, state: &State) -> Self {
        let made = pod.unusual().extended_claim.as_ref();
        let mut question = Self::of_claims(pod.claim_keys().chain(made.map(|name| pod.claim_key(name))), state);
        for extended in pod.extended.iter().filter(|_| made.is_none()) {
            if let Some(class) = class_of_extended(&extended.resource, state) {
                question.shape.extended.push((class.to_owned(), extended.count));
                question.extended.push(extended.clone());
            }
        }
        question
    }

    /// Returns true if it asks for anything that is not allocated.
    pub(super) fn asks(&self) -> bool {
        !self.claims.is_empty() || !self.extended.is_empty()
    }

    /// Everything that is not allocated: claims, and extended resources with their container.
    pub(super) fn waiting(&self) -> impl Iterator<Item = String> {
        let extended = self.extended.iter();
        let extended = extended.map(|of| format!("container {}, resource {}", of.container, of.resource));
        self.claims.iter().cloned().chain(extended)
    }

    /// Claims that have only the names of the waiting claims.
    pub(super) fn named(&self) -> Vec<ResourceClaim> {
        let claim = |key: &String| {
            let mut claim = ResourceClaim::default();
            let (namespace, name) = key.split_once('/').unwrap_or(("", key));
            claim.metadata.namespace = namespace.to_owned();
            claim.metadata.name = name.to_owned();
            claim
        };
        self.claims.iter().map(claim).collect()
    }

    /// A question about the unallocated ones of these claims, on the nodes where the allocated ones are.
    pub(super) fn of_claims(claims: impl Iterator<Item = String>, state: &State) -> Self {
        let mut question = Self::default();
        for key in claims {
            let Some(claim) = state.claim(&key) else {
                continue;
            };
            if claim.allocation().is_some() {
                question.shape.held.push(key);
            } else {
                question.shape.specs.push(SpecRef(claim.facts.spec.clone()));
                question.claims.push(key);
            }
        }
        question
    }

    /// The name of a claim by its index; empty for the claim that represents extended resources.
    pub fn name(&self, claim: usize) -> String {
        self.claims.get(claim).cloned().unwrap_or_default()
    }

    /// Returns `claim ns/name, request gpu` for the claim with this index.
    pub fn describe(&self, claim: usize, request: &str) -> String {
        match self.claims.get(claim) {
            Some(key) if request.is_empty() => format!("claim {key}"),
            Some(key) => format!("claim {key}, request {request}"),
            None => match request.parse().ok().and_then(|number: usize| self.extended.get(number)) {
                Some(extended) => format!("container {}, resource {}", extended.container, extended.resource),
                None => "the pod's extended resources".to_owned(),
            },
        }
    }
}

impl Shape {
    /// Returns the claims as the allocator gets them, without their names: see [`State::as_its_allocator`].
    ///
    /// # Errors
    /// Nobody may allocate one of the claims: its index, and why.
    pub fn to_claims(&self, state: &State) -> Result<Vec<ResourceClaim>, (usize, Unallocatable)> {
        let claim = |spec| ResourceClaim {
            spec,
            ..ResourceClaim::default()
        };
        let asked = self.specs.iter().enumerate();
        let asked = asked.map(|(place, asked)| {
            state
                .as_its_allocator(&claim(asked.0.clone()))
                .map_err(|why| (place, why))
        });
        // Only kube-scheduler allocates extended resources.
        let extended =
            (!self.extended.is_empty()).then(|| Ok(state.as_scheduler(&claim(Arc::new(self.extended_spec())))));
        asked.chain(extended).collect()
    }

    /// Returns true if a pod can use its allocated claims on this node.
    #[must_use]
    pub fn reaches(&self, node: &Node, state: &State) -> bool {
        let allocations = self.held.iter().filter_map(|key| state.claim(key)?.allocation());
        // An allocation without a selector can be used everywhere.
        let mut selectors = allocations.filter_map(|allocation| allocation.node_selector.as_ref());
        selectors.all(|selector| node_selector::matches(selector, node).unwrap_or(false))
    }

    /// Returns a request, or an alternative of one, of the claim with this index.
    pub fn ask(&self, claim: usize, request: &str) -> Option<Cow<'_, Exactly>> {
        match self.specs.get(claim) {
            Some(asked) => {
                let ask = sub_requests(asked.spec()).find(|ask| ask.name() == request)?;
                Some(Cow::Borrowed(ask.exactly))
            }
            None => self.extended_ask(request.parse().ok()?).map(Cow::Owned),
        }
    }

    /// Returns the request that represents the extended resource with this index.
    pub(super) fn extended_ask(&self, at: usize) -> Option<Exactly> {
        let (class, count) = self.extended.get(at)?;
        Some(whole(class, *count))
    }

    /// Returns true if this is the first request of the pod.
    pub fn is_first(&self, claim: usize, request: &str) -> bool {
        let first = match self.specs.first() {
            Some(asked) => asked.spec().devices.requests.first().map(|request| &*request.name),
            None => Some("0"),
        };
        let base = request.split_once('/').map_or(request, |(base, _)| base);
        claim == 0 && (request.is_empty() || first == Some(base))
    }

    fn extended_spec(&self) -> ClaimSpec {
        let requests = self.extended.iter().enumerate();
        let requests = requests.map(|(number, (class, count))| Request {
            name: number.to_string(),
            exactly: Some(whole(class, *count)),
            ..Request::default()
        });
        ClaimSpec {
            devices: DeviceClaim {
                requests: requests.collect(),
                ..DeviceClaim::default()
            },
        }
    }
}

fn whole(class: &str, count: i64) -> Exactly {
    Exactly {
        class: class.to_owned(),
        mode: Mode::Exact(count),
        ..Exactly::default()
    }
}

/// The class of ours that provides an extended resource.
fn class_of_extended<'a>(resource: &'a str, state: &'a State) -> Option<&'a str> {
    if let Some(class) = resource.strip_prefix("deviceclass.resource.kubernetes.io/") {
        return state.is_class_ours(class).then_some(class);
    }
    let named = state
        .classes()
        .filter(|class| class.spec.extended_resource_name.as_deref() == Some(resource) && class.is_ours());
    named.map(|class| class.metadata.name.as_str()).min()
}
