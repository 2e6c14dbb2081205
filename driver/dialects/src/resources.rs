//! One container's resources, read strictly.
//!
//! A webhook sees values that the API server's own validation would refuse later. The translation removes the fields,
//! so it must refuse such values itself; otherwise the mistake would disappear together with its field: a fraction, a
//! negative number, a request without its limit.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Container;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use vgpu_api::request::{MEMORY_MAX, MEMORY_MIN, MEMORY_STEP};
use vgpu_quantity::{WholeError, format_bytes, whole};

use crate::names::ResourceNames;
use crate::problem::{Problem, Warning};
use crate::request::{COUNT_MAX, Memory};

/// From this number on, MiB are read as bytes: `3000M` reaches admission as `3G`, and no GPU has a TiB.
const BYTES_FROM: u64 = 1 << 20;

/// The limit of problems, and of warnings, that are reported for a pod. A pod of 3 MiB may have thousands, and each new
/// one is compared with those before.
const MOST_FINDINGS: usize = 64;

/// What a translation finds on its way: problems refuse the pod, warnings do not.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) problems: Vec<Problem>,
    pub(crate) warnings: Vec<Warning>,
}

impl Findings {
    /// Adds a problem, unless it is known: several containers may find the same one in an annotation.
    pub(crate) fn refuse(&mut self, problem: Problem) {
        if self.problems.len() < MOST_FINDINGS && !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    pub(crate) fn warn(&mut self, field: impl Into<String>, text: impl Into<String>) {
        let warning = Warning::new(field, text);
        if self.warnings.len() < MOST_FINDINGS && !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }
}

/// Bytes of memory of one GPU, rounded up to 1Mi as Kubernetes rounds those of a claim; `None` is an overflow.
///
/// # Errors
/// What to do about an amount that no share can have.
pub(crate) fn memory_of(bytes: Option<u64>) -> Result<Memory, &'static str> {
    match bytes {
        Some(bytes) if bytes < MEMORY_MIN => Err("is below the minimum of 64Mi for each GPU; ask for more"),
        Some(bytes) if bytes <= MEMORY_MAX => Ok(Memory::Bytes(bytes.next_multiple_of(MEMORY_STEP))),
        _ => Err("is more than any GPU has; ask for at most 10Ti for each GPU"),
    }
}

/// A container, with its path in the pod.
pub(crate) struct Resources<'a> {
    /// `spec.containers[0]`.
    pub(crate) path: String,
    pub(crate) container: &'a Container,
    pub(crate) names: &'a ResourceNames,
}

