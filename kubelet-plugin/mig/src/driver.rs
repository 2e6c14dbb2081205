//! The driver's calls for instances, as values: the plugin's child process has NVML, so calls and answers travel as JSON.
//!
//! To add a call, add a variant to [`Call`] and, if it answers something new, to [`Answer`], a method to [`MigDriver`], and
//! what it does to `nvml.rs` and to the tests' `fake.rs`.
//!
//! Failure modes:
//! - The driver refuses: [`Refused`] has NVML's code. Nothing was done.
//! - No answer came ([`Code::NoAnswer`]: the child died or hung): the call may have been carried out, or may be later. An
//!   implementation over a child process therefore makes no further call until that call or its child has ended, whichever process
//!   began it, and answers NoAnswer until then. Otherwise a list could show that nothing was done, and it would be done afterwards.
//! - Handles are never kept: they die when an instance is destroyed, and the driver uses their values again. An instance is
//!   named by its id, which the driver derives from the place, so it is no proof of who made it.

use serde::{Deserialize, Serialize};
use std::time::Instant;
use vgpu_node::gpus::Placement;

/// The driver: NVML in this process, the plugin's child, or a test's.
pub trait MigDriver {
    /// Makes a call for the GPU with this UUID.
    ///
    /// # Errors
    /// The driver refuses, or does not answer.
    fn call(&self, gpu: &str, call: &Call) -> Result<Answer, Refused>;

    /// Makes a call to which an answer is wanted by `deadline`. After that there is none, and the call may still be carried out. A
    /// driver that never keeps its caller waiting needs no method of its own.
    ///
    /// # Errors
    /// See [`call`](Self::call).
    fn call_by(&self, gpu: &str, call: &Call, _deadline: Instant) -> Result<Answer, Refused> {
        self.call(gpu, call)
    }

    /// # Errors
    /// See [`call`](Self::call).
    fn mode(&self, gpu: &str) -> Result<Mode, Refused> {
        match self.call(gpu, &Call::Mode)? {
            Answer::Mode(mode) => Ok(mode),
            other => Err(Refused::other_question(&Call::Mode, &other)),
        }
    }

    /// # Errors
    /// See [`call`](Self::call).
    fn set_mode(&self, gpu: &str, is_on: bool) -> Result<(), Refused> {
        self.done(gpu, &Call::SetMode { is_on })
    }

    /// Returns true if the mode changes without a reset of the GPU, and lasts while the module is loaded: Hopper and newer.
    ///
    /// # Errors
    /// See [`call`](Self::call).
    fn is_resetless(&self, gpu: &str) -> Result<bool, Refused> {
        match self.call(gpu, &Call::IsResetless)? {
            Answer::IsResetless(is_resetless) => Ok(is_resetless),
            other => Err(Refused::other_question(&Call::IsResetless, &other)),
        }
    }

    /// Returns how many processes use the GPU as a whole.
    ///
    /// # Errors
    /// See [`call`](Self::call).
    fn users(&self, gpu: &str) -> Result<usize, Refused> {
        match self.call(gpu, &Call::Users)? {
            Answer::Users(count) => Ok(count),
            other => Err(Refused::other_question(&Call::Users, &other)),
        }
    }

    /// Returns the profiles with their placements, whether MIG is on or not.
    ///
    /// # Errors
    /// See [`call`](Self::call).
    fn profiles(&self, gpu: &str) -> Result<Vec<Profile>, Refused> {
        match self.call(gpu, &Call::Profiles)? {
            Answer::Profiles(profiles) => Ok(profiles),
            other => Err(Refused::other_question(&Call::Profiles, &other)),
        }
    }

    /// Returns all GPU instances, including those without a compute instance; none while MIG is off.
    ///
    /// # Errors
    /// See [`call`](Self::call).
    fn instances(&self, gpu: &str) -> Result<Vec<GpuInstance>, Refused> {
        match self.call(gpu, &Call::Instances)? {
            Answer::Instances(instances) => Ok(instances),
            other => Err(Refused::other_question(&Call::Instances, &other)),
        }
    }

    /// Creates a GPU instance, and returns its id.
    ///
    /// # Errors
    /// See [`call`](Self::call).
    fn create(&self, gpu: &str, profile: u32, placement: Placement) -> Result<u32, Refused> {
        let call = Call::Create { profile, placement };
        match self.call(gpu, &call)? {
            Answer::Created(id) => Ok(id),
            other => Err(Refused::other_question(&call, &other)),
        }
    }

