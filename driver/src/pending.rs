//! The text of the event: why a pod on our classes is Pending.
//!
//! The allocator answers about devices only; kube-scheduler's own event says what else a node must have for the pod. A
//! long text is cut in its middle, because its end has the largest fraction that would fit and the command that lists
//! all reasons.

use vgpu_allocator::model::Request;
use vgpu_allocator::{AllocateError, Largest, ReasonKind, held, together};
use vgpu_api::DRIVER_NAME;
use vgpu_planner::model::Pod;
use vgpu_planner::{About, ClaimState, Obstacle, State};

use crate::answers::{Answer, Answers};
use crate::check::mistakes;
use crate::class::is_ours_by_name;
use crate::question::Question;
use crate::summary::{Group, Section, Summary};
use crate::text::{self, RequestText};

/// An event's note may be a kilobyte long.
pub const TEXT_MAX: usize = 1024;
/// The part of it that one reason may take: a selector or a taint may be long.
const REASON_MAX: usize = 320;
/// How many devices are named if the pod would fit.
const MOST_RESULTS: usize = 3;

/// What an event says to the owner of a pod or claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub kind: MessageKind,
    pub text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MessageKind {
    /// Something is used up, missing or too small.
    Waiting,
    /// The claim is invalid and will never be prepared.
    Refused,
    /// The pod does not wait for devices: they have room.
    Room,
    /// A decision of the controller, with the event's reason; reported once.
    Decided(&'static str),
}

impl MessageKind {
    /// The event's reason.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Decided(reason) => reason,
            Self::Waiting | Self::Room => "VgpuClaimPending",
            Self::Refused => "VgpuClaimRefused",
        }
    }
}

/// Returns the text for every pod that waits for our devices and has an answer.
pub fn messages(state: &State, answers: &Answers) -> Vec<(About, Message)> {
    let pods = state.pods();
    pods.filter_map(|pod| Some((About::pod(pod), explain(pod, state, answers)?)))
        .collect()
}

/// Returns why the pod waits, or `None` if it does not wait for our devices or has no answer yet.
pub fn explain(pod: &Pod, state: &State, answers: &Answers) -> Option<Message> {
    if !pod.is_unschedulable {
        return None;
    }
    let question = Question::of(pod, state)?;
    let answer = answers.get(pod, &question.shape)?;
    let mistakes = mistakes(&question, state);
    let obstacles = obstacles(pod, state);
    let kind = match answer {
        _ if mistakes.iter().any(|mistake| mistake.refused) => MessageKind::Refused,
        Answer::Fits { .. } if mistakes.is_empty() && obstacles.is_empty() => MessageKind::Room,
        _ => MessageKind::Waiting,
    };
    let mut parts: Vec<String> = mistakes.into_iter().map(|mistake| mistake.text).collect();
    parts.extend(obstacles.iter().map(Obstacle::to_string));
    // Beside mistakes, that the rest fits is not reported.
    let end = match answer {
        Answer::Fits { node, devices } => {
            if kind == MessageKind::Room {
                parts.push(fits(&question, node, devices));
            }
            String::new()
        }
        Answer::Nowhere { held } => {
            parts.push(nowhere(&question, *held));
            String::new()
        }
        Answer::Mistake(error) => {
            parts.push(mistake(&question, error));
            String::new()
        }
        Answer::Nobody(claim, why) => {
            parts.push(why.clone().verdict(question.name(*claim)).to_string());
            String::new()
        }
        Answer::Not {
            summary,
            looked_at,
            nodes,
        } => {
            let described = Described {
                question: &question,
                state,
                nodes: *nodes,
                all_nodes: looked_at == nodes,
                namespace: &pod.namespace,
            };
            // On a node without devices the search stops at the first request; other nodes show more.
            let says_more = summary.sections.iter().any(Section::is_about_devices);
            let sections = summary.sections.iter();
            let sections = sections.filter(|section| !says_more || section.is_about_devices());
            parts.extend(sections.map(|section| described.section(section)));
            let mut end = described.largest(summary);
            if looked_at < nodes && !summary.is_of_every_node() {
                end.push_str(&format!("; {looked_at} of {nodes} nodes were looked at"));
            }
            end
        }
    };
    let end = match question.has_claims_only() && !matches!(answer, Answer::Fits { .. }) {
        true => format!(
            "{end}; every device: vgpu explain pod/{} -n {}",
            pod.name, pod.namespace
        ),
        false => end,
    };
    let text = text::cut_before(&parts.join("; "), &end, TEXT_MAX);
    Some(Message { kind, text })
}

/// Returns why the pod gets no devices however many are free, in the words of `vgpu explain`.
fn obstacles(pod: &Pod, state: &State) -> Vec<Obstacle> {
    Obstacle::of_waiting(pod, |key| {
        let claim = state.claim(key)?;
        let mut asks = claim.facts.spec.devices.requests.iter().flat_map(Request::asks);
        Some(ClaimState {
            is_ours: asks.any(|ask| is_ours_by_name(&ask.class, state)),
            is_deleted: claim.is_deleted,
            is_allocated: claim.allocation().is_some(),
        })
    })
}

fn fits(question: &Question, node: &str, devices: &[(usize, String, String)]) -> String {
    let named = devices.iter().take(MOST_RESULTS);
    let named: Vec<String> = named
        .map(|(claim, request, device)| format!("{device} for {}", question.describe(*claim, request)))
        .collect();
    let more = match devices.len().saturating_sub(MOST_RESULTS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "node {node} has room ({}{more}), so it is not devices that the pod waits for; see the scheduler's own event",
        named.join(", ")
    )
}

