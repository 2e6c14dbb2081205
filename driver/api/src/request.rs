//! The rules for a request of a GPU's capacity.
//!
//! Kubernetes accepts any key and any unit: `memory: 20` silently becomes the smallest share, `cores: 250m` becomes one
//! percent, and an unknown key finds no device without an error. Each of these is an error here.

use std::collections::BTreeMap;

use vgpu_quantity::{WholeError, format_bytes, quoted, whole};

use crate::{capacity, class};

/// The smallest share of a GPU's memory.
pub const MEMORY_MIN: u64 = 64 << 20;
/// More than any GPU has; a larger request is a mistake.
pub const MEMORY_MAX: u64 = 10 << 40;
/// The most host memory of a share, 1 Pi: no machine has more, and a record with more is considered damaged.
pub const HOST_MEMORY_MAX: u64 = 1 << 50;
/// Memory is allocated in whole MiB; requests are rounded up to that.
pub const MEMORY_STEP: u64 = 1 << 20;
/// All of a GPU's time, in percent.
pub const CORES_MAX: u32 = 100;

/// A device request's amounts. `None`: the device decides (all memory, no guaranteed time).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Requested {
    /// Bytes, rounded up to [`MEMORY_STEP`].
    pub memory: Option<u64>,
    /// Percent of the GPU's time.
    pub cores: Option<u32>,
}

/// Why a capacity request is refused. `at` is the field's path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error("{at}: {reason}")]
    Quantity { at: String, reason: WholeError },
    #[error("{at}: {} is less than the smallest share, 64Mi{}", quoted(.value), .suggestion.as_ref().map(|s| format!("; did you mean {s}?")).unwrap_or_else(|| "; ask for at least 64Mi".to_owned()))]
    MemoryTooSmall {
        at: String,
        value: String,
        suggestion: Option<String>,
    },
    #[error("{at}: {} is more than any GPU has; ask for at most 10Ti", quoted(.value))]
    MemoryTooLarge { at: String, value: String },
    #[error(
        "{at}: {} is not a whole percentage of a GPU's time; ask for a whole number from 0 to 100, for example 25",
        quoted(.value)
    )]
    Cores { at: String, value: String },
    #[error("{at}: {} is not allowed; a claim always takes one share, so remove the field", quoted(.value))]
    Shares { at: String, value: String },
    #[error("{at}: no GPU has this capacity{}; use memory and cores", .suggestion.map(|s| format!(", did you mean {s}?")).unwrap_or_default())]
    UnknownKey {
        at: String,
        suggestion: Option<&'static str>,
    },
    #[error("{at}: {}; keep only {key}", capacity::twice(.key, .short, .long))]
    Twice {
        at: String,
        key: String,
        short: String,
        long: String,
    },
    #[error(
        "{at}: class {class} gives what it gives and takes no capacity requests; remove them, or use class vgpu for a part of a GPU"
    )]
    NotForClass { at: String, class: String },
}

/// Reads the capacity requests of one device request. `at` is the path of the map, for example
/// `spec.devices.requests[0].exactly.capacity.requests`. A class whose name is not one of ours follows the rules of
/// `vgpu`, because administrators derive their own classes from it.
pub fn check<'a>(
    at: &str,
    class_name: &str,
    requests: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<Requested, RequestError> {
    let mut requested = Requested::default();
    let requests: BTreeMap<&str, &str> = requests.into_iter().collect();
    for (&key, &value) in &requests {
        let at = format!("{at}[{key}]");
        if matches!(
            class_name,
            class::GPU | class::VGPU_MIG | class::VGPU_MONITOR | class::VGPU_SLOT
        ) {
            return Err(RequestError::NotForClass {
                at,
                class: class_name.to_owned(),
            });
        }
        let name = capacity::short(key);
        if name != key
            && let Some(short) = requests.get(name)
        {
            return Err(RequestError::Twice {
                at,
                key: name.to_owned(),
                short: (*short).to_owned(),
                long: value.to_owned(),
            });
        }
        match name {
            capacity::MEMORY => requested.memory = Some(memory(&at, value)?),
            capacity::CORES => requested.cores = Some(cores(&at, value)?),
            capacity::SHARES if whole(value) == Ok(1) => {}
            capacity::SHARES => {
                return Err(RequestError::Shares {
                    at,
                    value: value.to_owned(),
                });
            }
            _ => {
                return Err(RequestError::UnknownKey {
                    at,
                    suggestion: similar_key(key),
                });
            }
        }
    }
    Ok(requested)
}

