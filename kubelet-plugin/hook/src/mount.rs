//! A mount, as a line of /proc/<pid>/mountinfo: only this shows the source of a tmpfs, which a pod cannot choose for its volumes.

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub id: u64,
    pub parent: u64,
    /// The folder of the file system that is mounted.
    pub root: String,
    /// The mount point, with mountinfo's escapes.
    pub point: String,
    pub kind: String,
    pub source: String,
}

/// Returns the mounts of a mountinfo, in its order: a later one at the same place hides an earlier one.
#[must_use]
pub fn parse(text: &str) -> Vec<Mount> {
    text.lines().filter_map(Mount::parse).collect()
}

impl Mount {
    /// Parses a line `36 35 98:0 /root /point rw,noatime master:1 - tmpfs source rw`, with any number of fields before
    /// the dash.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        let (place, system) = line.split_once(" - ")?;
        let mut place = place.split(' ');
        let mut system = system.split(' ');
        let mut number = || place.next()?.parse().ok();
        let (id, parent) = (number()?, number()?);
        let root = place.nth(1)?.to_owned();
        let point = place.next()?.to_owned();
        Some(Self {
            id,
            parent,
            root,
            point,
            kind: system.next()?.to_owned(),
            source: system.next()?.to_owned(),
        })
    }

    /// Returns true for a tmpfs that the node mounted with this source.
    #[must_use]
    pub fn is_tmpfs_of(&self, source: &str) -> bool {
        self.kind == "tmpfs" && self.source == source
    }

    /// The mount point, without escapes.
    #[must_use]
    pub fn place(&self) -> String {
        let mut parts = self.point.split('\\');
        let start = parts.next().unwrap_or_default().to_owned();
        // The kernel writes blanks and backslashes as three octal digits.
        parts.fold(start, |place, part| {
            let escaped = part.split_at_checked(3);
            let escaped = escaped.and_then(|(digits, rest)| Some((u8::from_str_radix(digits, 8).ok()?, rest)));
            match escaped {
                Some((byte, rest)) => place + char::from(byte).encode_utf8(&mut [0; 4]) + rest,
                None => place + "\\" + part,
            }
        })
    }

    /// The mount point relative to that of `other`.
    #[must_use]
    pub fn below(&self, other: &Self) -> &str {
        let rest = self.point.strip_prefix(&other.point).unwrap_or(&self.point);
        rest.trim_start_matches('/')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_has_no_escapes() {
        for (point, place) in [
            ("/r", "/r"),
            (r"/a\040b\011c\012d\134e", "/a b\tc\nd\\e"),
            (r"\040\134040", r" \040"),
            (r"/no\04", r"/no\04"),
            (r"/no\999\", r"/no\999\"),
        ] {
            let line = format!("33 32 0:53 / {point} ro - tmpfs vgpu rw");
            assert_eq!(Mount::parse(&line).expect("a mount").place(), place);
        }
    }
}
