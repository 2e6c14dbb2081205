//! The name of an instance's profile: `3g.40gb`, `1g.10gb+me`, `1c.3g.40gb`. Names and sizes vary by driver and board, so
//! nothing here is a table of them.

/// The meaning of a profile's name. The memory is rounded: an instance `3g.40gb` has 39.5 GiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profile {
    pub compute_slices: u64,
    pub gigabytes: u64,
}

/// More than any board has. A larger number is no profile.
const SLICES_MAX: u64 = 64;
const GIGABYTES_MAX: u64 = 10 << 10;

impl Profile {
    /// Reads a profile's name, with points or, as in a device's name, with hyphens. Attributes after it are ignored.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let mut parts = name.split(['.', '-', '+']).peekable();
        // The part of the instance that a compute instance has.
        parts.next_if(|part| number(part, "c").is_some());
        let compute_slices = number(parts.next()?, "g").filter(|slices| (1..=SLICES_MAX).contains(slices))?;
        let gigabytes = number(parts.next()?, "gb").filter(|size| (1..=GIGABYTES_MAX).contains(size))?;
        Some(Self {
            compute_slices,
            gigabytes,
        })
    }

    /// Reads the profile in the name of an instance's device: `mig-<8 digits of its UUID>-<profile>-<first slice>`; of an
    /// instance that a claim makes, `mig-of-<8 digits of its GPU's UUID>-<profile>-<first slice>`.
    #[must_use]
    pub fn of_device(device: &str) -> Option<Self> {
        let rest = device.strip_prefix("mig-")?;
        let (_, profile) = rest.strip_prefix("of-").unwrap_or(rest).split_once('-')?;
        Self::parse(profile)
    }

    /// At least the memory of such an instance, in bytes.
    #[must_use]
    pub const fn bytes_at_most(self) -> u64 {
        self.gigabytes << 30
    }
}

fn number(part: &str, unit: &str) -> Option<u64> {
    let digits = part.strip_suffix(unit)?;
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_names_its_slices_and_its_size() {
        for (name, says) in [
            ("3g.40gb", Some((3, 40))),
            ("1g.10gb+me", Some((1, 10))),
            ("1g.24gb+me.all", Some((1, 24))),
            ("1g.24gb-me", Some((1, 24))),
            ("1c.3g.40gb", Some((3, 40))),
            ("7g.141gb", Some((7, 141))),
            ("3g-40gb", Some((3, 40))),
            ("g.40gb", None),
            ("3g", None),
            ("0g.40gb", None),
            ("+3g.40gb", None),
            ("3g.99999999999999999999gb", None),
            ("", None),
        ] {
            let read = Profile::parse(name).map(|profile| (profile.compute_slices, profile.gigabytes));
            assert_eq!(read, says, "{name}");
        }
        let of_device = Profile::of_device("mig-0a1b2c3d-3g-40gb-4").map(|profile| profile.bytes_at_most() >> 30);
        assert_eq!(of_device, Some(40));
        assert_eq!(
            Profile::of_device("mig-of-3f8a1c20-3g-40gb-4"),
            Profile::parse("3g.40gb"),
            "an instance that a claim makes"
        );
        assert_eq!(Profile::of_device("mig-of-3f8a1c20"), None);
        assert_eq!(Profile::of_device("mig-0a1b2c3d"), None);
        assert_eq!(Profile::of_device("gpu-0a1b2c3d"), None);
    }
}
