//! What claims that wait ask for, and what blocks them, as numbers.

use serde::Serialize;
use vgpu_allocator::model::{Exactly, Mode};
use vgpu_api::{capacity, device_type};
use vgpu_quantity::Quantity;

use super::question::Question;
use super::summary::Summary;
use crate::mistakes::sub_requests;
use crate::state::State;

/// A request of a claim that waits, or an alternative of one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Requested {
    /// `namespace/name`; empty for an extended resource.
    pub claim: String,
    pub request: String,
    pub class: String,
    /// Absent if it asks for all devices of a node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<i64>,
    /// Absent if it asks for the whole memory of a GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores: Option<String>,
}

/// How many devices one kind of reason blocks for a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Blocked {
    /// The claim, as [`Requested`] has it.
    pub claim: String,
    pub request: String,
    pub reason: &'static str,
    pub devices: usize,
    /// Reasons about a whole node.
    pub nodes: usize,
    pub message: String,
}

pub(super) fn requested(question: &Question, state: &State) -> Vec<Requested> {
    let of_ask = |claim: &str, request: String, ask: &Exactly| {
        let amount = |name: &str| ask.capacity.as_ref()?.requests.get(name).map(Quantity::to_string);
        Requested {
            claim: claim.to_owned(),
            request,
            class: ask.class.clone(),
            count: match ask.mode {
                Mode::Exact(count) => Some(count),
                Mode::All | Mode::Unknown(_) => None,
            },
            memory: amount(capacity::MEMORY),
            cores: amount(capacity::CORES),
        }
    };
    let claims = question.claims.iter().filter_map(|key| state.claim(key));
    let asked = claims.flat_map(|claim| {
        let key = claim.key();
        sub_requests(claim.asked())
            .map(|ask| of_ask(&key, ask.name(), ask.exactly))
            .collect::<Vec<_>>()
    });
    let extended = (0..).map_while(|at: usize| {
        let ask = question.shape.extended_ask(at)?;
        Some(of_ask("", question.describe(usize::MAX, &at.to_string()), &ask))
    });
    asked.chain(extended).collect()
}

/// Returns true if only administrative access is waited for.
pub(super) fn is_monitor(question: &Question, state: &State) -> bool {
    let claims = question.claims.iter().filter_map(|key| state.claim(key));
    let mut asks = claims
        .flat_map(|claim| sub_requests(claim.asked()).map(|ask| ask.exactly))
        .peekable();
    let is_monitor = |ask: &Exactly| {
        let class = state.class(&ask.class).filter(|class| class.is_ours());
        ask.admin_access.unwrap_or(false) || class.is_some_and(|class| class.device_type() == device_type::MONITOR)
    };
    question.shape.extended_ask(0).is_none() && asks.peek().is_some() && asks.all(is_monitor)
}

pub(super) fn blocked(summary: &Summary, question: &Question) -> Vec<Blocked> {
    let sections = summary.sections.iter();
    let groups = sections.flat_map(|section| {
        section.by_size().into_iter().map(|group| Blocked {
            claim: question.name(section.claim),
            request: section.request.clone(),
            reason: group.kind.name(),
            devices: group.devices,
            nodes: group.nodes,
            message: group.closest.message.clone(),
        })
    });
    groups.collect()
}
