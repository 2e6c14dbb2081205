//! What a waiting pod asks for: its claims that are not allocated, those that are, and extended resources of our
//! classes, which kube-scheduler makes a claim of only when they fit.
//!
//! ```text
//!  pod ─► Question: the names of its claims
//!            └────► Shape: all that decides the answer ─► the claims that the allocator is asked about
//! ```
//!
//! Pods that ask alike have one shape and share its answer, so an answer names no claim: it says which by its place
//! among those that were asked about, and [`Question::describe`] knows the name.

use std::borrow::Cow;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use vgpu_allocator::model::{ClaimSpec, DeviceClaim, Exactly, Mode, Request, ResourceClaim};
use vgpu_planner::model::{Extended, Pod};
use vgpu_planner::{State, Unallocatable};

use crate::class::{is_ours, is_ours_by_name};

/// What a claim asks for. The state holds equal specs once, so two are equal if they are one.
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

/// What decides where a pod's devices can be.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Shape {
    /// What its claims ask for.
    pub specs: Vec<SpecRef>,
    /// Class and count.
    extended: Vec<(String, i64)>,
    /// Its claims that are allocated already: it must be where they are.
    pub held: Vec<String>,
}

/// One pod's.
#[derive(Debug, Clone)]
pub struct Question {
    pub shape: Shape,
    /// The waiting claims by `namespace/name`, in the shape's order.
    pub claims: Vec<String>,
    /// Container and resource, in the shape's order.
    extended: Vec<Extended>,
}

impl Question {
    /// What a pod asks for, or `None` if it asks nothing of us.
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
            // A claim that does not exist yet, or not any more, is kube-scheduler's to name.
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

    /// The name of a claim by its place; of none that stands for extended resources.
    pub fn name(&self, claim: usize) -> String {
        self.claims.get(claim).cloned().unwrap_or_default()
    }

    /// `claim ns/name, request gpu`, of a claim by its place.
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

    /// Whether all of it is claims, which `vgpu explain` finds.
    pub fn has_claims_only(&self) -> bool {
        self.extended.is_empty()
    }
}

impl Shape {
    /// The claims as whoever allocates them asks for them, without their names.
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
        // Extended resources are kube-scheduler's alone to serve.
        let extended =
            (!self.extended.is_empty()).then(|| Ok(state.as_scheduler(&claim(Arc::new(self.extended_spec())))));
        asked.chain(extended).collect()
    }

    /// What a request, or an alternative of one, of a claim by its place asks for.
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

    /// Whether nothing else of the pod has a device before this request.
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

/// One request that has no alternatives, or an alternative of one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SubRequest<'a> {
    pub(crate) request: &'a str,
    pub(crate) alternative: Option<&'a str>,
    /// The path in the claim.
    pub(crate) at: (usize, Option<usize>),
    pub(crate) exactly: &'a Exactly,
}

impl SubRequest<'_> {
    /// As the allocator and results name it.
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

/// All that a claim asks for, in its order.
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

/// The class of ours that stands behind an extended resource.
fn class_of_extended<'a>(resource: &'a str, state: &'a State) -> Option<&'a str> {
    if let Some(class) = resource.strip_prefix("deviceclass.resource.kubernetes.io/") {
        return is_ours_by_name(class, state).then_some(class);
    }
    let named = state
        .classes()
        .filter(|class| class.spec.extended_resource_name.as_deref() == Some(resource) && is_ours(class));
    named.map(|class| class.metadata.name.as_str()).min()
}
