//! The limits file of a share. The plugin or `vgpu run` writes it once; every process of the share reads it. It is
//! read-only in the container.
//!
//! It is text, so that people can read it: a first line with format and version, `key value` lines in any order, and a
//! last line with a CRC-32 of all bytes before it, which detects truncated and edited files:
//!
//! ```text
//! vgpu-limits 1
//! share 6e2a4c1e-0d5c-4f0e-9a5b-0c5b1f1b2a3c
//! order 0
//! gpu GPU-3f8a1c20-1111-2222-3333-444455556666
//! memory 21474836480
//! cores 25
//! compute-policy Balanced
//! priority Low
//! slot 3
//! host-memory 0
//! context-reserve 0
//! context-unowned 0
//! libcuda /usr/lib/vgpu/driver/libcuda.so.1
//! libnvidia-ml /usr/lib/vgpu/driver/libnvidia-ml.so.1
//! crc32 1a2b3c4d
//! ```
//!
//! A reader refuses unknown keys, because one may be a limit. So a new key needs a new version, which a claim's library may
//! not read: a claim keeps the library that first prepared it (docs/adr/0012-formats-are-compatible-from-0.1.0.md).

use crate::arbitration::SLOTS;
use crate::checksum::crc32;
use std::fmt;
use std::path::{Path, PathBuf};

/// A limits file is not larger than this, so a reader can stop here.
pub const MAX_SIZE: usize = 16 * 1024;

/// Bytes that the driver may count for the processes of a share above its memory: a context can take more than was
/// measured. More is a breach (docs/truth.md), and the driver's own limit of a cgroup grants as much.
pub const TOLERANCE: u64 = 64 << 20;

/// The first line of the file: the format's name and version.
const HEADER: &str = "vgpu-limits 1";

/// The limits of one share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The share's name: a shareID, a device's name, or the name given to `vgpu run`.
    pub share: String,
    /// Index among the shares of its claim. An allocation is split over several shares of a GPU in this order.
    pub order: u32,
    /// UUID of the GPU, as NVML prints it.
    pub gpu: String,
    /// Device memory in bytes.
    pub memory: u64,
    /// Percent of the GPU's time, 0 to 100.
    pub cores: u32,
    pub compute_policy: ComputePolicy,
    pub priority: Priority,
    /// Number of the share's arbitration page. None: the share has no page.
    pub slot: Option<u8>,
    /// Bytes of host memory beyond `memory` (memoryPolicy Oversubscribe); 0 = none.
    pub host_memory: u64,
    /// Size of a CUDA context on this GPU and driver, charged for each context before the driver is called. None: it
    /// was not measured. The file stores None as 0 and Some(0) as 1.
    pub context_reserve: Option<u64>,
    /// GPU memory of a context beyond what NVML lists for its process, in bytes. Charged for each context.
    pub context_unowned: u64,
    /// The real driver's libraries.
    pub libcuda: PathBuf,
    pub libnvidia_ml: PathBuf,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ComputePolicy {
    /// The share never gets more than `cores`.
    Guaranteed,
    /// The share gets at least `cores`, and a part of the idle time.
    #[default]
    Balanced,
    /// The share is never held back.
    Unlimited,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    High,
    #[default]
    Low,
}

