//! What the hook reports of a container whose programs do not load the backstop: a file for each reason in the claim's
//! directory, and an event with that reason on the pods of the claim. Whatever else is wrong, the hook refuses the
//! container.

use crate::share::ClaimId;

/// A reason why programs of a container do not load libvgpu-preload.so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Report {
    NoGlibc,
}

// === impl Report ===

impl Report {
    pub const ALL: [Self; 1] = [Self::NoGlibc];

    /// The file that `vgpu-cdi-hook` creates (its merge.rs).
    #[must_use]
    pub fn file(self) -> &'static str {
        match self {
            Self::NoGlibc => "no-glibc",
        }
    }

    /// The event's reason.
    #[must_use]
    pub fn event(self) -> &'static str {
        match self {
            Self::NoGlibc => "NoGlibc",
        }
    }

    /// The event's text.
    #[must_use]
    pub fn note(self, claim: &ClaimId) -> String {
        let what = match self {
            Self::NoGlibc => {
                "an image without glibc: no CUDA program runs in it as it is; use an image with glibc 2.17 or newer \
                 (Debian, Ubuntu, Red Hat)"
            }
        };
        format!(
            "a container of this pod, or of one that shares ResourceClaim {} with it, has {what}",
            claim.name
        )
    }
}
