//! Kinds of instances of GPUs in MIG mode, and which of them selectors may match.
//!
//! Failure modes:
//! - Selectors cost more than the limit that the caller gives: the kinds that are left may match, so the claim counts more.
//! - A selector names profiles in a form that is not read: none is known, and the caller counts the worst.
//! - There are too many results: all are dropped, and evaluated again when they are asked for.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use vgpu_allocator::model::{Attribute, Device, DeviceClass, Selector};
use vgpu_allocator::{Cel, Selectors as _};
use vgpu_api::{DRIVER_NAME, Profile, device_type};
use vgpu_cel::{Attribute as Value, Device as Facts};

use crate::amount::Amount;

/// Attributes whose values all instances of a kind share.
const COMMON: [&str; 8] = [
    device_type::ATTRIBUTE,
    device_type::PROFILE,
    "productName",
    "brand",
    "architecture",
    "cudaComputeCapability",
    "driverVersion",
    "cudaDriverVersion",
];

/// The most profiles of a selector that are looked at.
const PROFILES_MAX: usize = 32;
/// The most results that are kept, and the most bytes of their expressions: everyone who may create claims can write
/// any number of expressions.
const RESULTS_MAX: usize = 100_000;
const TEXTS_MAX: usize = 4 << 20;

/// Instances that differ only in where they are.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Kind {
    pub(crate) memory: u64,
    pub(crate) profile: Option<Profile>,
    facts: Facts,
}

impl Kind {
    pub(crate) fn new(device: &Device, memory: u64) -> Self {
        let profile = device
            .attributes
            .get(device_type::PROFILE)
            .and_then(|profile| profile.text());
        let attributes = device.attributes.iter().map(|(name, value)| {
            let value = match value {
                Attribute::Known(value) if COMMON.contains(&name.as_str()) => value.clone(),
                // Not readable, so that a selector which asks for it fails, and the kind may match.
                _ => Value::Version(String::new()),
            };
            (name.clone(), value)
        });
        let capacity = device.capacity.iter();
        Self {
            memory,
            profile: profile.and_then(Profile::parse),
            facts: Facts {
                driver: DRIVER_NAME.to_owned(),
                allow_multiple_allocations: device.allow_multiple_allocations,
                attributes: attributes.collect(),
                capacity: capacity
                    .map(|(name, capacity)| (name.clone(), capacity.value.clone()))
                    .collect(),
            },
        }
    }

    /// An instance of which only the profile is known.
    pub(crate) fn of_profile(profile: Profile) -> Self {
        Self {
            memory: profile.bytes_at_most(),
            profile: Some(profile),
            facts: Facts::default(),
        }
    }

    /// Instances with these profiles, shared and not, that the class may give: what a request may get that matches no published
    /// instance.
    pub(crate) fn named(profiles: &[&str], class: &DeviceClass, known: &Matches, limit: u64) -> Vec<Arc<Self>> {
        let kinds = profiles
            .iter()
            .flat_map(|name| [true, false].map(|is_shared| Arc::new(Self::with_profile(name, is_shared))));
        kinds
            .filter(|kind| known.may_match(kind, class.spec.selectors.iter(), limit))
            .collect()
    }

    /// An instance with this profile, of which selectors can read nothing else.
    fn with_profile(name: &str, is_shared: bool) -> Self {
        let profile = Profile::parse(name);
        let text = |name: &str, value: &str| (name.to_owned(), Value::String(value.to_owned()));
        let attributes = [
            text(device_type::ATTRIBUTE, device_type::MIG),
            text(device_type::PROFILE, name),
        ];
        Self {
            memory: profile.map_or(0, Profile::bytes_at_most),
            profile,
            facts: Facts {
                driver: DRIVER_NAME.to_owned(),
                allow_multiple_allocations: is_shared,
                attributes: attributes.into(),
                ..Facts::default()
            },
        }
    }

