//! The validated request: every flag is valid by itself. [`crate::plan`] compares them with the GPU and the
//! share.
#![forbid(unsafe_code)]

use crate::flags::RunFlags;
use std::ffi::{OsStr, OsString};
use std::fmt;

use vgpu_abi::limits::{ComputePolicy, Priority};
use vgpu_api::gpu_memory;
use vgpu_api::request::{CORES_MAX, MEMORY_MIN};
use vgpu_node::gpus::MemorySizes;
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
    pub gpu_memory: MemorySizes,
    pub soft_gpu: bool,
    pub verbose: bool,
    /// Print the waits of COMMAND's processes at its end.
    pub report: bool,
    /// Program and arguments; at least one.
    pub command: Vec<OsString>,
}

/// One GPU, or an instance of one in MIG mode, as the caller names it.
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
    #[error("--gpu-memory {0}")]
    GpuMemory(#[from] gpu_memory::SizeError),
    #[error("--share {}: not a name of 1 to 63 characters out of a-z, 0-9 and -", quoted(.0))]
    Share(String),
    #[error("--gpu {}: neither an index (0, 1, ...) nor a UUID (GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx, or MIG-... for an instance)", quoted(.0))]
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
            gpu_memory: gpu_memory(&flags.gpu_memory)?,
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

fn gpu_memory(texts: &[OsString]) -> Result<MemorySizes, FlagError> {
    let texts: Vec<_> = texts.iter().map(|text| text.to_string_lossy()).collect();
    Ok(MemorySizes(gpu_memory::parse_all(texts.iter().map(AsRef::as_ref))?))
}

/// Digits alone: no sign, no spaces.
fn digits(text: &str) -> Option<u32> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

fn is_uuid(text: &str) -> bool {
    let Some(hex) = text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-")) else {
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
pub(crate) mod tests {
    use super::*;
    use clap::Parser as _;
    use std::iter;

    const UUID: &str = "GPU-3f8a1c20-1111-2222-3333-444455556666";

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        flags: RunFlags,
    }

    fn read(words: impl IntoIterator<Item = OsString>) -> Result<Request, FlagError> {
        let line = iter::once("run".into()).chain(words);
        let line = Line::try_parse_from(line.chain(["--".into(), "true".into()]));
        Request::from_flags(line.unwrap_or_else(|error| panic!("{error}")).flags)
    }

    /// The request of a command with these flags, each with a value.
    pub(crate) fn asked(flags: &str) -> Request {
        read(flags.split(' ').filter(|word| !word.is_empty()).map(OsString::from)).unwrap()
    }

    #[test]
    fn sound_values_are_read() {
        assert_eq!(asked("--memory 20Gi").memory, Some(20 << 30));
        assert_eq!(asked("--memory 64Mi").memory, Some(64 << 20));
        assert_eq!(asked("--cores 100").cores, Some(100));
        assert_eq!(asked("--cores 0").cores, Some(0));
        for (text, policy) in [
            ("guaranteed", ComputePolicy::Guaranteed),
            ("balanced", ComputePolicy::Balanced),
            ("Unlimited", ComputePolicy::Unlimited),
        ] {
            assert_eq!(asked(&format!("--compute-policy {text}")).compute_policy, Some(policy));
        }
        assert_eq!(asked("--priority high").priority, Some(Priority::High));
        assert_eq!(asked("--priority low").priority, Some(Priority::Low));
        assert_eq!(asked("--gpu 1").gpu, Some(GpuChoice::Index(1)));
        assert_eq!(asked(&format!("--gpu {UUID}")).gpu, Some(GpuChoice::Uuid(UUID.into())));
        let instance = UUID.replace("GPU", "MIG");
        assert_eq!(asked(&format!("--gpu {instance}")).gpu, Some(GpuChoice::Uuid(instance)));
        assert_eq!(asked("--share a-1").share, Some("a-1".into()));
    }

    /// A flag, and values that it does not take.
    const NONSENSE: &str = r#"
--memory ["20", "-1Gi", "63Mi", "1.5", "20GB", "abc", "250m", "9999999Ti", "0", "20 Gi", "--cores"]
--cores ["", "101", "-1", "+5", "250m", "1.5", "a", "5%", "99999999999", " 5"]
--compute-policy ["", "balance", "none", "guaranteed ", "--priority"]
--priority ["", "highest", "0", "medium", "-1"]
--share ["", ".", "..", "a/b", "A", "a_b", "../x", "a\nb", "ä"]
--gpu ["", "-1", "gpu0", "GPU-", "GPU-3f8a1c20", "0,1", "1.0", "all", "99999999999"]
--gpu ["MIG-3f8a1c20", "MIG-GPU-3f8a1c20-1111-2222-3333-444455556666/1/0"]
--gpu-memory ["", "NVIDIA GB10", "=96Gi", "NVIDIA GB10=96GB", "NVIDIA GB10=1", "NVIDIA GB10=11Ti"]
--share ["aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"]"#;

    #[test]
    fn nonsense_names_the_flag_and_its_value() {
        for row in NONSENSE.trim().lines() {
            let (flag, values) = row.split_once(' ').expect("a flag and values");
            for value in serde_json::from_str::<Vec<String>>(values).expect(row) {
                let line = read([flag.into(), value.clone().into()]).unwrap_err().to_string();
                assert!(line.starts_with(flag), "{flag} {value:?}: {line}");
                assert!(line.contains(&format!("{value:?}")), "{flag} {value:?}: {line}");
                assert_eq!(line.lines().count(), 1, "{flag} {value:?}: {line}");
            }
        }
        let line = read(["--memory".into(), "".into()]).unwrap_err().to_string();
        assert!(line.starts_with("--memory: "), "{line}");
    }

    #[test]
    fn bytes_that_are_no_text_are_nonsense_too() {
        use std::os::unix::ffi::OsStringExt;
        for flag in ["--memory", "--share"] {
            let bytes = OsString::from_vec(vec![b'1', 0xff]);
            assert!(read([flag.into(), bytes]).is_err(), "{flag}");
        }
    }

    #[test]
    fn a_long_value_is_shortened() {
        for flag in [
            "--memory",
            "--cores",
            "--share",
            "--compute-policy",
            "--priority",
            "--gpu",
        ] {
            // Not a number, too large, a fraction, an unknown unit, and a value that is only too small for memory.
            let zero = (flag == "--memory").then_some("0");
            for value in ["x", "9", "0.1", "9 gi"].into_iter().chain(zero) {
                let long = format!("{}{value}", value[..1].repeat(5000));
                let line = read([flag.into(), long.into()]).unwrap_err().to_string();
                assert!(line.starts_with(flag) && line.len() < 300, "{line}");
                assert!(line.contains(&format!("{}...", &value[..1])), "{line}");
            }
        }
    }
}