/// Why a limits file is refused. The reader adds the file's path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParseError {
    /// Longer than [`MAX_SIZE`], or not UTF-8, or no line at all.
    NotText,
    /// Another format or version; the text is its first line.
    Version(String),
    /// The file was cut off, or changed after it was written.
    Checksum,
    Missing(&'static str),
    Unknown(String),
    Repeated(String),
    /// Key and value.
    Invalid(&'static str, String),
}

// === impl Limits ===

impl Limits {
    /// Returns limits with this much device memory and defaults for everything else.
    #[must_use]
    pub fn of_memory(
        share: impl Into<String>,
        gpu: impl Into<String>,
        memory: u64,
        libcuda: impl Into<PathBuf>,
        libnvidia_ml: impl Into<PathBuf>,
    ) -> Self {
        Self {
            share: share.into(),
            order: 0,
            gpu: gpu.into(),
            memory,
            cores: 0,
            compute_policy: ComputePolicy::default(),
            priority: Priority::default(),
            slot: None,
            host_memory: 0,
            context_reserve: None,
            context_unowned: 0,
            libcuda: libcuda.into(),
            libnvidia_ml: libnvidia_ml.into(),
        }
    }

    /// The file's bytes.
    #[must_use]
    pub fn render(&self) -> String {
        let slot = self.slot.map_or_else(|| "-".to_owned(), |slot| slot.to_string());
        let mut text = format!(
            "{HEADER}\nshare {}\norder {}\ngpu {}\nmemory {}\ncores {}\ncompute-policy {}\npriority {}\nslot {slot}\n\
             host-memory {}\ncontext-reserve {}\ncontext-unowned {}\nlibcuda {}\nlibnvidia-ml {}\n",
            self.share,
            self.order,
            self.gpu,
            self.memory,
            self.cores,
            self.compute_policy.name(),
            self.priority.name(),
            self.host_memory,
            self.context_reserve.map_or(0, |bytes| bytes.max(1)),
            self.context_unowned,
            self.libcuda.display(),
            self.libnvidia_ml.display(),
        );
        let crc = crc32(text.as_bytes());
        text.push_str(&format!("crc32 {crc:08x}\n"));
        text
    }

    /// Reads what [`Limits::render`] wrote.
    ///
    /// # Errors
    /// Anything that was not written by [`Limits::render`] is refused.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        if bytes.len() > MAX_SIZE {
            return Err(ParseError::NotText);
        }
        let text = std::str::from_utf8(bytes).map_err(|_| ParseError::NotText)?;
        let first = text.lines().next().ok_or(ParseError::NotText)?;
        if first != HEADER {
            return Err(ParseError::Version(first.chars().take(64).collect()));
        }
        let body = checked_body(text).ok_or(ParseError::Checksum)?;
        let mut fields = Fields::default();
        for line in body.lines().skip(1) {
            let (key, value) = line
                .split_once(' ')
                .ok_or_else(|| ParseError::Unknown(line.to_owned()))?;
            fields.set(key, value)?;
        }
        fields.into_limits()
    }
}

/// Returns the text before a last line `crc32 <hex of that text>`.
fn checked_body(text: &str) -> Option<&str> {
    let (head, crc) = text.strip_suffix('\n')?.rsplit_once('\n')?;
    let body = &text[..=head.len()];
    let stored = crc.strip_prefix("crc32 ").filter(|hex| hex.len() == 8)?;
    (u32::from_str_radix(stored, 16).ok()? == crc32(body.as_bytes())).then_some(body)
}

// === impl Fields ===

/// Every key of the file, in the order in which it is written.
const KEYS: [&str; 13] = [
    "share",
    "order",
    "gpu",
    "memory",
    "cores",
    "compute-policy",
    "priority",
    "slot",
    "host-memory",
    "context-reserve",
    "context-unowned",
    "libcuda",
    "libnvidia-ml",
];

/// The value of each key that was read.
#[derive(Default)]
struct Fields<'a>([Option<&'a str>; KEYS.len()]);

impl<'a> Fields<'a> {
    fn set(&mut self, key: &str, value: &'a str) -> Result<(), ParseError> {
        let index = KEYS
            .iter()
            .position(|known| *known == key)
            .ok_or_else(|| ParseError::Unknown(key.to_owned()))?;
        match self.0[index].replace(value) {
            None => Ok(()),
            Some(_) => Err(ParseError::Repeated(key.to_owned())),
        }
    }