    /// The amount of a share of such an instance. Without `memory` it is held whole.
    pub(crate) fn share(&self, memory: Option<u64>, cores: u64) -> Amount {
        let slices = self.profile.map_or(0, |profile| profile.compute_slices);
        Amount::share_of_instance(memory.unwrap_or(self.memory), cores, self.memory, slices)
    }

    /// The most that a request may take of one; `None` if it does not fit. One that is not shared is held whole.
    pub(crate) fn worst(&self, memory: Option<u64>, cores: u64) -> Option<Amount> {
        let fits = memory.is_none_or(|memory| memory <= self.memory);
        let memory = memory.filter(|_| self.facts.allow_multiple_allocations);
        fits.then(|| self.share(memory, cores))
    }
}

/// Evaluates selectors on kinds, and remembers the results: claims that wait are counted again and again.
#[derive(Debug, Default)]
pub(crate) struct Matches {
    cel: Cel,
    results: RefCell<Results>,
}

#[derive(Debug, Default)]
struct Results {
    /// By expression: the kinds, and whether they may match. Equal kinds usually have one pointer.
    known: HashMap<String, Vec<(Arc<Kind>, bool)>>,
    count: usize,
    /// The bytes of the expressions.
    texts: usize,
}

impl Matches {
    /// The cost of all evaluations so far.
    pub(crate) fn cost(&self) -> u64 {
        self.cel.cost()
    }

    /// Returns true unless a selector certainly refuses all instances of this kind. When the cost of all evaluations has
    /// reached the limit, only what is remembered is certain.
    pub(crate) fn may_match<'s>(
        &self,
        kind: &Arc<Kind>,
        selectors: impl Iterator<Item = &'s Selector>,
        limit: u64,
    ) -> bool {
        let mut expressions = selectors.filter_map(|selector| selector.cel.as_ref());
        expressions.all(|selector| self.may_be(&selector.expression, kind, limit))
    }

    fn may_be(&self, expression: &str, kind: &Arc<Kind>, limit: u64) -> bool {
        let mut results = self.results.borrow_mut();
        if let Some(known) = results.known.get(expression) {
            let is_same = |known: &&(Arc<Kind>, bool)| Arc::ptr_eq(&known.0, kind) || known.0 == *kind;
            if let Some((_, may_match)) = known.iter().find(is_same) {
                return *may_match;
            }
        }
        if self.cel.cost() >= limit {
            return true;
        }
        let may_match = self.cel.matches(expression, &kind.facts) != Ok(false);
        results.add(expression, kind, may_match);
        may_match
    }
}

impl Results {
    fn add(&mut self, expression: &str, kind: &Arc<Kind>, may_match: bool) {
        if self.count >= RESULTS_MAX || self.texts >= TEXTS_MAX {
            *self = Self::default();
        }
        self.count += 1;
        match self.known.get_mut(expression) {
            Some(known) => known.push((kind.clone(), may_match)),
            None => {
                self.texts += expression.len();
                self.known
                    .insert(expression.to_owned(), vec![(kind.clone(), may_match)]);
            }
        }
    }
}

/// The profiles that one of the selectors names, if that is all that it says: then no device without one of them matches.
/// `None` if there is no such selector.
pub(crate) fn named_profiles<'s>(selectors: impl IntoIterator<Item = &'s Selector>) -> Option<Vec<&'s str>> {
    let mut expressions = selectors.into_iter().filter_map(|selector| selector.cel.as_ref());
    expressions.find_map(|cel| profiles_of(&cel.expression))
}

