//! Why an instance is not made, not destroyed, or not there: the object, and what to do.

use crate::driver::{Code, Refused};
use vgpu_node::files::Failed;
use vgpu_node::sealed::Damage;

/// `instance` is a profile with its place and GPU.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    File(#[from] Failed),
    #[error(
        "GPU {gpu}: MIG mode is off, and this node does not switch it; switch it on (nvidia-smi -i {gpu} -mig 1), or delete pod and \
         claim"
    )]
    ModeOff { gpu: String },
    #[error(
        "GPU {gpu}: MIG mode is off, and changing it resets this GPU, so only an administrator does; drain the node and \
         switch it on (nvidia-smi -i {gpu} -mig 1)"
    )]
    NeedsReset { gpu: String },
    #[error(
        "GPU {gpu}: its MIG mode changes from {} to {} at the next reset; drain the node and reset it (nvidia-smi -r) or \
         reboot", on_or_off(*.is_on), on_or_off(!*.is_on)
    )]
    ResetPending { gpu: String, is_on: bool },
    #[error(
        "GPU {gpu}: MIG mode is off and is not switched on while {users} processes use the GPU; nvidia-smi and fuser \
         /dev/nvidia* on the node show them; kubelet retries"
    )]
    GpuInUse { gpu: String, users: usize },
    #[error(
        "GPU {gpu}: no instance is made while claims hold the GPU as a whole or shares of it, or may hold them; delete their pods, or \
         wait: kubelet retries"
    )]
    GpuHeld { gpu: String },
    /// Somebody wants the GPU as a whole.
    #[error(
        "GPU {gpu}: it is in MIG mode, which no claim switched on, so the mode is the administrator's; switch it off (nvidia-smi -i \
         {gpu} -mig 0), or delete pod and claim"
    )]
    ModeOn { gpu: String },
    #[error(
        "GPU {gpu}: claims {claims} have {instances} of it, so no claim gets the GPU as a whole; delete their pods, or wait: kubelet \
         retries"
    )]
    Divided {
        gpu: String,
        instances: String,
        claims: String,
    },
    #[error(
        "GPU {gpu}: it stays in MIG mode because of GPU instance {gpu_instance}, which no claim made; destroy it (nvidia-smi mig \
         -i {gpu} -gi {gpu_instance} -dgi) or delete the pod"
    )]
    DividedByAdministrator { gpu: String, gpu_instance: u32 },
    #[error(
        "GPU {gpu}: claims switched its MIG mode on, and this node does not switch it any more (chart value mig.dynamic); once no \
         claim has an instance of it, switch it off (nvidia-smi -i {gpu} -mig 0)"
    )]
    StaysOn { gpu: String },
    #[error(
        "{instance}: GPU instance {gpu_instance}, which no claim made, is in this place; destroy it (nvidia-smi mig -i UUID \
         -gi {gpu_instance} -dgi, with the UUID of this GPU) or delete the pod"
    )]
    TakenByAdministrator { instance: String, gpu_instance: u32 },
    #[error("{instance}: claims {claims} hold {other}; kubelet retries")]
    TakenByClaims {
        instance: String,
        other: String,
        claims: String,
    },
    #[error(
        "{instance}: it is not destroyed while a process uses it; end the process (nvidia-smi shows it, but not the handles \
         of DCGM). It is tried again"
    )]
    StillInUse { instance: String },
    /// Reported until it is made again or its claims are unprepared.
    #[error("{instance}: it is gone while claims {claims} use it, and cannot be made again: {why}")]
    Vanished {
        instance: String,
        claims: String,
        why: Box<Self>,
    },
    #[error("{object}: the driver refuses to {action}: {source}; {}", remedy(.source.code))]
    Refused {
        object: String,
        action: &'static str,
        source: Refused,
    },
    #[error(
        "the record {file} {damage}; once no claim has an instance of the GPU in the file's name: for a file .mode.json switch MIG \
         mode off (nvidia-smi -i UUID -mig 0), else destroy the instance (nvidia-smi mig -i UUID -gi ID -dgi); then remove the file"
    )]
    Damaged { file: String, damage: Damage },
}

// === impl Error ===

impl Error {
    /// Returns the driver's silence, if that is the reason.
    #[must_use]
    pub fn silence(&self) -> Option<&Refused> {
        match self {
            Self::Refused { source, .. } => (source.code == Code::NoAnswer).then_some(source),
            Self::Vanished { why, .. } => why.silence(),
            _ => None,
        }
    }
}

fn on_or_off(is_on: bool) -> &'static str {
    match is_on {
        true => "on",
        false => "off",
    }
}

fn remedy(code: Code) -> &'static str {
    match code {
        Code::InUse => "end what uses the GPU: processes, DCGM, MPS",
        Code::InsufficientResources => "nvidia-smi mig -lgi shows which instances have the place or the engines",
        Code::NoPermission => "run the plugin as root, with access to MIG's configuration",
        Code::ResetRequired => "drain the node and reset the GPU (nvidia-smi -r) or reboot",
        Code::NotSupported => "check that the GPU has MIG and is in MIG mode (nvidia-smi -q -d MIG)",
        Code::NotFound => "check that the GPU and the instance are there (nvidia-smi -L)",
        Code::NoAnswer => "the next try looks whether it was done",
        Code::Other(_) => "check the kernel's log (dmesg) on the node",
    }
}
