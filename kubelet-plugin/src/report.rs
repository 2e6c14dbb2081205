//! What the hook reports of a container whose programs do not load the backstop: a file for each reason in the claim's
//! directory, and an event with that reason on the pods of the claim. Only hooks of older releases, to which claims may
//! still be bound, know another reason than a missing glibc: the others mount the list, or refuse.

use crate::share::ClaimId;

/// A reason why programs of a container do not load libvgpu-preload.so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Report {
    NoGlibc,
    ReadOnly,
    Mounted,
}

// === impl Report ===

impl Report {
    pub const ALL: [Self; 3] = [Self::NoGlibc, Self::ReadOnly, Self::Mounted];

    /// The file that `vgpu-cdi-hook` creates (its merge.rs).
    #[must_use]
    pub fn file(self) -> &'static str {
        match self {
            Self::NoGlibc => "no-glibc",
            Self::ReadOnly => "read-only",
            Self::Mounted => "mounted",
        }
    }

    /// The event's reason.
    #[must_use]
    pub fn event(self) -> &'static str {
        match self {
            Self::NoGlibc => "NoGlibc",
            Self::ReadOnly => "ReadOnlyRoot",
            Self::Mounted => "PreloadListMounted",
        }
    }

    /// The event's text.
    #[must_use]
    pub fn note(self, claim: &ClaimId) -> String {
        const LIMITED: &str = "limits are enforced for programs that open libcuda.so.1 by that name, not for a driver \
                               that the image brought";
        let what = match self {
            Self::NoGlibc => {
                "an image without glibc: no CUDA program runs in it as it is; use an image with glibc 2.17 or \
                              newer (Debian, Ubuntu, Red Hat)"
                    .to_owned()
            }
            Self::ReadOnly => format!(
                "a root file system that cannot be written to, so libvgpu-preload.so is not in its /etc/ld.so.preload: \
                 {LIMITED}; use an image without a driver, or let the container runtime write to the root file system"
            ),
            Self::Mounted => format!(
                "a volume at /etc or /etc/ld.so.preload, so libvgpu-preload.so is not in that list: {LIMITED}; mount \
                 single files below /etc instead"
            ),
        };
        format!(
            "a container of this pod, or of one that shares ResourceClaim {} with it, has {what}",
            claim.name
        )
    }
}
