//! The validated request: every flag is valid by itself. [`crate::plan`] compares them with the GPU and the
//! share.
#![forbid(unsafe_code)]

use crate::flags::RunFlags;
use std::ffi::{OsStr, OsString};
use std::fmt;

use vgpu_abi::limits::{ComputePolicy, Priority};
use vgpu_api::request::{CORES_MAX, MEMORY_MIN};
use vgpu_quantity::quoted;

/// The request of a `vgpu run`; None = flag left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Bytes.
    pub memory: Option<u64>,
    pub cores: Option<u32>,
    pub compute_policy: Option<ComputePolicy>,
    pub priority: Option<Priority>,
    pub share: Option<String>,
    pub gpu: Option<GpuChoice>,
    pub soft_gpu: bool,
    pub verbose: bool,
    /// Print the waits of COMMAND's processes at its end.
    pub report: bool,
    /// Program and arguments; at least one.
    pub command: Vec<OsString>,
}

/// One GPU as the caller names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuChoice {
    Index(u32),
    Uuid(String),
}

/// A flag with a value that is not valid.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    #[error("--memory: {0}")]
    Quantity(#[from] vgpu_quantity::WholeError),
    #[error("--memory {}: below the minimum of 64Mi; a number without a unit counts bytes: write 20Gi for GiB", quoted(.0))]
    MemoryTooSmall(String),
    #[error("--cores {}: not a whole percentage from 0 to 100", quoted(.0))]
    Cores(String),
    #[error("--compute-policy {}: not one of guaranteed, balanced, unlimited", quoted(.0))]
    ComputePolicy(String),
    #[error("--priority {}: not one of high, low", quoted(.0))]
    Priority(String),
    #[error("--share {}: not a name of 1 to 63 characters out of a-z, 0-9 and -", quoted(.0))]
    Share(String),
    #[error("--gpu {}: neither an index (0, 1, ...) nor a UUID (GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx)", quoted(.0))]
    Gpu(String),
}

impl Request {
    /// Parses the flags' values.
    ///
    /// # Errors
    /// The first flag with a value that is not valid.
    pub fn from_flags(flags: RunFlags) -> Result<Self, FlagError> {
        Ok(Self {
            memory: flags.memory.as_deref().map(memory).transpose()?,
            cores: flags.cores.as_deref().map(cores).transpose()?,
            compute_policy: flags.compute_policy.as_deref().map(compute_policy).transpose()?,
            priority: flags.priority.as_deref().map(priority).transpose()?,
            share: flags.share.as_deref().map(share).transpose()?,
            gpu: flags.gpu.as_deref().map(gpu).transpose()?,
            soft_gpu: flags.soft_gpu,
            verbose: flags.verbose,
            report: flags.report,
            command: flags.command,
        })
    }
}

fn memory(text: &OsStr) -> Result<u64, FlagError> {
    let text = text.to_string_lossy();
    match u64::try_from(vgpu_quantity::whole(&text)?) {
        Ok(bytes) if bytes >= MEMORY_MIN => Ok(bytes),
        _ => Err(FlagError::MemoryTooSmall(text.into_owned())),
    }
}

fn cores(text: &OsStr) -> Result<u32, FlagError> {
    let text = text.to_string_lossy();
    digits(&text)
        .filter(|cores| *cores <= CORES_MAX)
        .ok_or_else(|| FlagError::Cores(text.into_owned()))
}

fn compute_policy(text: &OsStr) -> Result<ComputePolicy, FlagError> {
    use ComputePolicy::{Balanced, Guaranteed, Unlimited};
    let text = text.to_string_lossy();
    let known = [Guaranteed, Balanced, Unlimited];
    let named = known.into_iter().find(|policy| word(policy.name()) == word(&text));
    named.ok_or_else(|| FlagError::ComputePolicy(text.into_owned()))
}

fn priority(text: &OsStr) -> Result<Priority, FlagError> {
    let text = text.to_string_lossy();
    let named = [Priority::High, Priority::Low]
        .into_iter()
        .find(|priority| word(priority.name()) == word(&text));
    named.ok_or_else(|| FlagError::Priority(text.into_owned()))
}

/// The word of a flag for a name in the limits file.
#[must_use]
pub fn word(name: &str) -> String {
    name.to_ascii_lowercase()
}

fn share(text: &OsStr) -> Result<String, FlagError> {
    let text = text.to_string_lossy();
    if vgpu_abi::limits::is_share_name(&text) {
        Ok(text.into_owned())
    } else {
        Err(FlagError::Share(text.into_owned()))
    }
}

fn gpu(text: &OsStr) -> Result<GpuChoice, FlagError> {
    let text = text.to_string_lossy();
    if let Some(index) = digits(&text) {
        return Ok(GpuChoice::Index(index));
    }
    if is_uuid(&text) {
        return Ok(GpuChoice::Uuid(text.into_owned()));
    }
    Err(FlagError::Gpu(text.into_owned()))
}

/// Digits alone: no sign, no spaces.
fn digits(text: &str) -> Option<u32> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

fn is_uuid(text: &str) -> bool {
    let Some(hex) = text.strip_prefix("GPU-") else {
        return false;
    };
    hex.len() == 36
        && hex.bytes().enumerate().all(|(at, b)| match at {
            8 | 13 | 18 | 23 => b == b'-',
            _ => b.is_ascii_hexdigit(),
        })
}