    /// Creates a compute instance that has all of a GPU instance.
    ///
    /// # Errors
    /// See [`call`](Self::call).
    fn create_compute(&self, gpu: &str, gpu_instance: u32) -> Result<ComputeInstance, Refused> {
        let call = Call::CreateCompute { gpu_instance };
        match self.call(gpu, &call)? {
            Answer::CreatedCompute(compute) => Ok(compute),
            other => Err(Refused::other_question(&call, &other)),
        }
    }

    /// # Errors
    /// See [`call`](Self::call).
    fn destroy_compute(&self, gpu: &str, gpu_instance: u32, compute_instance: u32) -> Result<(), Refused> {
        self.done(
            gpu,
            &Call::DestroyCompute {
                gpu_instance,
                compute_instance,
            },
        )
    }

    /// # Errors
    /// See [`call`](Self::call).
    fn destroy(&self, gpu: &str, gpu_instance: u32) -> Result<(), Refused> {
        self.done(gpu, &Call::Destroy { gpu_instance })
    }

    /// Makes a call that answers nothing but that it succeeded.
    ///
    /// # Errors
    /// See [`call`](Self::call).
    fn done(&self, gpu: &str, call: &Call) -> Result<(), Refused> {
        match self.call(gpu, call)? {
            Answer::Done => Ok(()),
            other => Err(Refused::other_question(call, &other)),
        }
    }
}

impl<D: MigDriver + ?Sized> MigDriver for std::sync::Arc<D> {
    fn call(&self, gpu: &str, call: &Call) -> Result<Answer, Refused> {
        (**self).call(gpu, call)
    }

    fn call_by(&self, gpu: &str, call: &Call, deadline: Instant) -> Result<Answer, Refused> {
        (**self).call_by(gpu, call, deadline)
    }
}

/// One call for one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Call {
    Mode,
    SetMode { is_on: bool },
    IsResetless,
    Users,
    Profiles,
    Instances,
    Create { profile: u32, placement: Placement },
    CreateCompute { gpu_instance: u32 },
    DestroyCompute { gpu_instance: u32, compute_instance: u32 },
    Destroy { gpu_instance: u32 },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    Mode(Mode),
    IsResetless(bool),
    Users(usize),
    Profiles(Vec<Profile>),
    Instances(Vec<GpuInstance>),
    Created(u32),
    CreatedCompute(ComputeInstance),
    Done,
}

/// The MIG mode of a GPU, now and after the next reset. They differ while a reset or a reboot is pending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mode {
    pub is_on: bool,
    pub is_on_after_reset: bool,
}

/// A kind of GPU instance, with the driver's own figures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Profile {
    pub id: u32,
    /// Without the prefix `MIG `: `3g.40gb`.
    pub name: String,
    pub compute_slices: u32,
    pub memory_mib: u64,
    pub multiprocessors: u32,
    pub copy_engines: u32,
    pub engines: Engines,
    /// All places in which one can be, whether they are taken or not.
    pub placements: Vec<Placement>,
}

/// Engines beside the multiprocessors that limit which instances can be beside each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Engines {
    pub decoders: u32,
    pub encoders: u32,
    pub jpegs: u32,
    pub ofas: u32,
}

/// A GPU instance that exists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuInstance {
    pub id: u32,
    /// The id of its profile.
    pub profile: u32,
    pub placement: Placement,
    pub compute: Vec<ComputeInstance>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ComputeInstance {
    pub id: u32,
    /// The UUID of the MIG device. None: the driver does not tell.
    pub uuid: Option<String>,
}

/// The driver's refusal of a call, or its silence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{call}: {code}{}", in_brackets(.reason))]
pub struct Refused {
    /// NVML's function.
    pub call: String,
    pub code: Code,
    /// More about it; may be empty.
    pub reason: String,
}

/// NVML's return codes that decide what to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "camelCase")]
pub enum Code {
    #[error("NOT_SUPPORTED")]
    NotSupported,
    #[error("NO_PERMISSION")]
    NoPermission,
    #[error("NOT_FOUND")]
    NotFound,
    #[error("RESET_REQUIRED")]
    ResetRequired,
    #[error("IN_USE")]
    InUse,
    #[error("INSUFFICIENT_RESOURCES")]
    InsufficientResources,
    #[error("NVML's code {0}")]
    Other(u32),
    /// The call may have been carried out.
    #[error("no answer")]
    NoAnswer,
}

/// NVML_ERROR_INVALID_ARGUMENT.
pub(crate) const INVALID_ARGUMENT: u32 = 2;

// === impl Code ===

