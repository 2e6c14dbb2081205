//! Validates the names in a spec: kinds and device names. The rules are those of the CDI
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
    /// digits, `-`, `_` and, in the vendor, `.` between. The vendor is part of file names, so it has no `/`; a class with a
    /// `.` would need a later version of CDI.
    pub fn parse(text: &str) -> Option<Self> {
        let (vendor, class) = text.split_once('/')?;
        (is_part(vendor) && is_part(class) && !class.contains('.')).then(|| Self {
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
        for good in ["dra.vgpu/claim", "a/b", "Nvidia.com/gpu1", "a-b_c/d-e_f"] {
            assert_eq!(Kind::parse(good).map(|kind| kind.to_string()).as_deref(), Some(good));
        }
        for bad in [
            "", "/", "a", "a/", "/b", "a/b/c", "1a/b", "a/1b", "a-/b", "a/b.", "a/b.c", "a b/c", "ä/b", "a/b\n",
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
}
