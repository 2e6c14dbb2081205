//! Validates the names in a spec: kinds, device names, annotation keys. The rules are those of the CDI
//! specification's text, which its JSON schema does not check.

use std::fmt;

/// `vendor/class`, as in `dra.vgpu/claim`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Kind {
    vendor: String,
    class: String,
}

impl Kind {
    /// Parses a kind. Both parts start with a letter, end with a letter or digit and have only letters,
    /// digits, `-`, `_` and `.` between. The vendor is part of file names, so it has no `/`.
    pub fn parse(text: &str) -> Option<Self> {
        let (vendor, class) = text.split_once('/')?;
        (is_part(vendor) && is_part(class)).then(|| Self {
            vendor: vendor.to_owned(),
            class: class.to_owned(),
        })
    }

    pub fn vendor(&self) -> &str {
        &self.vendor
    }

    pub fn class(&self) -> &str {
        &self.class
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.vendor, self.class)
    }
}

fn is_part(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic()) && is_dashed(text, "-_.")
}

/// A device's name: letters, digits, `-`, `_`, `.`, `:`; a letter or digit at both ends.
pub(crate) fn is_device_name(text: &str) -> bool {
    is_dashed(text, "-_.:")
}

/// Returns true for an annotation key: a Kubernetes qualified name, `[prefix/]name`. CDI compares prefixes in
/// lower case, so a prefix in upper case would be a different key for some readers and is refused.
pub(crate) fn is_annotation_key(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => is_subdomain(prefix) && is_annotation_name(name),
        None => is_annotation_name(text),
    }
}

fn is_annotation_name(text: &str) -> bool {
    text.len() <= 63 && is_dashed(text, "-_.")
}

fn is_subdomain(text: &str) -> bool {
    text.len() <= 253
        && text
            .split('.')
            .all(|label| is_dashed(label, "-") && !label.contains(|c: char| c.is_ascii_uppercase()))
}

/// Returns true if `text` has a letter or digit at both ends, and letters, digits and `inner` between.
fn is_dashed(text: &str, inner: &str) -> bool {
    let ends = |c: char| c.is_ascii_alphanumeric();
    text.starts_with(ends) && text.ends_with(ends) && text.chars().all(|c| ends(c) || inner.contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds() {
        for good in ["dra.vgpu/claim", "a/b", "Nvidia.com/gpu.1", "a-b_c/d-e_f"] {
            assert_eq!(Kind::parse(good).map(|kind| kind.to_string()).as_deref(), Some(good));
        }
        for bad in [
            "", "/", "a", "a/", "/b", "a/b/c", "1a/b", "a/1b", "a-/b", "a/b.", "a b/c", "ä/b", "a/b\n",
        ] {
            assert_eq!(Kind::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn device_names() {
        for good in ["0", "gpu0", "7f0e-1-2", "a:b", "GPU.1_2"] {
            assert!(is_device_name(good), "{good:?}");
        }
        for bad in ["", "-a", "a-", "a b", "a=b", "a/b", ":", "ä"] {
            assert!(!is_device_name(bad), "{bad:?}");
        }
    }

    #[test]
    fn annotation_keys() {
        let long = "a".repeat(63);
        for good in ["a", "A.b-c_d", "dra.vgpu/claim", "x/Y", &long] {
            assert!(is_annotation_key(good), "{good:?}");
        }
        let longer = "a".repeat(64);
        let prefix = format!("{}/a", "a.".repeat(127) + "aa");
        for bad in [
            "", "/a", "a/", "a/b/c", "A/b", "a_b/c", "-a", "a..b/c", "a b", "a$", &longer, &prefix,
        ] {
            assert!(!is_annotation_key(bad), "{bad:?}");
        }
    }
}
