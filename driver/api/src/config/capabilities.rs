//! `driverCapabilities`: which parts of the driver a container gets, in NVIDIA's words.

use super::words::Words;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A part of the driver. NVIDIA's `display` and `ngx` are in `graphics` here, and `compat32` is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Capability {
    /// CUDA and OpenCL.
    Compute,
    /// nvidia-smi and NVML.
    Utility,
    /// Encoders and decoders.
    Video,
    /// OpenGL, EGL, Vulkan, OptiX and X.
    Graphics,
}

/// A set of capabilities. A larger set is the less strict value of `driverCapabilities`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Capabilities(u8);

impl Words for Capability {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("compute", Self::Compute),
        ("utility", Self::Utility),
        ("video", Self::Video),
        ("graphics", Self::Graphics),
    ];
}

impl Capability {
    pub const ALL: [Self; 4] = [Self::Compute, Self::Utility, Self::Video, Self::Graphics];
}

// === impl Capabilities ===

impl Capabilities {
    pub const ALL: Self = Self::of(&Capability::ALL);

    #[must_use]
    pub const fn of(members: &[Capability]) -> Self {
        let (mut bits, mut index) = (0, 0);
        while index < members.len() {
            bits |= 1 << members[index] as u8;
            index += 1;
        }
        Self(bits)
    }

    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns true if `other` has each member of this set.
    #[must_use]
    pub const fn is_within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    /// Returns true if both have a member in common.
    #[must_use]
    pub const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns true for the default set, which applies to a config without this field.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    fn words(self) -> impl Iterator<Item = &'static str> {
        let has = move |member: &Capability| Self::of(&[*member]).is_within(self);
        let members = Capability::WORDS.iter().filter(move |(_, member)| has(member));
        members.map(|(word, _)| *word)
    }
}

impl Default for Capabilities {
    fn default() -> Self {
        Self::of(&[Capability::Compute, Capability::Utility])
    }
}

impl std::fmt::Display for Capabilities {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.words().collect::<Vec<_>>().join(", "))
    }
}

impl std::fmt::Debug for Capabilities {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "[{self}]")
    }
}

impl Serialize for Capabilities {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.words())
    }
}

impl<'de> Deserialize<'de> for Capabilities {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::of(&Vec::<Capability>::deserialize(deserializer)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_written_in_one_order_and_read_back() {
        let set = Capabilities::of(&[Capability::Video, Capability::Compute, Capability::Video]);
        assert_eq!(set.to_string(), "compute, video");
        let json = serde_json::to_string(&set).unwrap();
        assert_eq!(json, r#"["compute","video"]"#);
        assert_eq!(serde_json::from_str::<Capabilities>(&json).unwrap(), set);
        assert!(serde_json::from_str::<Capabilities>(r#"["display"]"#).is_err());
        assert_eq!(Capabilities::default().to_string(), "compute, utility");
    }

    #[test]
    fn a_set_is_within_itself_and_within_more() {
        let default = Capabilities::default();
        let video = Capabilities::of(&[Capability::Video]);
        assert!(default.is_within(default) && default.is_within(Capabilities::ALL));
        assert!(!video.is_within(default) && !Capabilities::ALL.is_within(default));
        assert!(default.with(video).meets(video) && !default.meets(video));
    }
}
