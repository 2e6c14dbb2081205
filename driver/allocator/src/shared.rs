//! Stores equal values once: claims of one template have equal specs, and all GPUs of a kind have equal policies.

use std::collections::HashMap;
use std::fmt::{Debug, Write as _};
use std::hash::{DefaultHasher, Hasher as _};
use std::sync::Arc;

/// All values that are in use, by a hash of their debug text, because the decoded types have no hash of their own.
#[derive(Debug)]
pub struct Shared<T> {
    values: HashMap<u64, Vec<Arc<T>>>,
    count: usize,
    /// When there are this many values, unused ones are dropped.
    most: usize,
}

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Self {
            values: HashMap::new(),
            count: 0,
            most: 64,
        }
    }
}

/// Hashes what is written to it.
#[derive(Default)]
struct Text(DefaultHasher);

impl std::fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

impl<T: PartialEq + Debug> Shared<T> {
    /// Replaces the value by an equal one that is held already, if there is one.
    pub fn share(&mut self, value: &mut Arc<T>) {
        let mut text = Text::default();
        // Hashing cannot fail.
        let _ = write!(text, "{value:?}");
        let alike = self.values.entry(text.0.finish()).or_default();
        match alike.iter().find(|known| *known == value) {
            Some(known) => *value = known.clone(),
            None => {
                alike.push(value.clone());
                self.count += 1;
            }
        }
        if self.count > self.most {
            self.drop_unused();
        }
    }

    fn drop_unused(&mut self) {
        self.values.retain(|_, alike| {
            alike.retain(|value| Arc::strong_count(value) > 1);
            !alike.is_empty()
        });
        self.count = self.values.values().map(Vec::len).sum();
        self.most = self.count.max(32) * 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_one_and_what_nobody_holds_is_dropped() {
        let mut shared = Shared::default();
        let (mut first, mut second) = (Arc::new("a".to_owned()), Arc::new("a".to_owned()));
        shared.share(&mut first);
        shared.share(&mut second);
        assert!(Arc::ptr_eq(&first, &second));
        for number in 0..1000 {
            shared.share(&mut Arc::new(number.to_string()));
        }
        assert!(shared.count <= 64 && shared.values.len() <= 64, "{}", shared.count);
        let mut third = Arc::new("a".to_owned());
        shared.share(&mut third);
        assert!(Arc::ptr_eq(&first, &third), "somebody holds it");
    }
}
