//! Instances of GPUs in MIG mode, by their profiles' names.

use serde::{Deserialize, Serialize};
use vgpu_api::Profile;

/// How the names of these resources begin. A profile follows, in which `+` is written as a point.
pub(crate) const PREFIX: &str = "nvidia.com/mig-";

/// Which instances a request may get.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Instance {
    /// Those with this profile, as the driver names it: `1g.10gb+me`.
    Profile(String),
    /// The smallest of those that are there with at least this much memory, in bytes; if none is, any.
    AtLeast(u64),
}

/// Returns the profile for which a resource asks: `1g.10gb+me` for `nvidia.com/mig-1g.10gb.me`. `None` for any other
/// resource.
pub(crate) fn profile_of(resource: &str) -> Option<String> {
    let written = resource.strip_prefix(PREFIX)?;
    let end = written.find("gb")? + 2;
    let (size, attribute) = written.split_at(end);
    let profile = match attribute.split_at_checked(1) {
        None => size.to_owned(),
        Some((".", name)) if is_name(name) => format!("{size}+{name}"),
        Some(("-", name)) if is_name(name) => format!("{size}-{name}"),
        Some(_) => return None,
    };
    is_profile(&profile).then_some(profile)
}

/// Returns true for a profile in the form in which the driver names it.
pub(crate) fn is_profile(profile: &str) -> bool {
    let is_known = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ".+-".contains(c);
    profile.len() <= 63 && profile.contains("g.") && profile.chars().all(is_known) && Profile::parse(profile).is_some()
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_lowercase() || c == '.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_names_a_profile() {
        for (resource, profile) in [
            ("nvidia.com/mig-1g.10gb", Some("1g.10gb")),
            ("nvidia.com/mig-1g.10gb.me", Some("1g.10gb+me")),
            ("nvidia.com/mig-1g.24gb.me.all", Some("1g.24gb+me.all")),
            ("nvidia.com/mig-1g.24gb-me", Some("1g.24gb-me")),
            ("nvidia.com/mig-1c.3g.40gb", Some("1c.3g.40gb")),
            ("nvidia.com/mig-1g.10gbx", None),
            ("nvidia.com/mig-1g.10gb.", None),
            ("nvidia.com/mig-1g-10gb", None),
            ("nvidia.com/mig-small", None),
            ("nvidia.com/mig-1g.10gb.Me", None),
            ("nvidia.com/gpu", None),
        ] {
            assert_eq!(profile_of(resource).as_deref(), profile, "{resource}");
        }
    }
}
