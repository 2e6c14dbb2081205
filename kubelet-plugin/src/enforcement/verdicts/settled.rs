//! A finding is accepted once it was made several times in a row: processes start and end between two readings, and what is
//! written to the API server must not go back and forth. Pure.

/// The accepted value, and a candidate with the number of times in a row that it was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settled<T> {
    value: T,
    other: Option<(T, u32)>,
}

// === impl Settled ===

impl<T: Clone + PartialEq> Settled<T> {
    #[must_use]
    pub(crate) fn new(value: T) -> Self {
        Self { value, other: None }
    }

    #[must_use]
    pub(crate) fn value(&self) -> &T {
        &self.value
    }

    /// Applies a finding, which is accepted when it was made `times` in a row. Returns true if that changed the value.
    pub(crate) fn apply(&mut self, found: T, times: u32) -> bool {
        if found == self.value {
            self.other = None;
            return false;
        }
        let before = match &self.other {
            Some((other, count)) if *other == found => *count,
            _ => 0,
        };
        if before + 1 < times {
            self.other = Some((found, before + 1));
            return false;
        }
        *self = Self::new(found);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_counts_when_it_was_made_in_a_row() {
        let mut settled = Settled::new('a');
        let mut values = Vec::new();
        for found in "abaabbabcbbb".chars() {
            settled.apply(found, 2);
            values.push(*settled.value());
        }
        assert_eq!(values.into_iter().collect::<String>(), "aaaaabbbbbbb");
        assert!(settled.apply('z', 1) && *settled.value() == 'z');
    }
}
