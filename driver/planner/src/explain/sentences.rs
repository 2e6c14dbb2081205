//! The sentences about claims that wait. The event joins them to one text; `vgpu explain` prints one in a line.
//!
//! The allocator only considers devices; kube-scheduler's own event says what else a pod needs of a node.

use vgpu_allocator::model::{Exactly, Mode};
use vgpu_allocator::{AllocateError, Largest, ReasonKind, Shortage, few, held, together};
use vgpu_api::{DRIVER_NAME, device_type};

use super::answers::Answer;
use super::question::Question;
use super::summary::{Beyond, Group, Instances, Section, Summary};
use super::text::{self, RequestText};
use crate::state::State;

/// The most characters of one reason in an event: selectors and taints may be long.
const REASON_MAX: usize = 320;
/// How many devices are named if the claims would fit.
const MOST_RESULTS: usize = 3;

/// An answer in sentences.
#[derive(Debug, Default)]
pub(super) struct Sentences {
    pub(super) reasons: Vec<String>,
    /// What would fit, and how many nodes were checked. An event contains these unabridged.
    pub(super) ends: Vec<String>,
    /// The reason in one word; empty if it fits.
    pub(super) reason: &'static str,
    /// True if no node of the cluster could ever serve it, even if all other claims ended.
    pub(super) is_never: bool,
}

impl Sentences {
    /// Writes an answer for a reader of `namespace`, who may not see names in other namespaces.
    pub(super) fn of(answer: &Answer, question: &Question, state: &State, namespace: &str) -> Self {
        let (reason, sentence) = match answer {
            Answer::Fits { node, devices } => ("", fits(question, node, devices)),
            Answer::Nowhere { held } => ("NoNode", nowhere(question, *held)),
            Answer::Mistake(error) => ("ClaimMistake", mistake(question, error)),
            Answer::Nobody(claim, why) => {
                let verdict = why.clone().verdict(question.name(*claim));
                (verdict.reason(), verdict.to_string())
            }
            Answer::Not {
                summary,
                looked_at,
                nodes,
            } => {
                let described = Described {
                    question,
                    state,
                    nodes: *nodes,
                    all_nodes: looked_at == nodes,
                    namespace,
                };
                return described.sentences(summary, *looked_at);
            }
        };
        Self {
            reasons: vec![sentence],
            reason,
            ..Self::default()
        }
    }
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
        "node {node} has room ({}{more}), so it does not wait for devices; see the scheduler's own event on the pod",
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

/// Writes the answer for one pod or claim.
struct Described<'a> {
    question: &'a Question,
    state: &'a State,
    nodes: usize,
    /// True if every node was checked.
    all_nodes: bool,
    namespace: &'a str,
}