/// Reads `device.attributes["dra.vgpu"].profile == "3g.40gb"`, or `in ["3g.40gb", "4g.40gb"]`. Nothing else is read: in
/// any other text a quoted name may be there to mislead.
fn profiles_of(expression: &str) -> Option<Vec<&str>> {
    let rest = expression.trim().strip_prefix("device.attributes[")?;
    let (domain, rest) = quoted(rest)?;
    let rest = rest.strip_prefix("].profile")?;
    let compared = rest.trim_start();
    let profiles = match compared.strip_prefix("==") {
        Some(one) => {
            let (profile, rest) = quoted(one.trim_start())?;
            rest.is_empty().then(|| vec![profile])?
        }
        None => {
            let list = compared.strip_prefix("in").filter(|_| compared.len() < rest.len())?;
            let list = list.trim_start().strip_prefix('[')?.strip_suffix(']')?;
            let names = list.split(',').map(|item| match quoted(item.trim())? {
                (name, "") => Some(name),
                _ => None,
            });
            names.collect::<Option<Vec<_>>>()?
        }
    };
    let are_profiles = profiles.iter().all(|name| Profile::parse(name).is_some());
    (domain == DRIVER_NAME && are_profiles && profiles.len() <= PROFILES_MAX).then_some(profiles)
}

/// A text in quotes without escapes, and what follows it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|quote| matches!(quote, '"' | '\''))?;
    let (inner, rest) = text[1..].split_once(quote)?;
    (!inner.contains('\\')).then_some((inner, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_a_selector_that_says_nothing_else_names_profiles() {
        const OF: &str = "device.attributes['dra.vgpu'].profile";
        for (selector, named) in [
            (format!("{OF} == \"3g.40gb\""), Some(vec!["3g.40gb"])),
            (format!(" {OF}=='1g.10gb+me'\n"), Some(vec!["1g.10gb+me"])),
            (
                format!("{OF} in ['2g.20gb', \"4g.40gb\"]"),
                Some(vec!["2g.20gb", "4g.40gb"]),
            ),
            (format!("{OF} == '1g.10gb' || true"), None),
            (format!("{OF} == '1g.10gb' // only"), None),
            (format!("{OF} == ('1' + 'g.10gb')"), None),
            (format!("!({OF} == '1g.10gb')"), None),
            (format!("{OF} != '1g.10gb'"), None),
            (format!("{OF} == 'none'"), None),
            (format!("{OF} == '1g.10gb.\\x41'"), None),
            (format!("{OF} in ['1g.10gb'] + ['7g.80gb']"), None),
            (format!("{OF} in ['1g.10gb', 'none']"), None),
            ("device.attributes['other'].profile == '1g.10gb'".to_owned(), None),
            ("'1g.10gb' == '1g.10gb'".to_owned(), None),
        ] {
            assert_eq!(profiles_of(&selector), named, "{selector}");
        }
    }

    #[test]
    fn a_result_is_remembered_and_over_the_limit_all_may_match() {
        let kind = Arc::new(Kind::with_profile("1g.10gb", false));
        let selectors: Vec<Selector> =
            serde_json::from_value(json!([{"cel": {"expression": "device.allowMultipleAllocations"}}])).unwrap();
        let known = Matches::default();
        assert!(known.may_match(&kind, selectors.iter(), 0), "nothing is evaluated");
        assert_eq!(known.cost(), 0);
        assert!(!known.may_match(&kind, selectors.iter(), 1));
        let cost = known.cost();
        assert!(cost > 0);
        let same = Arc::new(Kind::with_profile("1g.10gb", false));
        assert!(!known.may_match(&same, selectors.iter(), 0), "it is remembered");
        let other = Arc::new(Kind::with_profile("1g.10gb", true));
        assert!(known.may_match(&other, selectors.iter(), u64::MAX));
        assert!(known.cost() > cost, "another kind is evaluated");
    }

    #[test]
    fn results_are_dropped_when_there_are_too_many() {
        let kind = Arc::new(Kind::with_profile("1g.10gb", false));
        let mut results = Results::default();
        let long = "x".repeat(TEXTS_MAX);
        results.add(&long, &kind, true);
        results.add("y", &kind, true);
        assert_eq!((results.known.len(), results.count, results.texts), (1, 1, 1));
    }
}
