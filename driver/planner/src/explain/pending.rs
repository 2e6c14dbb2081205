//! The event on a pod that is Pending and asks for our classes: the sentences of `vgpu explain` in one text.
//!
//! A long text is cut in its middle, because its end has the largest fraction that would fit and the command that lists
//! all reasons.

use super::answers::{Answer, Answers};
use super::question::Question;
use super::sentences::Sentences;
use super::text;
use crate::mistakes::Mistake;
use crate::model::Pod;
use crate::obstacle::Obstacle;
use crate::state::State;
use crate::verdict::About;

/// The limit of an event's note is a kilobyte.
pub const TEXT_MAX: usize = 1024;

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
    /// The pod does not wait for devices: enough are free.
    Room,
    /// A claim does not exist. It may be created a moment after its pod.
    NoClaim,
    /// A decision of the controller, with the event's reason; reported once.
    Decided(&'static str),
}

impl MessageKind {
    /// The event's reason.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::Decided(reason) => reason,
            Self::Waiting | Self::Room | Self::NoClaim => "VgpuClaimPending",
            Self::Refused => "VgpuClaimRefused",
        }
    }
}

/// Returns the text for every pod that waits for our devices and has an answer.
#[must_use]
pub fn messages(state: &State, answers: &Answers) -> Vec<(About, Message)> {
    // If all classes are ours, a missing claim was meant for us.
    let serves_all = state.classes().next().is_some() && state.classes().all(|class| class.is_ours());
    let of_pod = |pod| {
        let message = message(pod, state, answers);
        message.or_else(|| no_claim(pod, state).filter(|_| serves_all))
    };
    let pods = state.pods();
    pods.filter_map(|pod| Some((About::pod(pod), of_pod(pod)?))).collect()
}

/// If one of a pod's claims does not exist, kube-scheduler does not try the pod and reports nothing.
fn no_claim(pod: &Pod, state: &State) -> Option<Message> {
    let obstacles = match pod.is_waiting() && !pod.is_gated {
        true => Obstacle::of_missing(pod, state, |_| None),
        false => Vec::new(),
    };
    let sentences: Vec<String> = obstacles.iter().map(Obstacle::to_string).collect();
    (!sentences.is_empty()).then(|| Message {
        kind: MessageKind::NoClaim,
        text: text::cut(&sentences.join("; "), TEXT_MAX),
    })
}

/// Returns why the pod waits, or `None` if it does not wait for our devices or has no answer yet.
#[must_use]
pub fn message(pod: &Pod, state: &State, answers: &Answers) -> Option<Message> {
    if !pod.is_unschedulable {
        return None;
    }
    let question = Question::of(pod, state)?;
    let answer = answers.get(pod, &question.shape)?;
    let claims = question.claims.iter().zip(&question.shape.specs);
    let mistakes: Vec<Mistake> = claims
        .flat_map(|(claim, asked)| Mistake::of(claim, asked.spec(), state))
        .collect();
    let obstacles = Obstacle::of_waiting(pod, state);
    let kind = match answer {
        _ if mistakes.iter().any(|mistake| mistake.refused) => MessageKind::Refused,
        Answer::Fits { .. } if mistakes.is_empty() && obstacles.is_empty() => MessageKind::Room,
        _ => MessageKind::Waiting,
    };
    let mut parts: Vec<String> = mistakes.into_iter().map(|mistake| mistake.text).collect();
    parts.extend(obstacles.iter().map(Obstacle::to_string));
    let mut ends = Vec::new();
    let is_fit = matches!(answer, Answer::Fits { .. });
    // If there are mistakes, the fact that the rest fits is not reported.
    if !is_fit || kind == MessageKind::Room {
        let sentences = Sentences::of(answer, &question, state, &pod.namespace);
        parts.extend(sentences.reasons);
        ends = sentences.ends;
    }
    parts.extend(Obstacle::sharers(pod, state));
    if !is_fit {
        let (name, namespace) = (&pod.name, &pod.namespace);
        ends.push(format!("every device: vgpu explain pod/{name} -n {namespace}"));
    }
    let end: String = ends.iter().map(|end| format!("; {end}")).collect();
    let text = text::cut_before(&parts.join("; "), &end, TEXT_MAX);
    Some(Message { kind, text })
}