impl Described<'_> {
    fn sentences(&self, summary: &Summary, looked_at: usize) -> Sentences {
        let about = || summary.sections.iter().filter(|section| section.is_about_devices());
        // It is enough if one of several alternatives may fit later.
        let is_never = about().next().is_some() && about().all(|section| self.never(section, summary).is_some());
        let mut ends = Vec::new();
        ends.extend(largest(summary).filter(|_| !is_never));
        if !self.all_nodes && !summary.is_of_every_node() {
            ends.push(format!("{looked_at} of {} nodes were looked at", self.nodes));
        }
        Sentences {
            reasons: self.sections(summary),
            ends,
            reason: if is_never { "NeverFits" } else { word(summary) },
            is_never,
        }
    }

    fn sections(&self, summary: &Summary) -> Vec<String> {
        // On a node without devices the search stops at the first request; other nodes show more.
        let says_more = summary.sections.iter().any(Section::is_about_devices);
        let sections = summary.sections.iter();
        let sections = sections.filter(|section| !says_more || section.is_about_devices());
        sections.map(|section| self.section(section, summary)).collect()
    }

    /// Says that the request never fits, even if all other claims end.
    fn never(&self, section: &Section, summary: &Summary) -> Option<String> {
        if !self.all_nodes {
            return None;
        }
        let ask = self.question.shape.ask(section.claim, &section.request);
        let wanted = match ask.as_ref().map(|ask| &ask.mode) {
            Some(Mode::Exact(count)) => *count,
            _ => 1,
        };
        if section.is_unmatched() && summary.is_of_one_request() && self.is_for_instances(ask.as_deref()) {
            let known: Vec<String> = section.instances.keys().cloned().collect();
            return Some(format!(
                "no node of the cluster has an instance that its selectors match, so this never fits, however long it waits: \
                 match one that is there{}, or make such an instance on a GPU in MIG mode",
                few(": ", known)
            ));
        }
        let beyond = section.beyond(wanted).filter(|_| summary.is_of_one_request())?;
        Some(match beyond {
            Beyond::Capacity(Shortage { name, total, .. }) => format!(
                "no GPU of the cluster that matches has more {name} than {}, so this never fits, however long it waits: \
                 ask for at most that, or add a GPU with more",
                total.readable()
            ),
            Beyond::Count(most) => format!(
                "{wanted} are wanted on one node, and no node of the cluster has more than {most} {} for it, even unused, so \
                 this never fits, however long it waits: ask for at most that, or by several pods",
                if most == 1 { "GPU" } else { "GPUs" }
            ),
        })
    }

    /// Returns true if the request can only get instances of GPUs in MIG mode.
    fn is_for_instances(&self, ask: Option<&Exactly>) -> bool {
        let class = ask.and_then(|ask| self.state.class(&ask.class));
        class.is_some_and(|class| class.is_ours() && class.device_type() == device_type::MIG)
    }

    fn section(&self, section: &Section, summary: &Summary) -> String {
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
        // If some nodes have devices of the class, the pod does not wait for the nodes without any.
        if devices > 0 {
            groups.retain(|group| group.devices > 0 || group.kind != ReasonKind::NodeMismatch);
        }
        let never = self.never(section, summary);
        if section.is_unmatched() && self.all_nodes && never.is_none() {
            text.push_str("; no GPU of the cluster matches it, so it waits for another GPU or another selector");
        }
        if let Some(never) = &never {
            text.push_str(&format!("; {never}"));
        }
        if !section.instances.is_empty() {
            text.push_str(&format!("; instances: {}", instances(section)));
        }
        for (at, group) in groups.iter().enumerate() {
            text.push_str("; ");
            text.push_str(&self.group(group, devices, at == 0));
        }
        if section.others > 0 {
            text.push_str(&format!("; on {} for other reasons", section.others));
        }
        if groups.is_empty() && section.fitting == 0 {
            let class = ask.as_ref().map(|ask| ask.class.as_str());
            text.push_str(&self.no_device(section, class.is_some_and(|class| self.state.is_class_ours(class))));
            if self.is_for_instances(ask.as_deref()) && self.all_nodes {
                text.push_str(
                    "; no node publishes an instance: make one on a GPU in MIG mode, or ask for a share by class vgpu",
                );
            }
        }
        if let Some(best) = section.best.as_ref().filter(|best| best.wanted > 1 && never.is_none()) {
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
        if group.kind == ReasonKind::UnknownClass {
            return format!("{said}{}", self.other_classes());
        }
        let hint = group.kind.hint();
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

    /// Returns the remedy for a class that does not exist: the classes that do.
    fn other_classes(&self) -> String {
        let ours = self.state.classes().filter(|class| class.is_ours());
        let names: Vec<String> = ours.map(|class| class.metadata.name.clone()).collect();
        if names.is_empty() {
            return ReasonKind::UnknownClass.hint().to_owned();
        }
        few("; the classes of dra-driver-vgpu here are ", names)
    }

    /// The text if no device is of the class.
    fn no_device(&self, section: &Section, is_ours: bool) -> String {
        let published = self.state.published().map(|published| published.devices).sum::<usize>();
        if is_ours && published == 0 {
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
}

/// The instances of each profile. Who holds them is not named.
fn instances(section: &Section) -> String {
    let of_profile = |(profile, known): (&String, &Instances)| {
        let counts = [
            (known.taken, "taken"),
            (known.other, "not usable"),
            (known.unmatched, "not matched"),
        ];
        let counts = counts.into_iter().filter(|(count, _)| *count > 0);
        let counts: Vec<String> = counts.map(|(count, what)| format!("{count} {what}")).collect();
        let more = (known.taken + known.other).saturating_sub(known.places.len());
        let more = if more > 0 { ", ..." } else { "" };
        let places = match known.places.is_empty() {
            true => String::new(),
            false => format!(" ({}{more})", known.places.join(", ")),
        };
        format!("{profile}: {}{places}", counts.join(", "))
    };
    let all: Vec<String> = section.instances.iter().map(of_profile).collect();
    all.join("; ")
}

/// The kind of reason that blocks most devices of the first request.
fn word(summary: &Summary) -> &'static str {
    let mut about = summary.sections.iter().filter(|section| section.is_about_devices());
    match about.next().map(|section| (section.is_unmatched(), section.by_size())) {
        Some((true, _)) => "NoDeviceMatches",
        Some((false, groups)) => groups.first().map_or("TooFewDevices", |group| group.kind.name()),
        None => "NoDevice",
    }
}

/// The largest fractions that would fit.
fn largest(summary: &Summary) -> Option<String> {
    let Largest {
        memory,
        cores,
        is_of_several,
    } = &summary.largest;
    let mut rooms = Vec::new();
    for (room, what, other) in [(memory, "memory", "cores"), (cores, "cores", "memory")] {
        if let Some(room) = room {
            let place = format!("{} {}", room.node, room.device);
            let amount = room.amount.suggested();
            rooms.push(format!("{what} {amount} with the {other} asked for ({place})"));
        }
    }
    let mut groups = summary.sections.iter().flat_map(|section| &section.groups);
    // If nothing is too small, as with a selector that matches nothing, asking for less would not help.
    let is_short = groups.any(|group| matches!(group.kind, ReasonKind::Capacity | ReasonKind::InUse));
    match &rooms[..] {
        _ if !is_short => None,
        [] if *is_of_several => None,
        [] => Some("no GPU has both that much memory and that many cores free".to_owned()),
        rooms => Some(format!("would fit: {}", rooms.join(", or "))),
    }
}