    fn get(&self, key: &'static str) -> Result<&'a str, ParseError> {
        let index = KEYS.iter().position(|known| *known == key);
        index.and_then(|i| self.0[i]).ok_or(ParseError::Missing(key))
    }

    fn parsed<T>(&self, key: &'static str, parse: impl FnOnce(&str) -> Option<T>) -> Result<T, ParseError> {
        let value = self.get(key)?;
        parse(value).ok_or_else(|| ParseError::Invalid(key, value.to_owned()))
    }

    fn into_limits(self) -> Result<Limits, ParseError> {
        let text = |v: &str| (!v.is_empty()).then(|| v.to_owned());
        let path = |v: &str| v.starts_with('/').then(|| Path::new(v).to_path_buf());
        Ok(Limits {
            share: self.parsed("share", |v| is_share_name(v).then(|| v.to_owned()))?,
            order: self.parsed("order", |v| v.parse().ok())?,
            gpu: self.parsed("gpu", text)?,
            memory: self.parsed("memory", |v| v.parse().ok().filter(|m| *m > 0))?,
            cores: self.parsed("cores", |v| v.parse().ok().filter(|c| *c <= 100))?,
            compute_policy: self.parsed("compute-policy", ComputePolicy::from_name)?,
            priority: self.parsed("priority", Priority::from_name)?,
            slot: self.parsed("slot", slot)?,
            host_memory: self.parsed("host-memory", |v| v.parse().ok())?,
            context_reserve: self.parsed("context-reserve", |v| v.parse().ok().map(context_reserve))?,
            context_unowned: self.parsed("context-unowned", |v| v.parse().ok())?,
            libcuda: self.parsed("libcuda", path)?,
            libnvidia_ml: self.parsed("libnvidia-ml", path)?,
        })
    }
}

/// Returns the slot that the file names, if any.
fn slot(value: &str) -> Option<Option<u8>> {
    match value {
        "-" => Some(None),
        number => number.parse().ok().filter(|slot| usize::from(*slot) < SLOTS).map(Some),
    }
}

/// Returns the size that the number in the file means.
fn context_reserve(number: u64) -> Option<u64> {
    match number {
        0 => None,
        1 => Some(0),
        bytes => Some(bytes),
    }
}

/// Returns true if `name` can be a share's name, and so a directory's: `[a-z0-9-]`, 1 to 63 bytes.
#[must_use]
pub fn is_share_name(name: &str) -> bool {
    (1..=63).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

// === impl ComputePolicy, Priority ===

impl ComputePolicy {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Balanced => "Balanced",
            Self::Unlimited => "Unlimited",
        }
    }

    /// Returns the policy for a share: a share with the whole memory and no cores is alone on its GPU, so Balanced
    /// would hold it back without a reason.
    #[must_use]
    pub fn of_share(self, cores: u32, is_whole: bool) -> Self {
        match self {
            Self::Balanced if cores == 0 && is_whole => Self::Unlimited,
            policy => policy,
        }
    }

    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Guaranteed, Self::Balanced, Self::Unlimited]
            .into_iter()
            .find(|p| p.name() == name)
    }
}

impl Priority {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::High => "High",
            Self::Low => "Low",
        }
    }

    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::High, Self::Low].into_iter().find(|p| p.name() == name)
    }
}

// === impl ParseError ===

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotText => write!(f, "not a limits file (text of at most {MAX_SIZE} bytes)"),
            Self::Version(line) => write!(
                f,
                "first line {line:?} is not {HEADER:?}: library and plugin differ in version"
            ),
            Self::Checksum => write!(f, "checksum does not match: the file is cut or was changed"),
            Self::Missing(key) => write!(f, "field {key} is missing"),
            Self::Unknown(key) => write!(f, "field {key:?} is unknown: library and plugin differ in version"),
            Self::Repeated(key) => write!(f, "field {key:?} is given twice"),
            Self::Invalid(key, value) => write!(f, "field {key} has the invalid value {value:?}"),
        }
    }
}