fn mistake(question: &Question, error: &AllocateError) -> String {
    match error {
        AllocateError::Request { claim, request, fault } => format!("{}: {fault}", question.describe(*claim, request)),
        error => error.in_words(|claim| question.name(claim)),
    }
}

fn nowhere(question: &Question, held: bool) -> String {
    let claims = question.claims.join(", ");
    match held {
        true => format!(
            "claim {claims}: no node is where the pod's other claims are: {}",
            question.shape.held.join(", ")
        ),
        false => format!("claim {claims}: the cluster has no node"),
    }
}

/// Writes an answer as text for one pod.
struct Described<'a> {
    question: &'a Question,
    state: &'a State,
    nodes: usize,
    /// True if every node was looked at.
    all_nodes: bool,
    /// The pod's: whoever reads its events may know no names of others.
    namespace: &'a str,
}

impl Described<'_> {
    fn section(&self, section: &Section) -> String {
        let mut text = self.question.describe(section.claim, &section.request);
        let ask = self.question.shape.ask(section.claim, &section.request);
        if let Some(ask) = &ask {
            let class = self.state.class(&ask.class);
            text.push_str(&format!(": asked for {}", RequestText { ask, class }));
        }
        if !self.question.shape.is_first(section.claim, &section.request) {
            text.push_str(", beside what the pod asks for before it");
        }
        let devices = section.devices();
        let mut groups = section.by_size();
        // If some nodes have devices of the class, the nodes without any are not what the pod waits for.
        if devices > 0 {
            groups.retain(|group| group.devices > 0 || group.kind != ReasonKind::NodeMismatch);
        }
        if section.is_unmatched() && self.all_nodes {
            text.push_str("; no GPU of the cluster matches it, so it waits for another GPU or another selector");
        }
        for (at, group) in groups.iter().enumerate() {
            text.push_str("; ");
            text.push_str(&self.group(group, devices, at == 0));
        }
        if section.others > 0 {
            text.push_str(&format!("; on {} for other reasons", section.others));
        }
        if groups.is_empty() && section.fitting == 0 {
            text.push_str(&self.no_device(section));
        }
        if let Some(best) = section.best.as_ref().filter(|best| best.wanted > 1) {
            text.push_str(&format!(
                "; {} are wanted on one node, and of node {} {} would do",
                best.wanted, best.node, best.count
            ));
        }
        text
    }

    fn group(&self, group: &Group, devices: usize, is_first: bool) -> String {
        let reason = &group.closest;
        let with_it = reason.together.iter().map(|claim| self.question.name(*claim));
        let held = held(&reason.holders, self.namespace);
        let message = format!("{}{held}{}", reason.message, together(with_it.collect()));
        let message = text::cut(&message, REASON_MAX);
        let said = format!("{}: {message}", group.kind.name());
        let place = match (reason.node.as_str(), reason.device.as_str()) {
            ("", device) => device.to_owned(),
            (node, "") => format!("node {node}"),
            (node, device) => format!("{node} {device}"),
        };
        let hint = group.kind.hint();
        if group.kind == ReasonKind::UnknownClass {
            return format!("{said}{hint}");
        }
        let count = match (group.devices, group.nodes) {
            (0, nodes) => format!("on {nodes} of {} nodes", self.nodes),
            (on, _) if is_first => format!("on {on} of {devices} devices"),
            (on, _) => format!("on {on}"),
        };
        let example = match (group.devices + group.nodes, group.kind) {
            (1, _) => place,
            (_, ReasonKind::Capacity) if !reason.shortages.is_empty() => format!("most free: {place}"),
            _ => format!("for example {place}"),
        };
        format!("{count}: {said} ({example}){hint}")
    }

    /// The text if no device is of the class.
    fn no_device(&self, section: &Section) -> String {
        let published = self.state.published().map(|published| published.devices).sum::<usize>();
        if published == 0 {
            return format!(
                "; no node publishes a GPU for driver {DRIVER_NAME}; see that vgpu-kubelet-plugin runs on the GPU nodes"
            );
        }
        match &section.other_class {
            Some(reason) => format!(
                "; none of {} devices is of the class: {}",
                section.of_other_classes,
                text::cut(&reason.message, REASON_MAX)
            ),
            None => format!("; no slice is for any of {} nodes", section.nodes_without),
        }
    }

    fn largest(&self, summary: &Summary) -> String {
        let Largest {
            memory,
            cores,
            is_of_several,
        } = &summary.largest;
        let mut rooms = Vec::new();
        for (room, what, other) in [(memory, "memory", "cores"), (cores, "cores", "memory")] {
            if let Some(room) = room {
                let place = format!("{} {}", room.node, room.device);
                rooms.push(format!(
                    "{what} {} with the {other} asked for ({place})",
                    room.amount.suggested()
                ));
            }
        }
        let is_short = summary.sections.iter().flat_map(|section| &section.groups);
        match (
            &rooms[..],
            is_short.clone().any(|group| group.kind == ReasonKind::Capacity),
        ) {
            ([], true) if !is_of_several => "; no GPU has both that much memory and that many cores free".to_owned(),
            ([], _) => String::new(),
            (rooms, _) => format!("; would fit: {}", rooms.join(", or ")),
        }
    }
}
