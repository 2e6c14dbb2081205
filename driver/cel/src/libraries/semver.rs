//! Semantic versions, parsed as by Kubernetes' Go library.

use std::cmp::Ordering;
use std::sync::Arc;

#[derive(Debug, Clone)]
pub(crate) struct Version {
    pub(crate) major: u64,
    pub(crate) minor: u64,
    pub(crate) patch: u64,
    /// The parts after `-`. Parts after `+` are not compared, so they are not stored.
    pre: Option<Arc<[Pre]>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Pre {
    Number(u64),
    Text(Box<str>),
}

impl Version {
    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        if text.is_empty() {
            return Err("version string empty");
        }
        let mut parts = text.splitn(3, '.');
        let (Some(major), Some(minor), Some(rest)) = (parts.next(), parts.next(), parts.next()) else {
            return Err("no major.minor.patch elements found");
        };
        let (rest, build) = match rest.split_once('+') {
            Some((rest, build)) => (rest, Some(build)),
            None => (rest, None),
        };
        let (patch, pre) = match rest.split_once('-') {
            Some((patch, pre)) => (patch, Some(pre)),
            None => (rest, None),
        };
        let version = Self {
            major: number(major)?,
            minor: number(minor)?,
            patch: number(patch)?,
            pre: match pre {
                Some(pre) => Some(pre.split('.').map(prerelease).collect::<Result<_, _>>()?),
                None => None,
            },
        };
        for part in build.into_iter().flat_map(|build| build.split('.')) {
            if part.is_empty() || !part.bytes().all(allowed) {
                return Err("invalid build metadata");
            }
        }
        Ok(version)
    }

    /// Accepts a leading v, leading zeros and missing parts.
    pub(crate) fn parse_tolerant(text: &str) -> Result<Self, &'static str> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let mut parts: Vec<String> = text.splitn(3, '.').map(without_zeros).collect();
        if parts.len() < 3 {
            if parts.last().is_some_and(|last| last.contains(['+', '-'])) {
                return Err("short version cannot contain PreRelease/Build meta data");
            }
            parts.resize(3, "0".to_owned());
        }
        Self::parse(&parts.join("."))
    }

    /// The order of versions; text after `+` is ignored.
    pub(crate) fn cmp_precedence(&self, other: &Self) -> Ordering {
        (self.major, self.minor, self.patch)
            .cmp(&(other.major, other.minor, other.patch))
            .then_with(|| match (&self.pre, &other.pre) {
                (None, None) => Ordering::Equal,
                (None, Some(_)) => Ordering::Greater,
                (Some(_), None) => Ordering::Less,
                (Some(a), Some(b)) => compare_prereleases(a, b),
            })
    }
}

fn without_zeros(part: &str) -> String {
    if part.len() < 2 {
        return part.to_owned();
    }
    let trimmed = part.trim_start_matches('0');
    if trimmed.starts_with(|c: char| c.is_ascii_digit()) {
        trimmed.to_owned()
    } else {
        format!("0{trimmed}")
    }
}

fn number(text: &str) -> Result<u64, &'static str> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err("invalid character(s) found in a version number");
    }
    if text.len() > 1 && text.starts_with('0') {
        return Err("a version number must not contain leading zeroes");
    }
    text.parse().map_err(|_| "a version number is out of range")
}

fn allowed(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'-'
}

fn prerelease(text: &str) -> Result<Pre, &'static str> {
    if text.is_empty() || !text.bytes().all(allowed) {
        return Err("invalid prerelease");
    }
    if text.bytes().all(|b| b.is_ascii_digit()) {
        return number(text).map(Pre::Number);
    }
    Ok(Pre::Text(text.into()))
}

fn compare_prereleases(a: &[Pre], b: &[Pre]) -> Ordering {
    for (a, b) in a.iter().zip(b) {
        let order = match (a, b) {
            (Pre::Number(a), Pre::Number(b)) => a.cmp(b),
            (Pre::Text(a), Pre::Text(b)) => a.cmp(b),
            (Pre::Number(_), Pre::Text(_)) => Ordering::Less,
            (Pre::Text(_), Pre::Number(_)) => Ordering::Greater,
        };
        if order.is_ne() {
            return order;
        }
    }
    a.len().cmp(&b.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_that_of_the_standard() {
        let ordered = [
            "1.0.0-alpha",
            "1.0.0-alpha.1",
            "1.0.0-alpha.beta",
            "1.0.0-beta",
            "1.0.0-beta.2",
            "1.0.0-beta.11",
            "1.0.0-rc.1",
            "1.0.0",
            "1.0.1",
            "1.2.0",
            "10.0.0",
        ];
        for pair in ordered.windows(2) {
            let (a, b) = (Version::parse(pair[0]).unwrap(), Version::parse(pair[1]).unwrap());
            assert_eq!(a.cmp_precedence(&b), Ordering::Less, "{pair:?}");
        }
        let (a, b) = (Version::parse("1.0.0+a").unwrap(), Version::parse("1.0.0+b").unwrap());
        assert_eq!(a.cmp_precedence(&b), Ordering::Equal);
    }

    #[test]
    fn only_the_tolerant_reading_mends_a_version() {
        for text in ["v1.2.3", "1.2", "01.2.3", "1.2.03", "1", "v01.02"] {
            assert!(Version::parse(text).is_err(), "{text}");
            assert!(Version::parse_tolerant(text).is_ok(), "{text}");
        }
        for text in ["", "1.2.3-", "1.2.3+", "1.2.3-a..b", "1.2-rc.1", "x.1.2", "1.2.3-01"] {
            assert!(Version::parse(text).is_err(), "{text}");
        }
    }
}
