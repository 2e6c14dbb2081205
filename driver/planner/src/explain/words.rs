//! An explanation in words.

use std::fmt;

use vgpu_allocator::{Reason, ReasonKind};

use super::{Explanation, Standing};

/// The most nodes that a line names.
const NODES_IN_WORDS: usize = 10;

/// The lines of an explanation.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Lines {
    pub answer: Vec<String>,
    /// A line for every device that the subject has, or every reason, one for each device.
    pub details: Vec<String>,
}

impl Explanation {
    /// Returns true if nothing that was checked blocks the subject.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.state <= Standing::Fits
    }

    /// The name of the pod, if the subject is a pod.
    #[must_use]
    pub fn pod(&self) -> Option<&str> {
        (self.kind == "pod").then_some(&*self.name)
    }

    /// Returns the answer, and every reason.
    #[must_use]
    pub fn lines(&self) -> Lines {
        let obstacles = self.obstacles.iter().map(|found| &found.message);
        let sentences = obstacles.chain(&self.summary);
        let mut answer: Vec<String> = sentences.map(|sentence| self.line(sentence)).collect();
        // After obstacles it would be wrong to say that the pod has everything, or that it has no claims.
        if answer.is_empty() {
            answer.push(self.settled());
        }
        answer.extend(self.notes.iter().map(|note| format!("  {note}")));
        if !self.fits.is_empty() {
            let named = &self.fits[..self.fits.len().min(NODES_IN_WORDS)];
            let more = match self.fits.len() - named.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let (fits, nodes) = (self.fits.len(), self.nodes.len());
            answer.push(format!("  fits on {fits} of {nodes} nodes: {}{more}", named.join(", ")));
        }
        Lines {
            answer,
            details: self.details(),
        }
    }

    fn details(&self) -> Vec<String> {
        if self.waiting.is_empty() {
            let devices = self.devices.iter().flat_map(|device| device.lines());
            return devices.map(|line| format!("  {line}")).collect();
        }
        if !self.fits.is_empty() || !self.refused.is_empty() {
            return Vec::new();
        }
        let held = self
            .held
            .iter()
            .map(|held| format!("  {held}, so that it must be where that is"));
        // If a class does not exist, the reason is the same on every node, and no other reasons are known.
        let is_of_class = |reason: &Reason<String>| reason.reason == ReasonKind::UnknownClass;
        let mut reasons: Vec<&Reason<String>> = self
            .reasons
            .iter()
            .filter(|_| !self.reasons.iter().any(is_of_class))
            .collect();
        // Devices of other classes, such as the monitor beside each GPU, are worth a line only where there are no others.
        if reasons.iter().any(|reason| !reason.is_of_another_class()) {
            reasons.retain(|reason| !reason.is_of_another_class());
        }
        held.chain(reasons.iter().map(|reason| format!("  {reason}"))).collect()
    }

    /// The answer's first sentence if nothing else was said.
    fn settled(&self) -> String {
        let subject = &self.subject;
        match (&self.waiting[..], &self.held[..]) {
            ([], []) => format!("{subject} has no claims"),
            ([], held) if self.is_outline => format!("{subject} has its devices: {}", held.join("; ")),
            ([], held) => format!("{subject} has everything: {}", held.join("; ")),
            (waiting, _) => format!("{subject} waits for {}", waiting.join("; ")),
        }
    }

    /// A separate line that begins with the subject.
    fn line(&self, sentence: &str) -> String {
        match sentence.strip_prefix(&self.subject) {
            Some(rest) if rest.starts_with([' ', ',', ':']) => sentence.to_owned(),
            _ => format!("{}: {sentence}", self.subject),
        }
    }
}

impl fmt::Display for Explanation {
    /// The whole explanation in words, one line each.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lines { answer, details } = self.lines();
        answer.iter().chain(&details).try_for_each(|line| writeln!(f, "{line}"))
    }
}