/// Bytes of memory, rounded up to [`MEMORY_STEP`] as the scheduler does; `at` is the field or flag for messages.
pub fn memory(at: &str, value: &str) -> Result<u64, RequestError> {
    let at = || at.to_owned();
    match whole(value) {
        Ok(bytes) if bytes > MEMORY_MAX as i64 => Err(RequestError::MemoryTooLarge {
            at: at(),
            value: value.to_owned(),
        }),
        Ok(bytes) if bytes < MEMORY_MIN as i64 => Err(RequestError::MemoryTooSmall {
            at: at(),
            value: value.to_owned(),
            suggestion: forgotten_unit(value, bytes),
        }),
        // Not negative, by the arm above.
        Ok(bytes) => Ok((bytes as u64).next_multiple_of(MEMORY_STEP)),
        Err(WholeError::TooLarge { .. }) if !value.starts_with('-') => Err(RequestError::MemoryTooLarge {
            at: at(),
            value: value.to_owned(),
        }),
        Err(reason) => Err(RequestError::Quantity { at: at(), reason }),
    }
}

/// Percent of a GPU's time; `at` is the field or flag for messages.
pub fn cores(at: &str, value: &str) -> Result<u32, RequestError> {
    whole(value)
        .ok()
        .and_then(|cores| u32::try_from(cores).ok())
        .filter(|cores| *cores <= CORES_MAX)
        .ok_or_else(|| RequestError::Cores {
            at: at.to_owned(),
            value: value.to_owned(),
        })
}

/// `20` was meant to be `20Gi`, `512` to be `512Mi`; a number with a unit was meant as it is written.
fn forgotten_unit(value: &str, bytes: i64) -> Option<String> {
    if bytes <= 0 || !value.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    match bytes {
        1..=256 => Some(format_bytes((bytes as u64) << 30)),
        257..=262_144 => Some(format!("{bytes}Mi")),
        _ => None,
    }
}

