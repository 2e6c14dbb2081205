//! The words by which configs name the values of a field.

/// A field's values as they are written, in one place.
pub(crate) trait Words: Copy + PartialEq + 'static {
    const WORDS: &'static [(&'static str, Self)];

    fn word(self) -> &'static str {
        // Every value is in WORDS: the tests go through them all.
        Self::WORDS
            .iter()
            .find(|(_, value)| *value == self)
            .map_or("", |(word, _)| word)
    }
}
