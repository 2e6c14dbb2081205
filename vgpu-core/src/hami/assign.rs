//! Assigns HAMi's limits to GPUs.
//!
//! HAMi numbers its limits by place:
//! - If NVIDIA_VISIBLE_DEVICES names GPUs, a place is a position in that list: HAMi's scheduler writes both in this
//!   order.
//! - If it has as many numbers as the container sees GPUs, they are the node's numbers: the container's GPUs are these
//!   in ascending order. If the container sees more GPUs than there are numbers, it sees all of the node's, and a
//!   number is NVML's index.
//! - Otherwise a place is NVML's index. That includes values that name no GPU: `void` (CDI), a path (volume mounts), or
//!   none.
//!
//! A name may have CDI's form, `nvidia.com/gpu=NAME`. A GPU that is not in the list gets no share. A GPU that NVML has
//! lost keeps its place and gets no share either.
#![forbid(unsafe_code)]

use super::variables::{MAX_DEVICES, Policy, Settings};
use crate::visible;
use std::fmt;
use std::path::Path;
use vgpu_abi::limits::{ComputePolicy, Limits, Priority};

/// A GPU as NVML shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    pub uuid: String,
    /// Bytes that programs can allocate.
    pub memory: u64,
}

/// Why limits cannot be assigned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AssignError {
    /// NVIDIA_VISIBLE_DEVICES names no GPU that is here.
    NoDevice(String),
    /// It names instances of a partitioned GPU.
    Instances(String),
    TooMany(usize),
}

/// Returns the limits of each GPU, in the order of their places. `devices` are in NVML's order; None is a lost GPU.
///
/// # Errors
/// No GPU is left, or more than HAMi's variables can number.
pub fn assign(
    settings: &Settings,
    devices: &[Option<Device>],
    libcuda: &Path,
    libnvidia_ml: &Path,
) -> Result<Vec<Limits>, AssignError> {
    let places = places(settings.devices.as_deref(), devices)?;
    if places.len() > MAX_DEVICES {
        return Err(AssignError::TooMany(places.len()));
    }
    let limits = |(place, device): (usize, &Device)| {
        let sm = settings.sm.get(place).copied().flatten();
        let memory = settings.memory.get(place).copied().flatten();
        let memory = memory.map_or(device.memory, |memory| memory.min(device.memory));
        let share = device.uuid.to_ascii_lowercase();
        Limits {
            order: u32::try_from(place).unwrap_or(u32::MAX),
            cores: sm.unwrap_or(0),
            compute_policy: match settings.policy {
                Policy::Disable => ComputePolicy::Unlimited,
                _ if sm.is_none_or(|percent| percent == 100) => ComputePolicy::Unlimited,
                Policy::Force => ComputePolicy::Guaranteed,
                Policy::Default => ComputePolicy::Balanced,
            },
            priority: if settings.high_priority {
                Priority::High
            } else {
                Priority::Low
            },
            // No slot: HAMi's containers share no arbitration pages.
            ..Limits::of_memory(share, &device.uuid, memory, libcuda, libnvidia_ml)
        }
    };
    let found = places.into_iter().enumerate();
    Ok(found
        .filter_map(|(place, device)| Some((place, devices.get(device?)?.as_ref()?)))
        .map(limits)
        .collect())
}

/// Returns the device at each place; None where the named device does not exist.
fn places(value: Option<&str>, devices: &[Option<Device>]) -> Result<Vec<Option<usize>>, AssignError> {
    let value = value.unwrap_or("all").trim();
    let entries: Vec<&str> = value
        .split(',')
        .map(|entry| entry.rsplit_once('=').map_or(entry, |(_kind, name)| name).trim())
        .filter(|entry| !entry.is_empty())
        .collect();
    if entries.iter().all(|entry| names_none(entry)) {
        return Ok((0..devices.len()).map(Some).collect());
    }
    if entries
        .iter()
        .any(|entry| entry.starts_with("MIG-") || entry.contains(':'))
    {
        return Err(AssignError::Instances(value.to_owned()));
    }
    let uuids = || {
        devices
            .iter()
            .map(|device| device.as_ref().map(|device| device.uuid.as_str()))
    };
    let numbers: Option<Vec<usize>> = entries.iter().map(|entry| entry.parse().ok()).collect();
    let found: Vec<Option<usize>> = match numbers {
        Some(numbers) if numbers.len() == devices.len() => {
            let rank = |number: &usize| numbers.iter().filter(|other| *other < number).count();
            numbers.iter().map(|number| Some(rank(number))).collect()
        }
        Some(numbers) => numbers
            .into_iter()
            .map(|n| Some(n).filter(|n| *n < devices.len()))
            .collect(),
        None => entries.iter().map(|entry| visible::named(uuids(), entry)).collect(),
    };
    let is_here = |at: &Option<usize>| at.is_some_and(|at| devices.get(at).is_some_and(Option::is_some));
    if !found.iter().any(is_here) {
        return Err(AssignError::NoDevice(value.to_owned()));
    }
    // A GPU that is listed twice gets the limit of its first place.
    let is_first = |at: usize| !found[..at].contains(&found[at]);
    Ok((0..found.len()).map(|at| found[at].filter(|_| is_first(at))).collect())
}