fn similar_key(key: &str) -> Option<&'static str> {
    let name = key.rsplit('/').next().unwrap_or(key).to_ascii_lowercase();
    if name.starts_with("mem") || name.contains("memory") || name == "vram" {
        Some(capacity::MEMORY)
    } else if name.starts_with("core") || name == "compute" || name == "percent" {
        Some(capacity::CORES)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const AT: &str = "spec.devices.requests[0].exactly.capacity.requests";

    #[test]
    fn memory_and_cores_are_read() {
        let requested = check(AT, "vgpu", [("memory", "20Gi"), ("cores", "25"), ("shares", "1")]).unwrap();
        assert_eq!(
            requested,
            Requested {
                memory: Some(20 << 30),
                cores: Some(25)
            }
        );
        assert_eq!(check(AT, "vgpu", []), Ok(Requested::default()));
        assert_eq!(check(AT, "gpu", []), Ok(Requested::default()));
        assert_eq!(check(AT, "vgpu-mig", []), Ok(Requested::default()));
        assert_eq!(check(AT, "team-a-gpus", [("cores", "0")]).unwrap().cores, Some(0));
    }

    #[test]
    fn memory_is_rounded_up_to_whole_mib() {
        assert_eq!(memory("m", "1500000001"), Ok(1431 << 20));
        assert_eq!(memory("m", "64Mi"), Ok(64 << 20));
        assert_eq!(memory("m", "10Ti"), Ok(10 << 40));
    }

    /// Each mistake with its path and the remedy that its message names.
    #[test]
    fn a_mistake_is_named_with_its_path_and_its_remedy() {
        for (class, key, value, advice) in [
            ("vgpu", "memory", "20", "did you mean 20Gi?"),
            ("vgpu", "memory", "512", "did you mean 512Mi?"),
            ("vgpu", "memory", "-1Gi", "less than the smallest share"),
            ("vgpu", "memory", "0", "at least 64Mi"),
            ("vgpu", "memory", "63Mi", "at least 64Mi"),
            ("vgpu", "memory", "11Ti", "at most 10Ti"),
            ("vgpu", "memory", "9Ei", "at most 10Ti"),
            ("vgpu", "memory", "20GB", "did you mean 20Gi?"),
            ("vgpu", "memory", "0.1Gi", "not a whole number"),
            ("vgpu", "memory", "", "empty"),
            ("vgpu", "cores", "250m", "a whole number from 0 to 100"),
            ("vgpu", "cores", "101", "a whole number from 0 to 100"),
            ("vgpu", "cores", "-1", "a whole number from 0 to 100"),
            ("vgpu", "cores", "25%", "a whole number from 0 to 100"),
            ("vgpu", "shares", "2", "remove the field"),
            ("vgpu", "mem", "20Gi", "did you mean memory?"),
            ("vgpu", "gpu.nvidia.com/memory", "20Gi", "did you mean memory?"),
            ("vgpu", "tflops", "20", "use memory and cores"),
            ("gpu", "memory", "20Gi", "use class vgpu"),
            ("gpu", "cores", "10", "use class vgpu"),
            ("vgpu-monitor", "memory", "20Gi", "use class vgpu"),
        ] {
            let message = check(AT, class, [(key, value)]).expect_err(value).to_string();
            assert!(message.starts_with(&format!("{AT}[{key}]: ")), "{message}");
            assert!(message.contains(advice), "{key}: {value}: {message}");
        }
    }

    /// Kubernetes takes both for one name from 1.38 on.
    #[test]
    fn a_name_may_have_the_drivers_domain() {
        let long = [
            ("dra.vgpu/memory", "20Gi"),
            ("dra.vgpu/cores", "25"),
            ("dra.vgpu/shares", "1"),
        ];
        let short = [("memory", "20Gi"), ("cores", "25"), ("shares", "1")];
        assert_eq!(check(AT, "vgpu", long), check(AT, "vgpu", short));
        let wrong = check(AT, "vgpu", [("dra.vgpu/memory", "20GB")])
            .unwrap_err()
            .to_string();
        assert!(wrong.starts_with(&format!("{AT}[dra.vgpu/memory]: ")), "{wrong}");
        for both in [
            [("memory", "10Gi"), ("dra.vgpu/memory", "20Gi")],
            [("dra.vgpu/memory", "20Gi"), ("memory", "10Gi")],
        ] {
            assert_eq!(
                check(AT, "vgpu", both).unwrap_err().to_string(),
                format!(
                    "{AT}[dra.vgpu/memory]: \"20Gi\", and \"10Gi\" in memory, are one capacity under two names; keep only memory"
                )
            );
        }
    }

    proptest! {
        #[test]
        fn what_is_accepted_is_within_bounds(value in ".{0,24}") {
            if let Ok(bytes) = memory("m", &value) {
                prop_assert!((MEMORY_MIN..=MEMORY_MAX).contains(&bytes) && bytes % MEMORY_STEP == 0);
            }
            if let Ok(percent) = cores("c", &value) {
                prop_assert!(percent <= CORES_MAX);
            }
        }

        #[test]
        fn every_memory_within_bounds_is_accepted(bytes in MEMORY_MIN..=MEMORY_MAX) {
            let rounded = bytes.next_multiple_of(MEMORY_STEP);
            prop_assert_eq!(memory("m", &bytes.to_string()), Ok(rounded));
            prop_assert_eq!(memory("m", &format_bytes(rounded)), Ok(rounded));
        }
    }
}