impl fmt::Display for GpuChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(index) => write!(f, "{index}"),
            Self::Uuid(uuid) => f.write_str(uuid),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "GPU-3f8a1c20-1111-2222-3333-444455556666";

    fn request(set: impl FnOnce(&mut RunFlags)) -> Result<Request, FlagError> {
        let mut flags = RunFlags {
            command: vec!["true".into()],
            ..RunFlags::default()
        };
        set(&mut flags);
        Request::from_flags(flags)
    }

    #[test]
    fn sound_values_are_read() {
        assert_eq!(
            request(|f| f.memory = Some("20Gi".into())).unwrap().memory,
            Some(20 << 30)
        );
        assert_eq!(
            request(|f| f.memory = Some("64Mi".into())).unwrap().memory,
            Some(64 << 20)
        );
        assert_eq!(request(|f| f.cores = Some("100".into())).unwrap().cores, Some(100));
        assert_eq!(request(|f| f.cores = Some("0".into())).unwrap().cores, Some(0));
        for (text, policy) in [
            ("guaranteed", ComputePolicy::Guaranteed),
            ("balanced", ComputePolicy::Balanced),
            ("Unlimited", ComputePolicy::Unlimited),
        ] {
            let read = request(|f| f.compute_policy = Some(text.into())).unwrap();
            assert_eq!(read.compute_policy, Some(policy));
        }
        for (text, priority) in [("high", Priority::High), ("low", Priority::Low)] {
            assert_eq!(
                request(|f| f.priority = Some(text.into())).unwrap().priority,
                Some(priority)
            );
        }
        assert_eq!(
            request(|f| f.gpu = Some("1".into())).unwrap().gpu,
            Some(GpuChoice::Index(1))
        );
        assert_eq!(
            request(|f| f.gpu = Some(UUID.into())).unwrap().gpu,
            Some(GpuChoice::Uuid(UUID.into()))
        );
        assert_eq!(
            request(|f| f.share = Some("a-1".into())).unwrap().share,
            Some("a-1".into())
        );
    }

    #[test]
    fn nonsense_names_the_flag_and_its_value() {
        let long = "a".repeat(64);
        type Set = fn(&mut RunFlags, OsString);
        let cases: [(&str, Set, &[&str]); 6] = [
            (
                "--memory",
                |f, v| f.memory = Some(v),
                &[
                    "20",
                    "-1Gi",
                    "63Mi",
                    "1.5",
                    "20GB",
                    "abc",
                    "250m",
                    "9999999Ti",
                    "0",
                    "20 Gi",
                    "--cores",
                ],
            ),
            (
                "--cores",
                |f, v| f.cores = Some(v),
                &["", "101", "-1", "+5", "250m", "1.5", "a", "5%", "99999999999", " 5"],
            ),
            (
                "--compute-policy",
                |f, v| f.compute_policy = Some(v),
                &["", "balance", "none", "guaranteed ", "--priority"],
            ),
            (
                "--priority",
                |f, v| f.priority = Some(v),
                &["", "highest", "0", "medium", "-1"],
            ),
            (
                "--share",
                |f, v| f.share = Some(v),
                &["", ".", "..", "a/b", "A", "a_b", "../x", "a\nb", &long, "ä"],
            ),
            (
                "--gpu",
                |f, v| f.gpu = Some(v),
                &[
                    "",
                    "-1",
                    "gpu0",
                    "GPU-",
                    "GPU-3f8a1c20",
                    "0,1",
                    "1.0",
                    "all",
                    "99999999999",
                    "MIG-3f8a1c20-1111-2222-3333-444455556666",
                ],
            ),
        ];
        for (flag, set, values) in cases {
            for value in values {
                let line = request(|f| set(f, value.into())).unwrap_err().to_string();
                assert!(line.starts_with(flag), "{flag} {value:?}: {line}");
                assert!(line.contains(&format!("{value:?}")), "{flag} {value:?}: {line}");
                assert_eq!(line.lines().count(), 1, "{flag} {value:?}: {line}");
            }
        }
        assert!(
            request(|f| f.memory = Some("".into()))
                .unwrap_err()
                .to_string()
                .starts_with("--memory: ")
        );
    }

    #[test]
    fn bytes_that_are_no_text_are_nonsense_too() {
        use std::os::unix::ffi::OsStringExt;
        let bytes = OsString::from_vec(vec![b'1', 0xff]);
        assert!(request(|f| f.memory = Some(bytes.clone())).is_err());
        assert!(request(|f| f.share = Some(bytes)).is_err());
    }

    #[test]
    fn a_long_value_is_shortened() {
        type Set = fn(&mut RunFlags, OsString);
        let sets: [(&str, Set); 6] = [
            ("--memory", |f, v| f.memory = Some(v)),
            ("--cores", |f, v| f.cores = Some(v)),
            ("--share", |f, v| f.share = Some(v)),
            ("--compute-policy", |f, v| f.compute_policy = Some(v)),
            ("--priority", |f, v| f.priority = Some(v)),
            ("--gpu", |f, v| f.gpu = Some(v)),
        ];
        for (flag, set) in sets {
            // No number, too large a one, a fraction, one with an unknown unit, and one that only as memory is too small.
            let zero = (flag == "--memory").then_some("0");
            for value in ["x", "9", "0.1", "9 gi"].into_iter().chain(zero) {
                let long = format!("{}{value}", value.chars().next().unwrap().to_string().repeat(5000));
                let line = request(|f| set(f, long.into())).unwrap_err().to_string();
                assert!(line.starts_with(flag) && line.len() < 300, "{line}");
                assert!(line.contains(&format!("{}...", &value[..1])), "{line}");
            }
        }
    }
}
