//! Kinds of instances of GPUs in MIG mode.

use vgpu_allocator::model::{Attribute, Device, Selector};
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

/// A profile that no board has.
const OTHER_PROFILE: &str = "another";
/// The most profiles of a request's selectors that are looked at.
const PROFILES_MAX: usize = 32;

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

    /// Instances with the profiles that the selectors name, shared and not, if these selectors refuse all other profiles:
    /// what a request may get that matches no published instance.
    pub(crate) fn named<'a>(selectors: &(impl Iterator<Item = &'a Selector> + Clone), cel: &Cel) -> Vec<Self> {
        let refuses = |kind: &Self| !kind.may_match(selectors.clone(), cel);
        let others = [true, false].map(|is_shared| Self::with_profile(OTHER_PROFILE, is_shared));
        if !others.iter().all(refuses) {
            return Vec::new();
        }
        let expressions = selectors.clone().filter_map(|selector| selector.cel.as_ref());
        let texts = expressions.flat_map(|cel| cel.expression.split(['"', '\'']));
        let profiles = texts.filter(|text| Profile::parse(text).is_some()).take(PROFILES_MAX);
        let kinds = profiles.flat_map(|name| [true, false].map(|is_shared| Self::with_profile(name, is_shared)));
        kinds.filter(|kind| !refuses(kind)).collect()
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

    /// Returns true unless a selector certainly refuses all instances of this kind.
    pub(crate) fn may_match<'a>(&self, selectors: impl Iterator<Item = &'a Selector>, cel: &Cel) -> bool {
        let mut expressions = selectors.filter_map(|selector| selector.cel.as_ref());
        expressions.all(|selector| cel.matches(&selector.expression, &self.facts) != Ok(false))
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
