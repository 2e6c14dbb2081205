//! What a waiting pod asks for: its unallocated claims, where its allocated claims are, and extended resources of our
//! classes, for which kube-scheduler creates a claim only once they fit.
//!
//! ```text
//!  pod ─► Question: the names of its claims
//!            └────► Shape: everything that decides the answer ─► the claims that the allocator is asked about
//! ```
//!
//! Pods with equal claims have one shape and share its answer. So an answer names no claim, but its place in the shape;
//! [`Question::describe`] knows the name.

use std::borrow::Cow;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use vgpu_allocator::model::{ClaimSpec, DeviceClaim, Exactly, Mode, Request, ResourceClaim};
use vgpu_planner::model::{Extended, Pod};
use vgpu_planner::{State, Unallocatable};

use crate::class::{is_ours, is_ours_by_name};

/// The spec of a claim. The state stores equal specs once, so two are equal if they are the same object.
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
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Shape {
    /// The specs of its unallocated claims.
    pub specs: Vec<SpecRef>,
    /// Extended resources: class and count.
    extended: Vec<(String, i64)>,
    /// Its allocated claims: the pod must run where their devices are.
    pub held: Vec<String>,
}

/// What one pod asks for, with the names of its claims.
#[derive(Debug, Clone)]
pub struct Question {
    pub shape: Shape,
    /// The waiting claims by `namespace/name`, in the shape's order.
    pub claims: Vec<String>,
    /// Container and resource, in the shape's order.
    extended: Vec<Extended>,
}

impl Question {
    /// Returns what a pod asks for, or `None` if nothing of it is of our classes.
    pub fn of(pod: &Pod, state: &State) -> Option<Self> {
        let mut question = Self {
            shape: Shape {
                specs: Vec::new(),
                extended: Vec::new(),
                held: Vec::new(),
            },
            claims: Vec::new(),
            extended: Vec::new(),
        };
        for key in pod.claim_keys() {
            // kube-scheduler's own event names a claim that does not exist.
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
        for extended in &pod.extended {
            if let Some(class) = class_of_extended(&extended.resource, state) {
                question.shape.extended.push((class.to_owned(), extended.count));
                question.extended.push(extended.clone());
            }
        }
        let ours = |spec: &SpecRef| sub_requests(spec.spec()).any(|ask| is_ours_by_name(&ask.exactly.class, state));
        (!question.extended.is_empty() || question.shape.specs.iter().any(ours)).then_some(question)
    }

    /// The name of a claim by its place; empty for the claim that stands for extended resources.
    pub fn name(&self, claim: usize) -> String {
        self.claims.get(claim).cloned().unwrap_or_default()
    }

    /// Returns `claim ns/name, request gpu` for a claim by its place.
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

    /// Returns true if it has no extended resources, of which `vgpu explain` knows nothing.
    pub fn has_claims_only(&self) -> bool {
        self.extended.is_empty()
    }
}

impl Shape {
    /// Returns the claims as the allocator gets them, without their names: see [`State::as_its_allocator`].
    ///
    /// # Errors
    /// Nobody may allocate one of the claims: its place, and why.
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

    /// Returns a request, or an alternative of one, of a claim by its place.
    pub fn ask(&self, claim: usize, request: &str) -> Option<Cow<'_, Exactly>> {
        match self.specs.get(claim) {
            Some(asked) => {
                let ask = sub_requests(asked.spec()).find(|ask| ask.name() == request)?;
                Some(Cow::Borrowed(ask.exactly))
            }
            None => {
                let (class, count) = self.extended.get(request.parse::<usize>().ok()?)?;
                Some(Cow::Owned(whole(class, *count)))
            }
        }
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

/// A request without alternatives, or one alternative of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SubRequest<'a> {
    pub(crate) request: &'a str,
    pub(crate) alternative: Option<&'a str>,
    /// The path in the claim.
    pub(crate) at: (usize, Option<usize>),
    pub(crate) exactly: &'a Exactly,
}

impl SubRequest<'_> {
    /// The name that the allocator and the results use.
    pub(crate) fn name(&self) -> String {
        match self.alternative {
            Some(alternative) => format!("{}/{alternative}", self.request),
            None => self.request.to_owned(),
        }
    }

    pub(crate) fn path(&self) -> String {
        match self.at {
            (request, None) => format!("spec.devices.requests[{request}].exactly"),
            (request, Some(alternative)) => {
                format!("spec.devices.requests[{request}].firstAvailable[{alternative}]")
            }
        }
    }
}

/// All requests of a claim and their alternatives, in order.
pub(crate) fn sub_requests(spec: &ClaimSpec) -> impl Iterator<Item = SubRequest<'_>> {
    spec.devices.requests.iter().enumerate().flat_map(|(index, request)| {
        let exactly = request.exactly.iter().map(move |exactly| SubRequest {
            request: &request.name,
            alternative: None,
            at: (index, None),
            exactly,
        });
        let alternatives = request.first_available.iter().enumerate();
        let alternatives = alternatives.map(move |(place, alternative)| SubRequest {
            request: &request.name,
            alternative: Some(&alternative.name),
            at: (index, Some(place)),
            exactly: &alternative.ask,
        });
        exactly.chain(alternatives)
    })
}

/// The class of ours that provides an extended resource.
fn class_of_extended<'a>(resource: &'a str, state: &'a State) -> Option<&'a str> {
    if let Some(class) = resource.strip_prefix("deviceclass.resource.kubernetes.io/") {
        return is_ours_by_name(class, state).then_some(class);
    }
    let named = state
        .classes()
        .filter(|class| class.spec.extended_resource_name.as_deref() == Some(resource) && is_ours(class));
    named.map(|class| class.metadata.name.as_str()).min()
}
