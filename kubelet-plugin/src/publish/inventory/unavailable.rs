//! Why a device takes no new claims, as a taint and in words. Faults of a GPU that the driver lists are `fault`'s.

use vgpu_node::gpus;
use vgpu_node::gpus::{LeftOut, UUID_OF_INSTANCE};

/// Why no new claim may have a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// The driver's list lacks the GPU. The text is the driver's reason, if it gave one.
    Lost(String),
    /// An administrator switched its MIG mode off while claims may have instances of it.
    SwitchedOff,
    Mig,
    /// It was destroyed, and the named instance has come in its place. Programs reach that one by the same capability nodes.
    Replaced(String),
    /// Claims have the device with this UUID, of which this one is a part, or which is a part of this one.
    Overlap(String),
    /// The driver does not answer, for this reason.
    Silent(String),
}

// === impl Unavailable ===

impl Unavailable {
    /// Why a GPU that is not in a list is unavailable; `named` is what the list says of it.
    #[must_use]
    pub fn missing(named: Option<&LeftOut>) -> Self {
        match named.map(|left| &left.why) {
            Some(gpus::Error::Mig { .. }) => Self::Mig,
            Some(why) => Self::Lost(why.to_string()),
            None => Self::Lost(String::new()),
        }
    }

    /// True if the driver answered, and the GPU cannot be used.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        !matches!(self, Self::Silent(_))
    }

    /// The taint's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Lost(_) | Self::SwitchedOff => "lost",
            Self::Mig => "mig",
            Self::Replaced(_) => "replaced",
            Self::Overlap(_) => "overlap",
            Self::Silent(_) => "silent",
        }
    }

    /// The sentence for the GPU with this UUID.
    #[must_use]
    pub fn text(&self, uuid: &str) -> String {
        match self {
            Self::Lost(why) if why.is_empty() && uuid.starts_with(UUID_OF_INSTANCE) => format!(
                "instance {uuid} is not in the driver's list any more: it was destroyed, or MIG mode was switched off; look \
                 at nvidia-smi -L on the node"
            ),
            Self::Lost(why) if why.is_empty() => {
                format!("GPU {uuid} is not in the driver's list any more; check nvidia-smi and dmesg on the node")
            }
            Self::Lost(why) if uuid.starts_with(UUID_OF_INSTANCE) => format!("instance {uuid} cannot be used: {why}"),
            Self::Lost(why) => format!("GPU {uuid} is not in the driver's list any more: {why}"),
            Self::SwitchedOff => gpus::Error::SwitchedOff { uuid: uuid.to_owned() }.to_string(),
            Self::Mig => {
                let (uuid, instances) = (uuid.to_owned(), Vec::new());
                gpus::Error::Mig { uuid, instances }.to_string()
            }
            Self::Replaced(by) => format!(
                "instance {uuid} was destroyed, and {by} is in its place; delete the pods whose claims have the former one, \
                 and the new one is published a minute later"
            ),
            Self::Overlap(other) if other.starts_with(UUID_OF_INSTANCE) && uuid.starts_with(UUID_OF_INSTANCE) => {
                format!(
                    "claims still have instance {other}, which was in the place of {uuid} or may be in it; delete their pods"
                )
            }
            Self::Overlap(other) if uuid.starts_with(UUID_OF_INSTANCE) => format!(
                "instance {uuid} is a part of GPU {other}, which claims still have as a whole; delete their pods"
            ),
            Self::Overlap(other) => {
                format!(
                    "claims still have instance {other}, which is or may be a part of GPU {uuid}; delete their pods"
                )
            }
            Self::Silent(why) => format!("the NVIDIA driver does not answer: {why}"),
        }
    }
}