impl std::error::Error for ParseError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Limits {
        Limits {
            cores: 25,
            slot: Some(3),
            context_unowned: 64 << 20,
            ..Limits::of_memory(
                "6e2a4c1e-0d5c-4f0e-9a5b-0c5b1f1b2a3c",
                "GPU-3f8a1c20-1111-2222-3333-444455556666",
                20 << 30,
                "/usr/lib/vgpu/driver/libcuda.so.1",
                "/usr/lib/vgpu/driver/libnvidia-ml.so.1",
            )
        }
    }

    fn sealed(body: &str) -> Vec<u8> {
        format!("{body}crc32 {:08x}\n", crc32(body.as_bytes())).into_bytes()
    }

    fn body_of(limits: &Limits) -> String {
        let text = limits.render();
        text[..text.rfind("crc32").expect("a last line")].to_owned()
    }

    #[test]
    fn version_1_is_read_and_written_as_it_was_first_written() {
        let golden: &[u8] = include_bytes!("../testdata/limits-v1");
        assert_eq!(Limits::parse(golden), Ok(example()));
        assert_eq!(example().render().as_bytes(), golden);
    }

    #[test]
    fn a_slot_is_one_of_the_pages_or_none() {
        for slot in [None, Some(0), Some(63)] {
            let limits = Limits { slot, ..example() };
            assert_eq!(Limits::parse(limits.render().as_bytes()), Ok(limits));
        }
        let body = body_of(&example());
        let with = |from: &str, to: &str| Limits::parse(&sealed(&body.replace(from, to)));
        for bad in ["64", "256", "-1", "", "node", "--"] {
            let refused = Err(ParseError::Invalid("slot", bad.into()));
            assert_eq!(with("slot 3", &format!("slot {bad}")), refused);
        }
        assert_eq!(with("slot 3\n", ""), Err(ParseError::Missing("slot")));
    }

    #[test]
    fn every_cut_and_every_changed_byte_is_refused() {
        let bytes = example().render().into_bytes();
        // Under Miri, tests only the first byte of each line and the last bytes, which belong to the checksum.
        let starts = |at: &usize| *at == 0 || bytes[at - 1] == b'\n' || at + 3 > bytes.len();
        let places: Vec<usize> = (0..bytes.len()).filter(|at| !cfg!(miri) || starts(at)).collect();
        for end in &places {
            assert!(Limits::parse(&bytes[..*end]).is_err(), "cut at {end}");
        }
        for at in places {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(Limits::parse(&changed).is_err(), "byte {at} changed");
        }
    }

    #[test]
    fn an_error_names_the_field() {
        let body = body_of(&example());
        let with = |from: &str, to: &str| Limits::parse(&sealed(&body.replace(from, to)));
        assert_eq!(with("memory 21474836480\nc", "c"), Err(ParseError::Missing("memory")));
        assert_eq!(
            with("cores 25", "cores 101"),
            Err(ParseError::Invalid("cores", "101".into()))
        );
        assert_eq!(
            with("\nmemory 21474836480", "\nmemory 0"),
            Err(ParseError::Invalid("memory", "0".into()))
        );
        assert_eq!(
            with("share 6e2a", "share ../6e2a")
                .unwrap_err()
                .to_string()
                .split(' ')
                .nth(1),
            Some("share")
        );
        assert_eq!(
            with("cores 25", "cores 25\ncolour 3"),
            Err(ParseError::Unknown("colour".into()))
        );
        assert_eq!(
            with("cores 25", "cores 25\ncores 25"),
            Err(ParseError::Repeated("cores".into()))
        );
        assert_eq!(
            with("libcuda /usr", "libcuda usr")
                .unwrap_err()
                .to_string()
                .split(' ')
                .nth(1),
            Some("libcuda")
        );
        assert_eq!(
            with("vgpu-limits 1", "vgpu-limits 2"),
            Err(ParseError::Version("vgpu-limits 2".into()))
        );
    }

    #[test]
    fn a_context_of_unknown_size_is_not_one_that_takes_nothing() {
        for context_reserve in [None, Some(0), Some(518 << 20)] {
            let limits = Limits {
                context_reserve,
                ..example()
            };
            assert_eq!(Limits::parse(limits.render().as_bytes()), Ok(limits));
        }
        let unmeasured = body_of(&example());
        assert!(
            unmeasured.contains("\ncontext-reserve 0\n"),
            "0 in the file says that nobody measured it"
        );
    }

    #[test]
    fn only_a_whole_gpu_without_cores_is_not_held_back_unasked() {
        use ComputePolicy::{Balanced, Guaranteed, Unlimited};
        for (policy, cores, is_whole, expected) in [
            (Balanced, 0, true, Unlimited),
            (Balanced, 0, false, Balanced),
            (Balanced, 30, true, Balanced),
            (Guaranteed, 0, true, Guaranteed),
            (Unlimited, 30, false, Unlimited),
        ] {
            assert_eq!(policy.of_share(cores, is_whole), expected);
        }
    }

    #[test]
    fn share_names_are_directory_names() {
        for good in ["a", "gpu-3f8a1c20", &"a".repeat(63)] {
            assert!(is_share_name(good), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "A", "a_b", "a\n", &"a".repeat(64)] {
            assert!(!is_share_name(bad), "{bad:?}");
        }
    }
}
