//! How many pods of a workload fit now: `vgpu fit` without its input and output.
//!
//! ```text
//!  Objects ─► State ─► pod after pod: its claims on the first node with room ─► those devices are in use for the next
//!                                          └─ no node has room: Sentences on the next pod
//! ```
//!
//! All pods are equal, so a node that has no room for one has none for the next: a full node is not tried again. Only
//! devices are considered, as in explanations, and nodes that are not ready are left out.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use vgpu_allocator::model::{Allocation, ClaimSpec, Node, ResourceClaim};
use vgpu_allocator::offline::{Objects, OfflineError, Options};
use vgpu_allocator::{Answer as OnNode, Budget};

use super::explainer::Looked;
use super::question::Question;
use super::sentences::Sentences;
use super::{ExplainError, state_of};
use crate::change::Change;
use crate::model::Claim;
use crate::obstacle::Obstacle;
use crate::state::State;
use crate::time::Time;

/// Equal pods, and the claims that each of them gets from its templates.
#[derive(Debug, Clone)]
pub struct Workload {
    pub namespace: String,
    pub pods: usize,
    /// By the name of the pod's entry.
    pub claims: Vec<(String, ClaimSpec)>,
}

/// The answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Fit {
    pub pods: usize,
    /// The pods that would have devices now.
    pub fits: usize,
    /// The number of these pods on each node.
    pub nodes: BTreeMap<String, usize>,
    /// Why the next pod would not fit, and what would.
    pub summary: Vec<String>,
}

/// Says how many pods of a workload would have devices now.
///
/// # Errors
/// A mistake in the objects or the claims allows no answer.
pub fn fit(objects: &Objects, workload: &Workload, options: &Options, now: Time) -> Result<Fit, ExplainError> {
    let mut state = state_of(objects, options.features, now);
    let nodes = objects.nodes_of(options.node.as_deref())?;
    let is_ready = |node: &&Node| Obstacle::of_fits(std::slice::from_ref(&node.metadata.name), &state).is_none();
    let nodes: Vec<&Node> = nodes.into_iter().filter(is_ready).collect();
    let mut answer = Fit {
        pods: workload.pods,
        ..Fit::default()
    };
    let mut left = nodes.iter().map(|node| node.metadata.name.as_str()).peekable();
    let steps = Budget::of_each(nodes.len());
    while answer.fits < workload.pods
        && let Some(node) = left.peek()
    {
        let claims = workload.claims(answer.fits);
        match place(&claims, node, steps, &mut state)? {
            Some(allocations) => {
                for (claim, allocation) in claims.into_iter().zip(allocations) {
                    state.apply(Change::Claim(allocated(claim, allocation)), now);
                }
                answer.fits += 1;
                *answer.nodes.entry((*node).to_owned()).or_default() += 1;
            }
            None => drop(left.next()),
        }
    }
    if answer.fits < workload.pods {
        answer.summary = why(workload, answer.fits, &nodes, &mut state, now)?;
    }
    Ok(answer)
}

/// Returns the allocations of the claims on a node, if they fit there.
fn place(claims: &[Claim], node: &str, steps: u64, state: &mut State) -> Result<Option<Vec<Allocation>>, ExplainError> {
    let asked: Result<Vec<ResourceClaim>, _> = claims
        .iter()
        .map(|claim| state.as_its_allocator(&claim.facts))
        .collect();
    // The reason is determined again when the answer is written.
    let Ok(asked) = asked else {
        return Ok(None);
    };
    let asked: Vec<&ResourceClaim> = asked.iter().collect();
    match state.answer(&asked, node, steps) {
        Ok(Some(OnNode::Fits(allocations))) => Ok(Some(allocations)),
        Ok(Some(OnNode::Not(_)) | None) => Ok(None),
        Err(error) => Err(OfflineError::Claims(error.of_claims(&asked)).into()),
    }
}

/// The claim with the devices that it would get. Each share of a device needs an id.
fn allocated(mut claim: Claim, mut allocation: Allocation) -> Claim {
    for (at, result) in allocation.devices.results.iter_mut().enumerate() {
        result.share_id = Some(format!("{}-{at}", claim.facts.metadata.uid));
    }
    claim.facts.status.allocation = Some(Arc::new(allocation));
    claim
}

/// Why the next pod has no room, in the sentences of an event.
fn why(
    workload: &Workload,
    pod: usize,
    nodes: &[&Node],
    state: &mut State,
    now: Time,
) -> Result<Vec<String>, ExplainError> {
    let claims = workload.claims(pod);
    let keys: Vec<String> = claims.iter().map(Claim::key).collect();
    for claim in claims {
        state.apply(Change::Claim(claim), now);
    }
    let question = Question::of_claims(keys.into_iter(), state);
    let answer = Looked::look(&question, nodes, nodes.len(), state)?.answer;
    let said = Sentences::of(&answer, &question, state, &workload.namespace);
    Ok(said.reasons.into_iter().chain(said.ends).collect())
}

impl Workload {
    /// The claims of one pod, none of them allocated.
    fn claims(&self, pod: usize) -> Vec<Claim> {
        let claim = |(entry, spec): &(String, ClaimSpec)| {
            let mut facts = ResourceClaim {
                spec: Arc::new(spec.clone()),
                ..ResourceClaim::default()
            };
            facts.metadata.name = format!("{entry} of pod {}", pod + 1);
            facts.metadata.namespace.clone_from(&self.namespace);
            facts.metadata.uid = format!("{entry}-{pod}");
            Claim {
                facts,
                ..Claim::default()
            }
        };
        self.claims.iter().map(claim).collect()
    }
}
