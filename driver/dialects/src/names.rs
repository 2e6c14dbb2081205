//! Resource names that a cluster chose: for example, HAMi's chart lets its administrator rename `nvidia.com/gpu` to
//! `nvidia.com/vgpu`. Pods then ask under the chosen name. It is read like the original name, and findings name the
//! field as it is in the pod.

use std::collections::BTreeMap;

use vgpu_quantity::quoted;

/// Chosen names, each with the dialect's own name that it replaces. The dialect's own name is still read as well.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResourceNames(BTreeMap<String, String>);

/// Why a list of names is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResourceNamesError {
    #[error("{item} is not CHOSEN=NAME, for example nvidia.com/vgpu=nvidia.com/gpu", item = quoted(.0))]
    Form(String),
    #[error(
        "{chosen} is not a name of an extended resource; write a domain, `/` and a name, for example nvidia.com/vgpu",
        chosen = quoted(.0)
    )]
    NotExtended(String),
    #[error("{chosen} is a dialect's own name already; give the name that the cluster chose instead of it", chosen = quoted(.0))]
    OwnName(String),
    #[error("{name} is no resource of a dialect; write one of {known}", name = quoted(.0), known = .1.join(", "))]
    Unknown(String, Vec<&'static str>),
    #[error("{chosen} stands for two names; write it once", chosen = quoted(.0))]
    Twice(String),
}

impl ResourceNames {
    /// Reads `nvidia.com/vgpu=nvidia.com/gpu,...`; empty for no chosen names. `own` has the dialects' own names.
    pub(crate) fn parse(text: &str, own: &[&'static str]) -> Result<Self, ResourceNamesError> {
        let mut names = BTreeMap::new();
        for item in text.split(',').filter(|_| !text.is_empty()) {
            let Some((chosen, known)) = item.split_once('=') else {
                return Err(ResourceNamesError::Form(item.to_owned()));
            };
            if !is_extended(chosen) {
                return Err(ResourceNamesError::NotExtended(chosen.to_owned()));
            }
            if own.contains(&chosen) {
                return Err(ResourceNamesError::OwnName(chosen.to_owned()));
            }
            if !own.contains(&known) {
                return Err(ResourceNamesError::Unknown(known.to_owned(), own.to_vec()));
            }
            if names.insert(chosen.to_owned(), known.to_owned()).is_some() {
                return Err(ResourceNamesError::Twice(chosen.to_owned()));
            }
        }
        Ok(Self(names))
    }

    /// Returns the dialect's own name for a resource: `name` itself, unless the cluster chose it.
    #[must_use]
    pub fn known<'a>(&'a self, name: &'a str) -> &'a str {
        self.0.get(name).map_or(name, String::as_str)
    }

    /// The chosen names that stand for one of these.
    pub fn chosen<'a>(&'a self, of: &'a [&str]) -> impl Iterator<Item = &'a str> {
        let all = self.0.iter();
        all.filter(move |(_, known)| of.contains(&known.as_str()))
            .map(|(chosen, _)| chosen.as_str())
    }
}

/// Returns true for a name that Kubernetes accepts for an extended resource. Names with `kubernetes.io/` are its own.
fn is_extended(name: &str) -> bool {
    let plain = |text: &str, more: &[u8]| {
        let inside = |byte: u8| byte.is_ascii_alphanumeric() || more.contains(&byte);
        let bytes = text.as_bytes();
        bytes.iter().all(|byte| inside(*byte))
            && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
            && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
    };
    name.split_once('/').is_some_and(|(domain, name)| {
        domain.len() <= 253
            && name.len() <= 63
            && domain.split('.').all(|label| plain(label, b"-"))
            && !domain.bytes().any(|byte| byte.is_ascii_uppercase())
            && plain(name, b"-_.")
            && !format!(".{domain}").ends_with(".kubernetes.io")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &[&str] = &["nvidia.com/gpu", "nvidia.com/gpumem"];

    #[test]
    fn a_list_says_what_each_name_stands_for() {
        let text = "nvidia.com/vgpu=nvidia.com/gpu,example.com/GPU_mem=nvidia.com/gpumem";
        let names = ResourceNames::parse(text, OWN).unwrap();
        assert_eq!(names.known("nvidia.com/vgpu"), "nvidia.com/gpu");
        assert_eq!(names.known("example.com/GPU_mem"), "nvidia.com/gpumem");
        assert_eq!(names.known("nvidia.com/gpu"), "nvidia.com/gpu");
        assert_eq!(
            names.chosen(&["nvidia.com/gpu"]).collect::<Vec<_>>(),
            ["nvidia.com/vgpu"]
        );
        assert_eq!(ResourceNames::parse("", OWN), Ok(ResourceNames::default()));
    }

    #[test]
    fn a_mistake_names_the_value_and_what_to_write() {
        for (text, said) in [
            ("nvidia.com/vgpu", "\"nvidia.com/vgpu\" is not CHOSEN=NAME, for example"),
            (
                "cpu=nvidia.com/gpu",
                "\"cpu\" is not a name of an extended resource; write a domain",
            ),
            ("=nvidia.com/gpu", "\"\" is not a name of an extended resource"),
            ("Nvidia.com/x=nvidia.com/gpu", "is not a name of an extended resource"),
            (
                "deviceclass.resource.kubernetes.io/x=nvidia.com/gpu",
                "is not a name of an extended resource",
            ),
            (
                "nvidia.com/gpumem=nvidia.com/gpu",
                "\"nvidia.com/gpumem\" is a dialect's own name already",
            ),
            (
                "nvidia.com/vgpu=nvidia.com/gpux",
                "\"nvidia.com/gpux\" is no resource of a dialect; write one of nvidia.com/gpu, ",
            ),
            (
                "a.b/c=nvidia.com/gpu,a.b/c=nvidia.com/gpumem",
                "\"a.b/c\" stands for two names; write it once",
            ),
        ] {
            let error = ResourceNames::parse(text, OWN).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
