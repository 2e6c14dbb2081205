//! What a taint and a health message say of a GPU that the driver lists and that has a fault. Pure.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What kind of fault it is: the taint `dra.vgpu/<name>`. A GPU has at most one fault of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reason {
    /// The driver reported an error (XID).
    Xid,
    /// Memory errors that ECC did not correct.
    Ecc,
    /// Rows of its memory are to be remapped, or could not be.
    Remap,
    /// The driver asks for a reset or a reboot.
    Recovery,
}

/// One fault of one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    pub reason: Reason,
    /// The taint's value: a label value.
    pub value: String,
    /// False: the fault keeps no claim away, and its taint has the effect None.
    pub blocks: bool,
}

/// The faults of each GPU that has any, by UUID.
pub type Faults = BTreeMap<String, Vec<Fault>>;

// === impl Reason ===

impl Reason {
    /// The taint's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Xid => "xid",
            Self::Ecc => "ecc",
            Self::Remap => "remap",
            Self::Recovery => "recovery",
        }
    }
}

// === impl Fault ===

impl Fault {
    /// The taint's effect.
    #[must_use]
    pub fn effect(&self) -> &'static str {
        match self.blocks {
            true => "NoSchedule",
            false => "None",
        }
    }

    /// The sentence for the GPU with this UUID.
    #[must_use]
    pub fn text(&self, uuid: &str) -> String {
        let value = &self.value;
        match self.reason {
            Reason::Xid => format!("GPU {uuid} had XID {value}; look for \"NVRM: Xid\" in the kernel's log (dmesg)"),
            Reason::Ecc => format!(
                "GPU {uuid} had memory errors that ECC did not correct, {value} in all; look at nvidia-smi -q -d ECC"
            ),
            Reason::Remap if self.blocks => format!(
                "GPU {uuid} could not remap rows of its memory that have errors; look at nvidia-smi -q -d ROW_REMAPPER, \
                 and have the GPU replaced"
            ),
            Reason::Remap => format!("GPU {uuid} remaps rows of its memory at its next reset"),
            Reason::Recovery => format!(
                "the NVIDIA driver asks for the action {value} to recover GPU {uuid}; drain the node, and do that"
            ),
        }
    }
}
