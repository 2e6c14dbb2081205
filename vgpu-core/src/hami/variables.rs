//! Parses HAMi's environment variables into settings.
//!
//! How it fails: a limit that cannot be parsed (`3000q`, `GPU`, a number that is too large) is an error that names the
//! variable, where HAMi-core would set no limit. Variables that do not limit anything (log level, priority) fall back
//! to their defaults, as in HAMi-core.
#![forbid(unsafe_code)]

use std::fmt;
use std::path::PathBuf;

/// The largest number of GPUs in HAMi's region and variables.
pub const MAX_DEVICES: usize = 16;

const MEMORY: &str = "CUDA_DEVICE_MEMORY_LIMIT";
const SM: &str = "CUDA_DEVICE_SM_LIMIT";
const CACHE: &str = "CUDA_DEVICE_MEMORY_SHARED_CACHE";
const PRIORITY: &str = "CUDA_TASK_PRIORITY";
const POLICY: &str = "GPU_CORE_UTILIZATION_POLICY";
const LOG_LEVEL: &str = "LIBCUDA_LOG_LEVEL";
const DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";

/// The values of HAMi's variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Bytes of device memory by place in the container's list of GPUs; None: all of it.
    pub memory: [Option<u64>; MAX_DEVICES],
    /// Percent of a GPU's time by place, 1 to 100; None: not limited.
    pub sm: [Option<u32>; MAX_DEVICES],
    /// Path of the region file that the monitor reads; the same for every process of a container.
    pub cache: Option<PathBuf>,
    pub high_priority: bool,
    pub policy: Policy,
    /// 0 to 4; from 3 on the limits are printed.
    pub log_level: u8,
    /// NVIDIA_VISIBLE_DEVICES, unparsed.
    pub devices: Option<String>,
}

/// When a GPU's time is limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    #[default]
    Default,
    Force,
    Disable,
}

/// A variable whose value cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadVariable {
    name: String,
    value: String,
    wanted: &'static str,
}

impl Settings {
    /// Reads the settings; `get` returns a variable's value. Returns None if no variable sets a limit or a region file:
    /// then this is not a HAMi container.
    ///
    /// # Errors
    /// The first variable that cannot be parsed.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, BadVariable> {
        let get = |name: &str| get(name).map(|v| v.trim().to_owned()).filter(|v| !v.is_empty());
        let each = |base: &str, wanted, parse: fn(&str) -> Option<u64>| -> Result<_, BadVariable> {
            let one = |name: String| match get(&name) {
                None => Ok(None),
                Some(value) => match parse(&value) {
                    Some(number) => Ok(Some(number)),
                    None => Err(BadVariable { name, value, wanted }),
                },
            };
            let general = one(base.to_owned())?;
            let mut numbers = [None; MAX_DEVICES];
            for (place, number) in numbers.iter_mut().enumerate() {
                // 0 means that this GPU has no limit of its own, so the general one applies.
                let own = one(format!("{base}_{place}"))?.filter(|own| *own > 0);
                *number = own.or(general).filter(|number| *number > 0);
            }
            Ok((numbers, general.is_some()))
        };
        let (memory, any_memory) = each(MEMORY, "bytes, or a number with k, m or g", bytes)?;
        let (sm, any_sm) = each(SM, "a percentage", percent)?;
        let cache = get(CACHE).map(PathBuf::from);
        let limits = any_memory || any_sm || memory.iter().chain(&sm).any(Option::is_some);
        if !limits && cache.is_none() {
            return Ok(None);
        }
        Ok(Some(Self {
            memory,
            sm: sm.map(|percent| percent.and_then(|percent| u32::try_from(percent).ok())),
            cache,
            high_priority: get(PRIORITY).as_deref() == Some("0"),
            policy: match get(POLICY).unwrap_or_default().to_ascii_lowercase().as_str() {
                "force" => Policy::Force,
                "disable" => Policy::Disable,
                _ => Policy::Default,
            },
            log_level: get(LOG_LEVEL).and_then(|level| level.parse().ok()).unwrap_or(1),
            devices: get(DEVICES),
        }))
    }
}