/// Returns true for entries that do not say which GPUs the container has.
fn names_none(entry: &str) -> bool {
    let words = ["all", "void", "none"];
    entry.starts_with('/') || words.iter().any(|word| entry.eq_ignore_ascii_case(word))
}

// === impl AssignError ===

impl fmt::Display for AssignError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDevice(value) => write!(
                f,
                "variable NVIDIA_VISIBLE_DEVICES has the value {value:?}, and NVML shows none of these GPUs here"
            ),
            Self::Instances(value) => write!(
                f,
                "variable NVIDIA_VISIBLE_DEVICES has the value {value:?}: instances of a partitioned GPU are limited by the GPU itself; take this library out of /etc/ld.so.preload there"
            ),
            Self::TooMany(count) => write!(
                f,
                "variable NVIDIA_VISIBLE_DEVICES leaves {count} GPUs: HAMi's variables limit at most {MAX_DEVICES}"
            ),
        }
    }
}

impl std::error::Error for AssignError {}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    /// Stands for a GPU that NVML has lost, in these tests.
    const LOST: &str = "";

    fn settings(devices: Option<&str>, limits: &[u64]) -> Settings {
        let variables = |name: &str| match name.strip_prefix("CUDA_DEVICE_MEMORY_LIMIT_") {
            Some(place) => limits.get(place.parse::<usize>().ok()?).map(|gib| format!("{gib}g")),
            None if name == "CUDA_DEVICE_SM_LIMIT" => Some("30".into()),
            None if name == "NVIDIA_VISIBLE_DEVICES" => devices.map(String::from),
            None => None,
        };
        Settings::read(variables).expect("good values").expect("settings")
    }

    fn assigned(value: Option<&str>, limits: &[u64], seen: &[&str]) -> Result<Vec<(String, u64)>, AssignError> {
        let device = |uuid: &&str| Device {
            uuid: (*uuid).into(),
            memory: 80 * GIB,
        };
        let devices: Vec<Option<Device>> = seen.iter().map(|uuid| (*uuid != LOST).then(|| device(uuid))).collect();
        let found = assign(&settings(value, limits), &devices, Path::new("/c"), Path::new("/n"))?;
        Ok(found.into_iter().map(|l| (l.gpu, l.memory / GIB)).collect())
    }

    #[test]
    fn limits_follow_the_list_that_the_scheduler_wrote() {
        let seen = ["GPU-aaaa-1", "GPU-bbbb-2", "GPU-cccc-3"];
        for (value, limits, expected) in [
            (
                None,
                &[1, 2, 3][..],
                &[("GPU-aaaa-1", 1), ("GPU-bbbb-2", 2), ("GPU-cccc-3", 3)][..],
            ),
            (
                Some("all"),
                &[5],
                &[("GPU-aaaa-1", 5), ("GPU-bbbb-2", 80), ("GPU-cccc-3", 80)],
            ),
            (
                Some("GPU-cccc-3,GPU-aaaa-1"),
                &[1, 2],
                &[("GPU-cccc-3", 1), ("GPU-aaaa-1", 2)],
            ),
            (Some("gpu-BBBB"), &[7], &[("GPU-bbbb-2", 7)]),
            // A named GPU that does not exist still takes a place and a limit.
            (Some("GPU-dddd-4,GPU-aaaa-1"), &[1, 2], &[("GPU-aaaa-1", 2)]),
            // The container sees all GPUs: a number is NVML's index.
            (Some("2,0"), &[1, 2], &[("GPU-cccc-3", 1), ("GPU-aaaa-1", 2)]),
            // The container sees exactly as many GPUs as are listed, so the numbers are the node's, in ascending order.
            (
                Some("6,2,4"),
                &[1, 2, 3],
                &[("GPU-cccc-3", 1), ("GPU-aaaa-1", 2), ("GPU-bbbb-2", 3)],
            ),
            (Some("1,1"), &[4, 9], &[("GPU-bbbb-2", 4)]),
            (Some("0"), &[100], &[("GPU-aaaa-1", 80)]),
            // CDI's names.
            (
                Some("nvidia.com/gpu=GPU-cccc-3,nvidia.com/gpu=GPU-aaaa-1"),
                &[1, 2],
                &[("GPU-cccc-3", 1), ("GPU-aaaa-1", 2)],
            ),
            (Some("runtime.nvidia.com/gpu=1"), &[4], &[("GPU-bbbb-2", 4)]),
        ] {
            let expected: Vec<(String, u64)> = expected.iter().map(|(uuid, gib)| ((*uuid).into(), *gib)).collect();
            assert_eq!(assigned(value, limits, &seen), Ok(expected), "{value:?}");
        }
        for value in ["GPU-", "7", "GPU-dddd-4", "nvidia.com/gpu=GPU-dddd-4"] {
            assert_eq!(
                assigned(Some(value), &[1], &seen),
                Err(AssignError::NoDevice(value.into())),
                "{value:?}"
            );
        }
        for value in ["MIG-1111", "0:1"] {
            assert_eq!(
                assigned(Some(value), &[1], &seen),
                Err(AssignError::Instances(value.into()))
            );
        }
    }

    /// Values that CDI, volume mounts and images set.
    #[test]
    fn a_list_that_names_no_gpu_leaves_the_limits_to_those_that_nvml_shows() {
        let seen = ["GPU-aaaa-1", "GPU-bbbb-2"];
        let both = Ok(vec![("GPU-aaaa-1".into(), 3), ("GPU-bbbb-2".into(), 7)]);
        for value in [
            "void",
            "none",
            "",
            "All",
            "nvidia.com/gpu=all",
            "/var/run/nvidia-container-devices",
        ] {
            assert_eq!(assigned(Some(value), &[3, 7], &seen), both, "{value:?}");
        }
    }

    #[test]
    fn a_limit_stays_with_its_gpu_where_another_is_lost() {
        let seen = ["GPU-aaaa-1", LOST, "GPU-cccc-3"];
        let others = Ok(vec![("GPU-aaaa-1".into(), 1), ("GPU-cccc-3".into(), 3)]);
        for value in [None, Some("all"), Some("0,1,2")] {
            assert_eq!(assigned(value, &[1, 2, 3], &seen), others, "{value:?}");
        }
        assert_eq!(
            assigned(Some("1"), &[1], &seen),
            Err(AssignError::NoDevice("1".into())),
            "it alone"
        );
    }

    #[test]
    fn percentages_are_kept_for_the_limiter() {
        let device = Device {
            uuid: "GPU-1".into(),
            memory: GIB,
        };
        let mut settings = settings(None, &[]);
        let mut policy = |policy, percent| {
            settings.policy = policy;
            settings.sm[0] = percent;
            let found = assign(&settings, &[Some(device.clone())], Path::new("/c"), Path::new("/n"));
            let limits = found.expect("limits").remove(0);
            (limits.cores, limits.compute_policy)
        };
        assert_eq!(policy(Policy::Default, Some(30)), (30, ComputePolicy::Balanced));
        assert_eq!(policy(Policy::Force, Some(30)), (30, ComputePolicy::Guaranteed));
        assert_eq!(policy(Policy::Disable, Some(30)), (30, ComputePolicy::Unlimited));
        assert_eq!(policy(Policy::Force, Some(100)), (100, ComputePolicy::Unlimited));
        assert_eq!(policy(Policy::Force, None), (0, ComputePolicy::Unlimited));
    }

    #[test]
    fn a_share_is_named_by_its_gpu() {
        let device = Device {
            uuid: "GPU-3F8A1C20-1111-2222-3333-444455556666".into(),
            memory: GIB,
        };
        let found = assign(&settings(None, &[]), &[Some(device)], Path::new("/c"), Path::new("/n")).expect("limits");
        assert!(vgpu_abi::limits::is_share_name(&found[0].share), "{}", found[0].share);
    }
}