impl Code {
    /// The driver is older than the question.
    pub const FUNCTION_NOT_FOUND: Self = Self::Other(13);
    const KNOWN: [(u32, Self); 6] = [
        (3, Self::NotSupported),
        (4, Self::NoPermission),
        (6, Self::NotFound),
        (16, Self::ResetRequired),
        (19, Self::InUse),
        (23, Self::InsufficientResources),
    ];

    /// Returns true if nothing was done. Of another code, as of a timeout or a lost GPU, that is not known.
    #[must_use]
    pub fn is_refusal(self) -> bool {
        match self {
            Self::NoAnswer => false,
            Self::Other(number) => number == INVALID_ARGUMENT,
            _ => true,
        }
    }
}

impl From<u32> for Code {
    fn from(number: u32) -> Self {
        let known = Self::KNOWN.into_iter().find(|(known, _)| *known == number);
        known.map_or(Self::Other(number), |(_, code)| code)
    }
}

// === impl Refused ===

impl Refused {
    #[must_use]
    pub fn new(call: &str, code: Code, reason: &str) -> Self {
        Self {
            call: call.to_owned(),
            code,
            reason: reason.to_owned(),
        }
    }

    /// An answer to another question says nothing about this one.
    fn other_question(call: &Call, answer: &Answer) -> Self {
        Self::new(
            &format!("{call:?}"),
            Code::NoAnswer,
            &format!("{answer:?} came instead"),
        )
    }
}

fn in_brackets(reason: &str) -> String {
    match reason {
        "" => String::new(),
        _ => format!(" ({reason})"),
    }
}

// === impl Engines ===

impl Engines {
    /// Names and numbers, in a fixed order.
    #[must_use]
    pub fn named(self) -> [(&'static str, u32); 4] {
        [
            ("ofa", self.ofas),
            ("jpeg", self.jpegs),
            ("decoders", self.decoders),
            ("encoders", self.encoders),
        ]
    }
}

/// Returns the slices of a placement.
pub(crate) fn slices(placement: Placement) -> std::ops::Range<u32> {
    placement.start..placement.start.saturating_add(placement.size)
}

/// Returns true if the two have a memory slice in common.
#[must_use]
pub fn overlap(one: Placement, other: Placement) -> bool {
    slices(one).start < slices(other).end && slices(other).start < slices(one).end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_answers_survive_json() {
        let placement = Placement { start: 4, size: 4 };
        let text = serde_json::to_string(&Call::Create { profile: 9, placement }).expect("JSON");
        assert_eq!(text, r#"{"create":{"profile":9,"placement":{"start":4,"size":4}}}"#);
        let calls = [
            Call::Mode,
            Call::SetMode { is_on: true },
            Call::CreateCompute { gpu_instance: 2 },
            Call::DestroyCompute {
                gpu_instance: 2,
                compute_instance: 0,
            },
            Call::Destroy { gpu_instance: 2 },
        ];
        for call in calls {
            let text = serde_json::to_string(&call).expect("JSON");
            assert_eq!(serde_json::from_str::<Call>(&text).expect("JSON"), call);
        }
        let compute = ComputeInstance {
            id: 0,
            uuid: Some("MIG-1".into()),
        };
        let instance = GpuInstance {
            id: 2,
            profile: 9,
            placement,
            compute: vec![compute.clone()],
        };
        let answers = [
            Answer::Mode(Mode::default()),
            Answer::IsResetless(true),
            Answer::Users(3),
            Answer::Profiles(crate::tables::h100()),
            Answer::Instances(vec![instance]),
            Answer::Created(2),
            Answer::CreatedCompute(compute),
            Answer::Done,
        ];
        for answer in answers {
            let text = serde_json::to_string(&answer).expect("JSON");
            assert_eq!(serde_json::from_str::<Answer>(&text).expect("JSON"), answer);
        }
        let refused = Refused::new("nvmlGpuInstanceDestroy", Code::from(19), "");
        let text = serde_json::to_string(&refused).expect("JSON");
        assert_eq!(serde_json::from_str::<Refused>(&text).expect("JSON"), refused);
        assert_eq!(refused.to_string(), "nvmlGpuInstanceDestroy: IN_USE");
        assert_eq!(Code::from(999), Code::Other(999));
    }

    #[test]
    fn placements_overlap_if_they_share_a_slice() {
        let at = |start, size| Placement { start, size };
        assert!(overlap(at(0, 4), at(3, 1)) && overlap(at(3, 1), at(0, 4)) && overlap(at(0, 8), at(2, 2)));
        assert!(!overlap(at(0, 4), at(4, 4)) && !overlap(at(6, 1), at(5, 1)));
        // A hostile answer overflows nothing.
        assert!(!overlap(at(u32::MAX, u32::MAX), at(0, 1)));
    }
}
