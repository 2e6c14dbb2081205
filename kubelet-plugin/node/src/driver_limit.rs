//! What vgpu-driver-limit answers to the plugin: JSON, one object a line. Both sides have these types.

use serde::{Deserialize, Serialize};

/// Exit status if the answer is no.
pub const REFUSED: u8 = 1;
/// Exit status if nothing was found out: the driver gave no answer, or no process could be made to ask it.
pub const NO_ANSWER: u8 = 3;

/// Whether the driver limits the GPU memory of cgroups, and who keeps these limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DriverLimit {
    /// The kernel's controller dmem.
    Dmem,
    /// The driver itself.
    Misc,
    /// Nobody, for this reason.
    None(String),
    /// The driver gave no answer, for this reason. It may limit cgroups.
    Unknown(String),
}

/// The answer of `probe` for one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Probed {
    /// UUID.
    pub gpu: String,
    pub driver_limit: DriverLimit,
}

/// The answer of `check` for one share in one container: the container's limit on the share's GPU, as it was read back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// UID of the claim.
    pub claim: String,
    /// The share's name.
    pub share: String,
    /// UUID.
    pub gpu: String,
    /// Path of the container's cgroup below the hierarchy's root.
    pub cgroup: String,
    /// Bytes: the sum of the container's shares of this GPU, and a tolerance.
    pub hard: u64,
    /// Bytes that the driver has charged to the cgroup on this GPU.
    pub used: u64,
    pub state: State,
    /// One line, empty if all is well: what was found before a limit was set again, why there is none, or why the pod's was lifted.
    #[serde(default)]
    pub reason: String,
    pub pod: PodLimit,
}

/// Whether a container's limit holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    Held,
    /// It had been changed or removed. It was set again and read back.
    SetAgain,
    Failed,
}

/// Whether the limit of the container's pod holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PodLimit {
    Held,
    /// It would bind a container that has no share of this GPU, or not all of its shares, so the pod as a whole is not limited.
    Lifted,
    Failed,
    /// The container is in no pod.
    None,
}

// === impl DriverLimit ===

impl DriverLimit {
    /// The value of the device's attribute.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Dmem => "dmem",
            Self::Misc => "misc",
            Self::None(_) | Self::Unknown(_) => "none",
        }
    }

    /// Returns true if somebody is known to keep limits.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        matches!(self, Self::Dmem | Self::Misc)
    }
}
