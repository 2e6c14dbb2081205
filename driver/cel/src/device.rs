//! The device on which a selector is evaluated.

use std::collections::BTreeMap;

use vgpu_quantity::Quantity;

/// A device as its slice publishes it.
///
/// Names of attributes and capacities are `domain/name`; a name without a domain belongs to the driver's domain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Device {
    pub driver: String,
    pub allow_multiple_allocations: bool,
    pub attributes: BTreeMap<String, Attribute>,
    pub capacity: BTreeMap<String, Quantity>,
}

/// One attribute's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attribute {
    Bool(bool),
    Int(i64),
    String(String),
    /// A semantic version, as text.
    Version(String),
    Bools(Vec<bool>),
    Ints(Vec<i64>),
    Strings(Vec<String>),
    Versions(Vec<String>),
}

/// Finds the entry `domain/name`.
pub(crate) fn find<'a, T>(of: &'a BTreeMap<String, T>, driver: &str, domain: &str, name: &str) -> Option<&'a T> {
    // Builds the qualified name without an allocation if it is short, because every selector does this.
    let mut buffer = [0u8; 128];
    let length = domain.len() + 1 + name.len();
    let found = if length <= buffer.len() {
        buffer[..domain.len()].copy_from_slice(domain.as_bytes());
        buffer[domain.len()] = b'/';
        buffer[domain.len() + 1..length].copy_from_slice(name.as_bytes());
        std::str::from_utf8(&buffer[..length])
            .ok()
            .and_then(|qualified| of.get(qualified))
    } else {
        of.get(&format!("{domain}/{name}"))
    };
    // A name with a slash cannot be in the driver's domain.
    found.or_else(|| {
        (domain == driver && !name.contains('/'))
            .then(|| of.get(name))
            .flatten()
    })
}

/// The sorted domains that have an entry, without duplicates.
pub(crate) fn domains<'a, T>(of: &'a BTreeMap<String, T>, driver: &'a str) -> Vec<&'a str> {
    let mut all: Vec<&str> = of.keys().map(|key| split(key, driver).0).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// The sorted names in a domain, with their values.
pub(crate) fn names<'a, T>(of: &'a BTreeMap<String, T>, driver: &str, domain: &str) -> Vec<(&'a str, &'a T)> {
    let mut all: Vec<(&str, &T)> = of
        .iter()
        .filter(|(key, _)| split(key, driver).0 == domain)
        .map(|(key, value)| (key.split_once('/').map_or(key.as_str(), |(_, name)| name), value))
        .collect();
    all.sort_unstable_by_key(|(name, _)| *name);
    all.dedup_by_key(|(name, _)| *name);
    all
}

fn split<'a>(key: &'a str, driver: &'a str) -> (&'a str, &'a str) {
    key.split_once('/').unwrap_or((driver, key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_a_domain_belongs_to_the_driver() {
        let of = BTreeMap::from([
            ("a".to_owned(), 1),
            ("dra.vgpu/b".to_owned(), 2),
            ("x.y/a".to_owned(), 3),
        ]);
        assert_eq!(find(&of, "dra.vgpu", "dra.vgpu", "a"), Some(&1));
        assert_eq!(find(&of, "dra.vgpu", "dra.vgpu", "b"), Some(&2));
        assert_eq!(find(&of, "dra.vgpu", "x.y", "a"), Some(&3));
        assert_eq!(find(&of, "dra.vgpu", "x.y", "b"), None);
        assert_eq!(find(&of, "dra.vgpu", "dra.vgpu", "x.y/a"), None);
        assert_eq!(find(&of, "dra.vgpu", "x.y", &"b".repeat(200)), None);
        assert_eq!(domains(&of, "dra.vgpu"), ["dra.vgpu", "x.y"]);
        assert_eq!(names(&of, "dra.vgpu", "dra.vgpu"), [("a", &1), ("b", &2)]);
    }
}