/// Parses a size with HAMi's suffixes, which are all binary. `0x` numbers are hexadecimal, as for strtoul.
fn bytes(text: &str) -> Option<u64> {
    let last = text.chars().last()?;
    let shift = match last.to_ascii_lowercase() {
        'g' => 30,
        'm' => 20,
        'k' => 10,
        _ => 0,
    };
    let digits = if shift > 0 { text.get(..text.len() - 1)? } else { text };
    let number = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok()?,
        None => digits.parse().ok()?,
    };
    number.checked_mul(1 << shift)
}

/// Parses a percentage. More than 100 means the whole GPU, as in HAMi-core.
fn percent(text: &str) -> Option<u64> {
    text.parse().ok().map(|percent: u64| percent.min(100))
}

// === impl BadVariable ===

impl fmt::Display for BadVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, value, wanted } = self;
        write!(
            f,
            "variable {name} has the value {value:?}, which is not {wanted}; correct it, or unset it for no limit"
        )
    }
}

impl std::error::Error for BadVariable {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Settings>, BadVariable> {
        let value = |name: &str| variables.iter().find(|(known, _)| *known == name);
        Settings::read(|name| value(name).map(|(_, value)| (*value).to_owned()))
    }

    fn settings(variables: &[(&str, &str)]) -> Settings {
        read(variables).expect("good values").expect("settings")
    }

    #[test]
    fn sizes_are_binary_whatever_their_case() {
        for (text, expected) in [
            ("3000m", Some(3000 << 20)),
            ("10G", Some(10 << 30)),
            ("4k", Some(4096)),
            ("123", Some(123)),
            ("0x10m", Some(16 << 20)),
            ("0", Some(0)),
            ("", None),
            ("m", None),
            ("-1", None),
            ("1.5g", None),
            ("10GB", None),
            ("99999999999999999999", None),
            ("18446744073709551615g", None),
            ("\u{fc}", None),
        ] {
            assert_eq!(bytes(text), expected, "{text:?}");
        }
    }

    #[test]
    fn the_limit_of_a_place_wins_over_the_general_one() {
        let found = settings(&[
            (MEMORY, "1g"),
            ("CUDA_DEVICE_MEMORY_LIMIT_1", "2g"),
            ("CUDA_DEVICE_MEMORY_LIMIT_2", "0"),
            (SM, "30"),
            ("CUDA_DEVICE_SM_LIMIT_0", "0"),
        ]);
        assert_eq!(found.memory[..3], [Some(1 << 30), Some(2 << 30), Some(1 << 30)]);
        assert_eq!(found.sm[..2], [Some(30), Some(30)]);
        assert_eq!(settings(&[(SM, "101")]).sm[0], Some(100), "the whole GPU");
    }

    #[test]
    fn nothing_that_limits_is_no_hami_container() {
        assert_eq!(read(&[(DEVICES, "all"), (LOG_LEVEL, "4"), (PRIORITY, "0")]), Ok(None));
        assert_eq!(read(&[(MEMORY, " ")]), Ok(None));
        // A monitored container without limits, and a container with the explicit limit 0.
        assert_eq!(settings(&[(CACHE, "/c")]).memory, [None; MAX_DEVICES]);
        assert_eq!(settings(&[(MEMORY, "0")]).memory, [None; MAX_DEVICES]);
    }

    #[test]
    fn a_value_that_says_nothing_is_named() {
        for (name, value) in [
            (MEMORY, "lots"),
            ("CUDA_DEVICE_MEMORY_LIMIT_15", "1t"),
            (SM, "half"),
            ("CUDA_DEVICE_SM_LIMIT_3", "-5"),
        ] {
            let said = read(&[(name, value)]).expect_err("refused").to_string();
            assert!(said.contains(name) && said.contains(value), "{said}");
        }
        assert_eq!(
            settings(&[(MEMORY, "1g"), (LOG_LEVEL, "loud"), (POLICY, "FORCE"), (PRIORITY, "0")]).policy,
            Policy::Force
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: if cfg!(miri) { 4 } else { 256 }, ..ProptestConfig::default() })]
        #[test]
        fn no_text_brings_it_down_and_none_becomes_more_than_it_says(text in "\\PC{0,24}") {
            if let Ok(Some(found)) = read(&[(MEMORY, &text)]) {
                let digits: String = text.trim().chars().take_while(char::is_ascii_alphanumeric).collect();
                prop_assert_eq!(found.memory[0].unwrap_or(0), bytes(&digits).unwrap_or(0));
            }
        }
    }
}
