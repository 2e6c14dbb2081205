//! What claims ask for, once for all claims that ask alike: the pods of one template do.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use vgpu_allocator::model::ClaimSpec;

/// A claim's spec. Two that were made by the same [`Specs`] are equal when what they ask for is.
#[derive(Debug, Clone)]
pub struct Asked(Arc<ClaimSpec>);

/// All specs that somebody has.
#[derive(Debug, Default)]
pub struct Specs {
    all: Vec<Asked>,
    /// How many there may be before those that nobody has are dropped.
    most: usize,
}

impl Asked {
    pub fn spec(&self) -> &ClaimSpec {
        &self.0
    }
}

impl PartialEq for Asked {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Asked {}

impl Hash for Asked {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

impl Specs {
    /// The one that asks for the same, if there is one.
    pub(crate) fn share(&mut self, spec: ClaimSpec) -> Asked {
        if let Some(known) = self.all.iter().find(|known| *known.0 == spec) {
            return known.clone();
        }
        if self.all.len() >= self.most {
            self.all.retain(|known| Arc::strong_count(&known.0) > 1);
            self.most = self.all.len().max(32) * 2;
        }
        let asked = Asked(Arc::new(spec));
        self.all.push(asked.clone());
        asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(request: usize) -> ClaimSpec {
        serde_json::from_value(serde_json::json!({"devices": {"requests": [{"name": format!("r{request}")}]}})).unwrap()
    }

    #[test]
    fn what_asks_alike_is_one_and_what_nobody_has_is_dropped() {
        let mut specs = Specs::default();
        let first = specs.share(spec(0));
        assert_eq!(first, specs.share(spec(0)));
        assert_ne!(first, specs.share(spec(1)));
        for request in 1..1000 {
            specs.share(spec(request));
        }
        assert!(specs.all.len() <= 64, "{}", specs.all.len());
        assert_eq!(first, specs.share(spec(0)), "somebody has it");
    }
}
