//! Whether one promise to a share holds, and the reason. Pure.

use std::fmt;

/// Whether something holds, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// None: it is not known.
    pub status: Option<bool>,
    pub reason: Reason,
}

/// Why a finding is what it is: the `reason` of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reason {
    // Not known.
    NotSeenYet,
    DriverSilent,
    NoHostPid,
    ProcessesUnknown,
    MemoryUnknown,
    LedgerDamaged,
    NotMeasured,
    OtherRelease,
    /// The GPU has the system's memory, and its size is configured.
    LedgerOnly,
    // True.
    Prepared,
    WithinLimit,
    /// Of memory: within the limit, which the library enforces.
    Library,
    /// The same, and the driver limits each container too.
    DriverAndLibrary,
    Mounted,
    NothingRefused,
    // False.
    OverLimit,
    NotCharged,
    /// The claim requires the driver's own limit, and a container does not have it.
    DriverLimitMissing,
    Unlimited,
    MountsMissing,
    MemoryRefused,
    GpuFull,
}

// === impl Finding ===

impl Finding {
    #[must_use]
    pub(crate) fn unknown(reason: Reason) -> Self {
        Self { status: None, reason }
    }

    #[must_use]
    pub(crate) fn holds(reason: Reason) -> Self {
        Self {
            status: Some(true),
            reason,
        }
    }

    #[must_use]
    pub(crate) fn fails(reason: Reason) -> Self {
        Self {
            status: Some(false),
            reason,
        }
    }

    /// As a condition's `status`.
    #[must_use]
    pub(crate) fn text(self) -> &'static str {
        match self.status {
            Some(true) => "True",
            Some(false) => "False",
            None => "Unknown",
        }
    }
}

// === impl Reason ===

impl Reason {
    /// What the condition says in words. Without figures, which change all the time: those are metrics.
    #[must_use]
    pub(crate) fn message(self) -> &'static str {
        match self {
            Self::NotSeenYet => "the plugin has not observed this share for long enough yet",
            Self::DriverSilent => "the NVIDIA driver does not list the processes of this GPU",
            Self::NoHostPid => "the plugin does not see the node's processes; set plugin.hostPID: true",
            Self::ProcessesUnknown => {
                "the processes that the driver lists are not those that the node or the share's ledger has"
            }
            Self::MemoryUnknown => "the driver does not say how much memory the share's processes have",
            Self::LedgerDamaged => "the share's ledger cannot be read, so what its programs charged is not known",
            Self::NotMeasured => "the driver does not say how much GPU time the share's processes use",
            Self::OtherRelease => {
                "the share has the library of another release, which records this in a way of its own"
            }
            Self::LedgerOnly => {
                "the GPU has the system's memory, and its size is configured: libvgpu.so alone holds the limit, and no figure \
                 of the driver shows whether it does"
            }
            Self::Prepared => "the node has the share's files",
            Self::WithinLimit => "by the driver's figures the share's processes keep to its limit",
            Self::Library => {
                "by the driver's figures the share's processes keep to its limit, which libvgpu.so enforces"
            }
            Self::DriverAndLibrary => {
                "by the driver's figures the share's processes keep to its limit, which libvgpu.so enforces, and behind it the \
                 driver, which was asked in the last minute"
            }
            Self::Mounted => "a container has the share's mounts",
            Self::NothingRefused => "no program of the share ran out of memory",
            Self::OverLimit => "by the driver's figures the share's processes use more than its limit",
            Self::NotCharged => {
                "by the driver's figures the share's processes have memory that libvgpu.so did not charge: one of them \
                 goes around it"
            }
            Self::DriverLimitMissing => {
                "the claim has memoryEnforcement: Require, and a container of it does not have the driver's own limit, so \
                 libvgpu.so holds the share alone; delete the pod, so that its containers start with the limit"
            }
            Self::Unlimited => "computePolicy is Unlimited: GPU time is not limited",
            Self::MemoryRefused => {
                "a program of the share ran out of memory at the share's limit; it may have freed memory and gone on"
            }
            Self::GpuFull => {
                "the driver refused memory to a program although the share had room: the GPU itself was full, or \
                 its memory in pieces"
            }
            Self::MountsMissing => {
                "a container that uses the claim runs without the share's mounts, so it has no limit: switch CDI on in the \
                 container runtime (containerd 1.7: enable_cdi = true in the cri plugin), and create the pod anew"
            }
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
