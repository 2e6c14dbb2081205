//! The names of a field's values in configs.

/// A field's values as they are written, in one place.
pub(crate) trait Words: Copy + PartialEq + 'static {
    const WORDS: &'static [(&'static str, Self)];

    fn word(self) -> &'static str {
        // WORDS has every value: the tests check them all.
        Self::WORDS
            .iter()
            .find(|(_, value)| *value == self)
            .map_or("", |(word, _)| word)
    }
}
