//! The plugin's readiness by parts, with the reason why a part does not work.
//!
//! A part that has nothing to do on this node, or is paused, counts as ready: a pod that is never ready would block the
//! rolling update on every other node.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The reason of a part that was not tried yet.
pub(crate) const WAITING: &str = "waiting";

/// The state of each part; a part is not ready until it reports so.
#[derive(Clone)]
pub struct Readiness(Arc<Mutex<BTreeMap<&'static str, State>>>);

/// The state of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Works,
    /// Nothing to do, with the reason.
    Idle(String),
    /// Somebody wants it not to work for a while, with the reason.
    Paused(String),
    Fails(String),
}

// === impl Readiness ===

impl Readiness {
    #[must_use]
    pub fn new(parts: &[&'static str]) -> Self {
        let waiting = |part: &&'static str| (*part, State::Fails(WAITING.to_owned()));
        Self(Arc::new(Mutex::new(parts.iter().map(waiting).collect())))
    }

    /// Sets a part's state. Returns true if that changed it.
    pub fn set(&self, part: &'static str, state: Result<(), String>) -> bool {
        self.insert(part, state.map_or_else(State::Fails, |()| State::Works))
    }

    /// Sets a part ready because it has nothing to do. Returns true if that changed it.
    pub fn idle(&self, part: &'static str, why: String) -> bool {
        self.insert(part, State::Idle(why))
    }

    /// Sets a part ready although it does not work, because it is paused on purpose. Returns true if that changed it.
    pub fn pause(&self, part: &'static str, why: String) -> bool {
        self.insert(part, State::Paused(why))
    }

    fn insert(&self, part: &'static str, state: State) -> bool {
        let mut parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        parts.insert(part, state.clone()) != Some(state)
    }

    /// Returns true if these parts are ready.
    #[must_use]
    pub fn has(&self, wanted: &[&str]) -> bool {
        let parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let works = |part: &&str| matches!(parts.get(part), Some(State::Works | State::Idle(_) | State::Paused(_)));
        wanted.iter().all(works)
    }

    /// Returns the state of each part.
    pub(crate) fn states(&self) -> BTreeMap<&'static str, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Each part, and if it is ready.
    pub(crate) fn parts(&self) -> Vec<(&'static str, bool)> {
        let is_ready = |(part, state)| (part, !matches!(state, State::Fails(_)));
        self.states().into_iter().map(is_ready).collect()
    }

    /// Returns true if all parts are ready, and one line per part.
    #[must_use]
    pub fn status(&self) -> (bool, String) {
        let parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let line = |(part, state): (&&str, &State)| match state {
            State::Works => format!("{part}: ok\n"),
            State::Idle(why) => format!("{part}: ok, nothing to do: {why}\n"),
            State::Paused(why) => format!("{part}: ok, paused: {why}\n"),
            State::Fails(reason) => format!("{part}: {reason}\n"),
        };
        let ready = parts.values().all(|state| !matches!(state, State::Fails(_)));
        (ready, parts.iter().map(line).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_once_every_part_says_so() {
        let readiness = Readiness::new(&["a", "b"]);
        assert!(readiness.set("a", Ok(())));
        assert_eq!(readiness.status(), (false, "a: ok\nb: waiting\n".into()));
        assert!(readiness.has(&["a"]) && !readiness.has(&["a", "b"]) && !readiness.has(&["c"]));
        assert!(readiness.set("b", Ok(())));
        assert!(!readiness.set("b", Ok(())), "no news");
        assert!(readiness.status().0);
        assert!(readiness.set("a", Err("lost".into())));
        assert_eq!(readiness.status(), (false, "a: lost\nb: ok\n".into()));
        assert_eq!(readiness.parts(), [("a", false), ("b", true)]);
        assert!(readiness.idle("a", "no driver".into()));
        assert!(!readiness.idle("a", "no driver".into()), "no news");
        assert_eq!(
            readiness.status(),
            (true, "a: ok, nothing to do: no driver\nb: ok\n".into())
        );
        assert!(readiness.pause("a", "a label".into()) && readiness.has(&["a"]));
        assert_eq!(readiness.status(), (true, "a: ok, paused: a label\nb: ok\n".into()));
    }
}