impl<'a> Resources<'a> {
    fn map(&self, limits: bool) -> Option<&'a BTreeMap<String, Quantity>> {
        let resources = self.container.resources.as_ref()?;
        if limits {
            resources.limits.as_ref()
        } else {
            resources.requests.as_ref()
        }
    }

    /// Returns the entry of a resource, under its own name or a name that the cluster chose.
    fn entry(&self, limits: bool, key: &str) -> Option<(&'a str, &'a Quantity)> {
        let map = self.map(limits)?;
        let entry = |name: &str| map.get_key_value(name).map(|(name, value)| (name.as_str(), value));
        entry(key).or_else(|| self.names.chosen(&[key]).find_map(entry))
    }

    /// Returns a resource's name in the container.
    pub(crate) fn name<'k>(&self, key: &'k str) -> &'k str
    where
        'a: 'k,
    {
        let entry = self.entry(true, key).or_else(|| self.entry(false, key));
        entry.map_or(key, |(name, _)| name)
    }

    /// The path of a resource's limit.
    pub(crate) fn at(&self, key: &str) -> String {
        self.place(self.name(key))
    }

    /// The path of the limit with exactly this name.
    pub(crate) fn place(&self, name: &str) -> String {
        format!("{}.resources.limits[{name}]", self.path)
    }

    /// The value of the limit with exactly this name.
    pub(crate) fn value(&self, name: &str) -> &'a str {
        let limit = self.map(true).and_then(|map| map.get(name));
        limit.map_or("", |value| value.0.as_str())
    }

    /// Pairs of names in the container for the same resource.
    pub(crate) fn doubles(&self) -> Vec<(&'a str, &'a str)> {
        let mut first: BTreeMap<&str, &'a str> = BTreeMap::new();
        let named = self.keys().filter_map(|key| {
            let known = *first.entry(self.names.known(key)).or_insert(key);
            (known != key).then_some((known, key))
        });
        named.collect()
    }

    /// The names of all resources, including those in `requests`.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let limits = self.map(true).into_iter().flatten();
        let requests = self.map(false).into_iter().flatten();
        limits.chain(requests).map(|(key, _)| key.as_str())
    }

    /// Returns true if the container has any of these resources, and not with the value 0.
    pub(crate) fn asks_for(&self, keys: &[&str]) -> bool {
        let asks = |limits: bool| {
            let mut entries = keys.iter().filter_map(|key| self.entry(limits, key));
            entries.any(|(_, value)| whole(&value.0) != Ok(0))
        };
        asks(true) || asks(false)
    }

    /// Returns true if the container has a resource that `asks`, by its dialect's own name, and not with the value 0.
    pub(crate) fn asks_where(&self, asks: impl Fn(&str) -> bool) -> bool {
        let limits = self.map(true).into_iter().flatten();
        let mut all = limits.chain(self.map(false).into_iter().flatten());
        all.any(|(name, value)| asks(self.names.known(name)) && whole(&value.0) != Ok(0))
    }

    /// The entries of limits or requests that are chosen, by their dialect's own names.
    pub(crate) fn entries(&self, limits: bool, is_chosen: impl Fn(&str) -> bool) -> BTreeMap<String, String> {
        let map = self.map(limits).into_iter().flatten();
        map.filter(|(key, _)| is_chosen(self.names.known(key)))
            .map(|(key, value)| (key.clone(), value.0.clone()))
            .collect()
    }

    /// The value of a resource as the pod has it.
    pub(crate) fn written(&self, key: &str) -> &'a str {
        self.entry(true, key).map_or("", |(_, value)| value.0.as_str())
    }

    /// A resource's number. `None` if the resource is missing, or after a problem.
    pub(crate) fn amount(&self, key: &str, findings: &mut Findings) -> Option<u64> {
        let limit = self.entry(true, key).map(|(_, value)| value);
        let request = self.entry(false, key).map(|(_, value)| value);
        let Some(limit) = limit else {
            if let Some(request) = request {
                findings.refuse(Problem::invalid(
                    format!("{}.resources.requests[{}]", self.path, self.name(key)),
                    &request.0,
                    "has no limit; write the same value under limits, as for every extended resource",
                ));
            }
            return None;
        };
        let number = match whole(&limit.0) {
            Ok(number) => number,
            Err(why) => {
                let advice = match why {
                    // The error's own advice would be a number with a unit, which most of these resources do not have.
                    WholeError::Empty | WholeError::NotANumber { .. } => "must be a whole number".to_owned(),
                    _ => format!("must be a whole number ({why})"),
                };
                findings.refuse(Problem::invalid(self.at(key), &limit.0, advice));
                return None;
            }
        };
        if request.is_some_and(|request| whole(&request.0) != Ok(number)) {
            findings.refuse(Problem::invalid(
                format!("{}.resources.requests[{}]", self.path, self.name(key)),
                request.map(|request| request.0.clone()).unwrap_or_default(),
                format!("must be equal to the limit {}; remove it, or write the same", limit.0),
            ));
            return None;
        }
        match u64::try_from(number) {
            Ok(number) => Some(number),
            Err(_) => {
                findings.refuse(Problem::invalid(self.at(key), &limit.0, "must not be negative"));
                None
            }
        }
    }

    /// MiB of memory, or bytes if the number is too large for MiB. 0 is the same as not given.
    pub(crate) fn mebibytes(&self, key: &str, findings: &mut Findings) -> Option<Memory> {
        let number = self.amount(key, findings).filter(|number| *number > 0)?;
        if number < BYTES_FROM {
            return self.bytes(key, Some(number << 20), findings);
        }
        let memory = self.bytes(key, Some(number), findings);
        if let Some(Memory::Bytes(bytes)) = memory {
            findings.warn(
                self.at(key),
                format!(
                    "{} is too large for MiB and is read as bytes: {}; write the number of MiB without a unit",
                    self.written(key),
                    format_bytes(bytes)
                ),
            );
        }
        memory
    }

    /// The [`memory_of`] a resource. `None` after a problem.
    pub(crate) fn bytes(&self, key: &str, bytes: Option<u64>, findings: &mut Findings) -> Option<Memory> {
        match memory_of(bytes) {
            Ok(memory) => Some(memory),
            Err(advice) => {
                findings.refuse(Problem::invalid(self.at(key), self.written(key), advice));
                None
            }
        }
    }

    /// How many GPUs; `None` after a problem, and for 0.
    pub(crate) fn count(&self, key: &str, count: u64, findings: &mut Findings) -> Option<u32> {
        if count > u64::from(COUNT_MAX) {
            findings.refuse(Problem::invalid(
                self.at(key),
                self.written(key),
                format!("is {count} GPUs; a container can have at most {COUNT_MAX}"),
            ));
            return None;
        }
        u32::try_from(count).ok().filter(|count| *count > 0)
    }
}
