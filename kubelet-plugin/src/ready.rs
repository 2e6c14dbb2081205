//! Whether the plugin does its work, part by part, and what keeps it from doing so.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Parts and their states; a part is not ready until it says so.
#[derive(Clone)]
pub struct Readiness(Arc<Mutex<BTreeMap<&'static str, Result<(), String>>>>);

// === impl Readiness ===

impl Readiness {
    #[must_use]
    pub fn new(parts: &[&'static str]) -> Self {
        let waiting = |part: &&'static str| (*part, Err("waiting".to_owned()));
        Self(Arc::new(Mutex::new(parts.iter().map(waiting).collect())))
    }

    /// Sets a part's state, and says whether that is news.
    pub fn set(&self, part: &'static str, state: Result<(), String>) -> bool {
        let mut parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        parts.insert(part, state.clone()) != Some(state)
    }

    /// Whether all parts are ready, and a line for each.
    #[must_use]
    pub fn look(&self) -> (bool, String) {
        let parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let line = |(part, state): (&&str, &Result<(), String>)| match state {
            Ok(()) => format!("{part}: ok\n"),
            Err(reason) => format!("{part}: {reason}\n"),
        };
        (parts.values().all(Result::is_ok), parts.iter().map(line).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_once_every_part_says_so() {
        let readiness = Readiness::new(&["a", "b"]);
        assert!(readiness.set("a", Ok(())));
        assert_eq!(readiness.look(), (false, "a: ok\nb: waiting\n".into()));
        assert!(readiness.set("b", Ok(())));
        assert!(!readiness.set("b", Ok(())), "no news");
        assert!(readiness.look().0);
        assert!(readiness.set("a", Err("lost".into())));
        assert_eq!(readiness.look(), (false, "a: lost\nb: ok\n".into()));
    }
}
