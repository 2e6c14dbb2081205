//! Describes the software GPUs: a text file of `key = value` lines, `#` starts a comment.
//!
//! | key | value | default |
//! |---|---|---|
//! | `name` | product name, 1 to 63 bytes | `Software GPU H100-80GB` |
//! | `gpus` | how many, 1 to 16 | `2` |
//! | `memory` | what clients can allocate on each | `80GiB` |
//! | `reserved` | what the driver keeps; NVML's total is memory + reserved | `512MiB` |
//! | `granularity` | a power of two from 4KiB to 1GiB; memory is a multiple of it | `2MiB` |
//! | `context_cost` | what a context takes, rounded up to the granularity | `0` |
//! | `context_time` | how long it takes to make one, or to raise one of its limits, once its memory is taken (`ns`, `us`, `ms`, `s`) | `0ns` |
//! | `module_cost` | what a loaded module or library takes, rounded up likewise | `0` |
//! | `function_cost` | memory that a function takes at its first launch, rounded up likewise: a driver loads code lazily | `0` |
//! | `nvml_pids` | the processes that NVML lists: `own`, those of the caller's PID namespace by their PIDs there; `host`, all of them by numbers that no process has there, as a real driver in a container; `none` | `own` |
//! | `nvml_managed` | whether NVML includes managed memory in a process's figure: `no`, as in the source of the open kernel module (580), where the UVM module's allocations are in no process's figure; or `yes` | `no` |
//! | `nvml_imports` | whether NVML lists memory of another process, imported by a handle or a descriptor, for its importer as well: `no`, as is believed; or `yes` | `no` |
//! | `memory_limits` | whether cgroups can have limits of GPU memory, as with drivers from r615 on: `none`; `dmem`, kept by the kernel's controller; or `misc`, kept by the driver (see `memory_limits`) | `none` |
//! | `context_unowned` | memory that the GPU has less while a context exists and that NVML lists for no process, in addition to `context_cost`: page tables, buffers of the driver | `0` |
//! | `unified` | the indices of GPUs whose memory is also the system's, comma-separated: NVML has no figure of it (both versions of nvmlDeviceGetMemoryInfo answer NOT_SUPPORTED), and CUDA calls the GPU integrated | none |
//! | `unified_name` | product name of these, 1 to 63 bytes | `Software GPU GB10` |
//! | `nvlink` | NVLinks between GPUs, comma-separated: `0-3`, one switch that joins GPUs 0 to 3; `0=1`, a link between two; `0>1`, a link of GPU 0 to GPU 1 of which GPU 1 knows nothing, as no sound machine has | none |
//! | `fabric` | `CLUSTER.CLIQUE`: UUID of the fabric, in 32 hex digits, and number of the clique to which all GPUs belong | none |
//! | `mig` | GPUs in MIG mode and their instances: `0: 3g.40gb@0, 1g.10gb@4; 1:` (see `mig`) | none |
//! | `mig_product` | whose instance profiles these are: `a30-24gb`, `a100-40gb`, `a100-80gb`, `h100-80gb`, `h100-80gb-pcie`, `h200-141gb`, `b200-180gb`, `rtx-pro-6000-96gb`; or `none`, a GPU without MIG mode | `h100-80gb` |
//! | `sms` | multiprocessors | `132` |
//! | `compute_capability` | `major.minor` | `9.0` |
//! | `driver_version` | as NVML reports it | `550.163.01` |
//! | `cuda_version` | `major.minor` of the driver | `12.4` |
//! | `pci` | one `domain:bus:device.function` a GPU, comma-separated | `0000:1b:00.0`, ... |
//! | `kernel_time` | what a wave of thread blocks takes (`ns`, `us`, `ms`, `s`) | `5us` |
//! | `slice` | how long a context runs while others have work | `2ms` |
//! | `switch_time` | the time of a change from one context to another | `100us` |
//! | `event_stop` | how long a stream stops at each event, while others go on: some 1.5 us of GPU time are believed of hardware | `0ns` |
//! | `late_events` | whether a context that is switched out with work left reports ends and passes events only when it is next on the GPU: `no`, or `yes` | `no` |
//! | `clock` | `real`, or `virtual`: time stands still while threads compute (see `virtual_time`) | `real` |
//! | `fail.FUNCTION` | `CODE [after N] [every M]`: the function returns CODE, after N good calls, every M-th call | none |
//!
//! Sizes are bytes, or carry KiB, MiB, GiB or TiB. A wrong line is an error that names line and key; nothing
//! is guessed.

use std::fmt;

use crate::mig::{GpuInstance, MigGpu};
use crate::products::Product;

/// One GPU address on the PCI bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pci {
    pub domain: u32,
    pub bus: u8,
    pub device: u8,
}

impl fmt::Display for Pci {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.0", self.domain, self.bus, self.device)
    }
}

/// An injected failure: `function` returns `code` on its calls number after + every, after + 2 every, ...
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub function: String,
    pub code: i32,
    pub after: u64,
    pub every: u64,
}

impl Fault {
    /// Returns true if the call with this number (from 1) fails.
    pub fn hits(&self, call: u64) -> bool {
        call > self.after && (call - self.after).is_multiple_of(self.every)
    }
}

/// NVLinks between GPUs, by their indices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NvLink {
    /// A switch that joins these and all between them.
    Switch(u32, u32),
    Pair(u32, u32),
    /// The first one knows of a link to the second one.
    OneWay(u32, u32),
}

type MakeNvLink = fn(u32, u32) -> NvLink;

impl NvLink {
    const SIGNS: [(char, MakeNvLink); 3] = [('-', Self::Switch), ('=', Self::Pair), ('>', Self::OneWay)];

    fn read(text: &str) -> Option<Self> {
        let (sign, make) = Self::SIGNS.into_iter().find(|(sign, _)| text.contains(*sign))?;
        let (one, other) = text.split_once(sign)?;
        let (one, other) = (one.trim().parse().ok()?, other.trim().parse().ok()?);
        let is_sound = if sign == '-' { one < other } else { one != other };
        is_sound.then(|| make(one, other))
    }

    fn ends(self) -> (u32, u32) {
        match self {
            Self::Switch(one, other) | Self::Pair(one, other) | Self::OneWay(one, other) => (one, other),
        }
    }
}

impl fmt::Display for NvLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (one, other) = self.ends();
        let sign = match self {
            Self::Switch(..) => '-',
            Self::Pair(..) => '=',
            Self::OneWay(..) => '>',
        };
        write!(f, "{one}{sign}{other}")
    }
}

/// A fabric, and a clique of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fabric {
    pub cluster: [u8; 16],
    pub clique: u32,
}

/// Declares the words that a key may have as its value.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $word:literal),+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($variant),+
        }

        impl $name {
            fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($word => Some(Self::$variant),)+
                    _ => None,
                }
            }

            fn name(&self) -> String {
                match self {
                    $(Self::$variant => $word.into()),+
                }
            }
        }
    };
}

words! {
    /// Which processes NVML lists, and how.
    NvmlPids { Own = "own", Host = "host", None = "none" }
}

words! {
    /// Who keeps limits of cgroups.
    MemoryLimits { None = "none", Dmem = "dmem", Misc = "misc" }
}

words! {
    /// The clock for the GPUs' work.
    Clock { Real = "real", Virtual = "virtual" }
}

/// Declares the keys of a profile: the field, its type, its default, how it is parsed and formatted, and a description
/// of valid values.
macro_rules! profile {
    ($($key:literal $field:ident: $kind:ty = $default:expr, $read:expr, $write:expr, $expected:literal;)+) => {
        /// A validated profile.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct Profile {
            $(pub $field: $kind,)+
            pub faults: Vec<Fault>,
        }

        impl Default for Profile {
            fn default() -> Self {
                Self {
                    $($field: $default,)+
                    faults: Vec::new(),
                }
            }
        }

        impl Profile {
            /// Sets a key. Returns None if there is no such key, or a description of valid values if the value is
            /// wrong.
            fn put(&mut self, key: &str, value: &str) -> Option<Result<(), &'static str>> {
                match key {
                    $($key => {
                        let read: fn(&str) -> Option<$kind> = $read;
                        Some(read(value).map(|read| self.$field = read).ok_or($expected))
                    })+
                    _ => None,
                }
            }

            fn lines(&self) -> String {
                let mut text = String::new();
                $({
                    let write: fn(&$kind) -> String = $write;
                    text += &format!("{} = {}\n", $key, write(&self.$field));
                })+
                text
            }
        }
    };
}

profile! {
    "name" name: String = "Software GPU H100-80GB".into(), |text| printable(text, 63), String::clone, "1 to 63 printable characters";
    "gpus" gpus: u32 = 2, |text| number(text, MAX_GPUS as u32), u32::to_string, "a number from 1 to 16";
    "memory" memory: u64 = 80 << 30, |text| size(text).filter(|bytes| *bytes > 0), u64::to_string, "a size such as 80GiB";
    "reserved" reserved: u64 = 512 << 20, size, u64::to_string, "a size such as 512MiB";
    "granularity" granularity: u64 = 2 << 20, granule, u64::to_string, "a power of two from 4KiB to 1GiB";
    "context_cost" context_cost: u64 = 0, size, u64::to_string, "a size such as 500MiB";
    "context_time" context_time_ns: u64 = 0, duration_ns, ns, "a time up to 60s";
    "module_cost" module_cost: u64 = 0, size, u64::to_string, "a size such as 6MiB";
    "function_cost" function_cost: u64 = 0, size, u64::to_string, "a size such as 2MiB";
    "nvml_pids" nvml_pids: NvmlPids = NvmlPids::Own, NvmlPids::from_name, NvmlPids::name, "own, host or none";
    "nvml_managed" nvml_managed: bool = false, yes_or_no, word, "yes or no";
    "nvml_imports" nvml_imports: bool = false, yes_or_no, word, "yes or no";
    "memory_limits" memory_limits: MemoryLimits = MemoryLimits::None, MemoryLimits::from_name, MemoryLimits::name, "none, dmem or misc";
    "context_unowned" context_unowned: u64 = 0, size, u64::to_string, "a size such as 64MiB";
    "unified" unified: Vec<u32> = Vec::new(), indices, |list| joined(list), "distinct indices of GPUs, such as 1 or 0, 2";
    "unified_name" unified_name: String = "Software GPU GB10".into(), |text| printable(text, 63), String::clone, "1 to 63 printable characters";
    "nvlink" nvlink: Vec<NvLink> = Vec::new(), nvlinks, |list| joined(list), "links such as 0-3, 4=5";
    "fabric" fabric: Option<Fabric> = None, fabric, fabric_text, "32 hex digits, a dot and a number";
    "mig" mig: Vec<MigGpu> = Vec::new(), MigGpu::list, |list| mig_text(list), "GPUs with instances, such as 0: 3g.40gb@0, 1g.10gb@4; 1:";
    "mig_product" mig_product: &'static Product = Product::named("h100-80gb").expect("a product"), Product::named, |product| product.name.into(), "a30-24gb, a100-40gb, a100-80gb, h100-80gb, h100-80gb-pcie, h200-141gb, b200-180gb, rtx-pro-6000-96gb or none";
    "sms" sms: u32 = 132, |text| number(text, 1024), u32::to_string, "a number from 1 to 1024";
    "compute_capability" compute_capability: (u32, u32) = (9, 0), dotted, with_dot, "major.minor, such as 9.0";
    "driver_version" driver_version: String = "550.163.01".into(), |text| printable(text, 79), String::clone, "a version such as 550.163.01";
    "cuda_version" cuda_version: (u32, u32) = (12, 4), dotted, with_dot, "major.minor, such as 12.4";
    "pci" pci: Vec<Pci> = Vec::new(), pci_list, |list| joined(list), "distinct addresses such as 0000:1b:00.0, 0000:43:00.0";
    "kernel_time" kernel_time_ns: u64 = 5_000, |text| at_least(1, text), ns, "a time from 1ns to 60s";
    // The simulation of shorter slices would take longer than the slices themselves.
    "slice" slice_ns: u64 = 2_000_000, |text| at_least(10_000, text), ns, "a time from 10us to 60s";
    "switch_time" switch_time_ns: u64 = 100_000, duration_ns, ns, "a time up to 60s";
    "event_stop" event_stop_ns: u64 = 0, duration_ns, ns, "a time up to 60s";
    "late_events" late_events: bool = false, yes_or_no, word, "yes or no";
    "clock" clock: Clock = Clock::Real, Clock::from_name, Clock::name, "real or virtual";
}

#[derive(Debug, PartialEq, Eq)]
pub enum ProfileError {
    /// `line` holds no `key = value`.
    Syntax {
        line: usize,
    },
    Unknown {
        line: usize,
        key: String,
    },
    Twice {
        line: usize,
        key: String,
    },
    Value {
        line: usize,
        key: String,
        value: String,
        expected: &'static str,
    },
    /// An invalid combination of keys that are valid one by one.
    Whole {
        key: &'static str,
        expected: String,
    },
}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax { line } => write!(f, "line {line}: expected `key = value`"),
            Self::Unknown { line, key } => write!(f, "line {line}: unknown key {key}"),
            Self::Twice { line, key } => write!(f, "line {line}: {key} is given twice"),
            Self::Value {
                line,
                key,
                value,
                expected,
            } => {
                write!(f, "line {line}: {key} = {value}: expected {expected}")
            }
            Self::Whole { key, expected } => write!(f, "{key}: expected {expected}"),
        }
    }
}

impl std::error::Error for ProfileError {}

/// The most GPUs that one state holds.
pub const MAX_GPUS: usize = 16;
/// The most GPUs and instances together: eight GPUs with seven instances each.
pub const MAX_DEVICES: usize = 64;

fn size(text: &str) -> Option<u64> {
    let (digits, shift) = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)]
        .iter()
        .find_map(|(unit, shift)| text.strip_suffix(unit).map(|rest| (rest.trim_end(), *shift)))
        .unwrap_or((text, 0));
    digits
        .parse::<u64>()
        .ok()?
        .checked_mul(1 << shift)
        .filter(|bytes| *bytes <= 1 << 50)
}

fn duration_ns(text: &str) -> Option<u64> {
    let (digits, factor) = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)]
        .iter()
        .find_map(|(unit, factor)| text.strip_suffix(unit).map(|rest| (rest.trim_end(), *factor)))?;
    digits
        .parse::<u64>()
        .ok()?
        .checked_mul(factor)
        .filter(|ns| *ns <= 60_000_000_000)
}

fn ns(time: &u64) -> String {
    format!("{time}ns")
}

fn at_least(ns: u64, text: &str) -> Option<u64> {
    duration_ns(text).filter(|time| *time >= ns)
}

fn granule(text: &str) -> Option<u64> {
    let range = (4 << 10)..=(1 << 30);
    size(text).filter(|bytes| bytes.is_power_of_two() && range.contains(bytes))
}

fn number(text: &str, most: u32) -> Option<u32> {
    text.parse().ok().filter(|number| (1..=most).contains(number))
}

fn yes_or_no(text: &str) -> Option<bool> {
    match text {
        "yes" => Some(true),
        "no" => Some(false),
        _ => None,
    }
}

fn word(value: &bool) -> String {
    if *value { "yes" } else { "no" }.into()
}

fn with_dot((major, minor): &(u32, u32)) -> String {
    format!("{major}.{minor}")
}

fn dotted(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once('.')?;
    Some((
        major.parse().ok().filter(|n| *n < 100)?,
        minor.parse().ok().filter(|n| *n < 100)?,
    ))
}

/// A PCI address, with or without its domain, in any case and width that NVML or CUDA prints.
pub fn parse_pci(text: &str) -> Option<Pci> {
    let parts: Vec<&str> = text.split(':').collect();
    let (domain, bus, rest) = match parts[..] {
        [bus, rest] => (0, bus, rest),
        [domain, bus, rest] => (u32::from_str_radix(domain, 16).ok()?, bus, rest),
        _ => return None,
    };
    let device = rest.split_once('.').map_or(rest, |(device, _)| device);
    Some(Pci {
        domain,
        bus: u8::from_str_radix(bus, 16).ok()?,
        device: u8::from_str_radix(device, 16).ok()?,
    })
}

fn pci_list(text: &str) -> Option<Vec<Pci>> {
    let list: Vec<Pci> = text
        .split(',')
        .map(|one| parse_pci(one.trim()))
        .collect::<Option<_>>()?;
    let distinct = list.iter().enumerate().all(|(i, one)| !list[..i].contains(one));
    distinct.then_some(list)
}

fn indices(text: &str) -> Option<Vec<u32>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    let list: Vec<u32> = text
        .split(',')
        .map(|one| one.trim().parse().ok())
        .collect::<Option<_>>()?;
    let distinct = list.iter().enumerate().all(|(i, one)| !list[..i].contains(one));
    distinct.then_some(list)
}

fn nvlinks(text: &str) -> Option<Vec<NvLink>> {
    let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
    let list: Vec<NvLink> = words.map(NvLink::read).collect::<Option<_>>()?;
    // Switches have addresses of one digit.
    (list.len() <= 16).then_some(list)
}

fn fabric(text: &str) -> Option<Option<Fabric>> {
    if text.is_empty() {
        return Some(None);
    }
    let (cluster, clique) = text.split_once('.')?;
    let cluster = u128::from_str_radix(cluster, 16).ok().filter(|_| cluster.len() == 32)?;
    Some(Some(Fabric {
        cluster: cluster.to_be_bytes(),
        clique: clique.parse().ok()?,
    }))
}

fn fabric_text(fabric: &Option<Fabric>) -> String {
    let text = |of: &Fabric| format!("{:032x}.{}", u128::from_be_bytes(of.cluster), of.clique);
    fabric.as_ref().map_or_else(String::new, text)
}

fn mig_text(list: &[MigGpu]) -> String {
    let list: Vec<String> = list.iter().map(ToString::to_string).collect();
    list.join("; ")
}

fn joined(list: &[impl ToString]) -> String {
    let list: Vec<String> = list.iter().map(ToString::to_string).collect();
    list.join(", ")
}

fn fault(function: &str, text: &str) -> Option<Fault> {
    let mut words = text.split_whitespace();
    let code = words.next()?.parse().ok().filter(|code| *code > 0)?;
    let mut fault = Fault {
        function: function.into(),
        code,
        after: 0,
        every: 1,
    };
    while let Some(word) = words.next() {
        let count: u64 = words.next()?.parse().ok()?;
        match word {
            "after" => fault.after = count,
            "every" if count > 0 => fault.every = count,
            _ => return None,
        }
    }
    Some(fault)
}

fn printable(text: &str, max: usize) -> Option<String> {
    let good = (1..=max).contains(&text.len()) && text.bytes().all(|b| (b' '..=b'~').contains(&b));
    good.then(|| text.to_owned())
}

impl Profile {
    /// Parses a profile. Missing keys have their defaults.
    pub fn parse(text: &str) -> Result<Self, ProfileError> {
        let mut profile = Self::default();
        let mut seen: Vec<String> = Vec::new();
        for (number, raw) in text.lines().enumerate() {
            let line = number + 1;
            let content = raw.split_once('#').map_or(raw, |(before, _)| before).trim();
            if content.is_empty() {
                continue;
            }
            let (key, value) = content.split_once('=').ok_or(ProfileError::Syntax { line })?;
            let (key, value) = (key.trim().to_owned(), value.trim());
            if seen.contains(&key) {
                return Err(ProfileError::Twice { line, key });
            }
            profile.set(line, &key, value)?;
            seen.push(key);
        }
        profile.complete()
    }

    fn set(&mut self, line: usize, key: &str, value: &str) -> Result<(), ProfileError> {
        let put = self.put(key, value).or_else(|| self.put_fault(key, value));
        let key = key.to_owned();
        match put {
            Some(Ok(())) => Ok(()),
            None => Err(ProfileError::Unknown { line, key }),
            Some(Err(expected)) => Err(ProfileError::Value {
                line,
                key,
                value: value.into(),
                expected,
            }),
        }
    }

    fn put_fault(&mut self, key: &str, value: &str) -> Option<Result<(), &'static str>> {
        let is_function = |name: &&str| name.starts_with("cu") || name.starts_with("nvml");
        let function = key.strip_prefix("fail.").filter(is_function)?;
        let fault = fault(function, value).map(|fault| self.faults.push(fault));
        Some(fault.ok_or("CODE [after N] [every M]"))
    }

    fn complete(mut self) -> Result<Self, ProfileError> {
        let whole = |key, expected: String| Err(ProfileError::Whole { key, expected });
        if !self.memory.is_multiple_of(self.granularity) {
            return whole(
                "memory",
                format!("a multiple of granularity ({} bytes)", self.granularity),
            );
        }
        if self.memory / self.granularity > crate::account::MAX_UNITS {
            return whole(
                "granularity",
                format!("at least memory / {}", crate::account::MAX_UNITS),
            );
        }
        if self.context_cost.saturating_add(self.context_unowned) > self.memory {
            return whole("context_cost", "at most memory, with context_unowned".into());
        }
        if self.unified.iter().any(|index| *index >= self.gpus) {
            return whole("unified", format!("indices below gpus ({})", self.gpus));
        }
        let ends = self.nvlink.iter().map(|link| link.ends());
        if ends.map(|(one, other)| one.max(other)).any(|index| index >= self.gpus) {
            return whole("nvlink", format!("indices below gpus ({})", self.gpus));
        }
        self.check_instances()?;
        if self.pci.is_empty() {
            // Spread over buses as in a server; any distinct addresses do.
            self.pci = (0..self.gpus)
                .map(|i| Pci {
                    domain: 0,
                    bus: 0x1b + 13 * i as u8,
                    device: 0,
                })
                .collect();
        }
        if self.pci.len() != self.gpus as usize {
            return whole(
                "pci",
                format!("{} addresses, one a GPU, got {}", self.gpus, self.pci.len()),
            );
        }
        for cost in [
            &mut self.context_cost,
            &mut self.context_unowned,
            &mut self.function_cost,
            &mut self.module_cost,
        ] {
            *cost = cost.next_multiple_of(self.granularity);
        }
        Ok(self)
    }

    fn check_instances(&self) -> Result<(), ProfileError> {
        let whole = |key, expected: String| Err(ProfileError::Whole { key, expected });
        if self.mig.iter().any(|of| of.gpu >= self.gpus) {
            return whole("mig", format!("indices below gpus ({})", self.gpus));
        }
        if self.mig.iter().any(|of| self.is_unified(of.gpu as usize)) {
            return whole("mig", "GPUs that are not unified".into());
        }
        if !self.mig.is_empty() && self.mig_product.shapes.is_empty() {
            let product = self.mig_product.name;
            return whole("mig", format!("GPUs that can be divided; those of {product} cannot"));
        }
        let mut places = self.gpus as usize;
        for of in &self.mig {
            let instances = match of.instances(self.mig_product) {
                Ok(instances) => instances,
                Err(expected) => return whole("mig", expected),
            };
            let sizes = instances.iter().map(|one| one.shape.memory());
            if sizes.clone().sum::<u64>() > self.memory {
                return whole("mig", format!("instances that fit into memory ({} bytes)", self.memory));
            }
            if sizes.clone().any(|size| !size.is_multiple_of(self.granularity)) {
                return whole("granularity", "at most 2MiB, with instances".into());
            }
            places += instances.len();
        }
        if places > MAX_DEVICES {
            return whole(
                "mig",
                format!("at most {MAX_DEVICES} GPUs and instances together, got {places}"),
            );
        }
        Ok(())
    }

    /// Returns true if the memory of the GPU with this index is also the system's.
    pub fn is_unified(&self, gpu: usize) -> bool {
        self.unified.iter().any(|index| *index as usize == gpu)
    }

    /// Returns the product name of the GPU with this index.
    pub fn name_of(&self, gpu: usize) -> &str {
        if self.is_unified(gpu) {
            &self.unified_name
        } else {
            &self.name
        }
    }

    /// The instances that all GPUs have at first, in their order in the profile.
    pub fn instances(&self) -> Vec<GpuInstance> {
        // `complete` has refused a profile whose instances cannot exist.
        let of = |gpu: &MigGpu| gpu.instances(self.mig_product).unwrap_or_default();
        self.mig.iter().flat_map(of).collect()
    }

    /// Returns what the NVLinks of a GPU lead to, in their order: GPUs and switches by their PCI addresses.
    pub fn nvlinks_of(&self, gpu: usize) -> Vec<Pci> {
        let index = gpu as u32;
        let switch = |number: usize| Pci {
            domain: 0,
            bus: 0xf0 + number as u8,
            device: 0,
        };
        let peer = |(number, link): (usize, &NvLink)| match *link {
            NvLink::Switch(one, other) if (one..=other).contains(&index) => Some(switch(number)),
            NvLink::Pair(one, other) | NvLink::OneWay(one, other) if one == index => Some(self.pci[other as usize]),
            NvLink::Pair(other, one) if one == index => Some(self.pci[other as usize]),
            _ => None,
        };
        self.nvlink.iter().enumerate().filter_map(peer).collect()
    }

    /// Returns the profile as text, which `parse` reads back to the same value. It is stored in the state folder.
    pub fn to_text(&self) -> String {
        let mut text = self.lines();
        for Fault {
            function,
            code,
            after,
            every,
        } in &self.faults
        {
            text += &format!("fail.{function} = {code} after {after} every {every}\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_is_two_gpus_of_80_gib_and_round_trips() {
        let profile = Profile::parse("").unwrap();
        assert_eq!((profile.gpus, profile.memory, profile.context_cost), (2, 80 << 30, 0));
        assert_eq!(Profile::parse(&profile.to_text()).unwrap(), profile);
        assert!(profile.name.contains("Software GPU") && profile.name.len() < 64);
    }

    #[test]
    fn shipped_profiles_parse() {
        for text in [
            include_str!("../profiles/h100-80gb.profile"),
            include_str!("../profiles/t4-16gb.profile"),
        ] {
            let profile = Profile::parse(text).unwrap();
            assert!(profile.context_cost > 0, "real drivers charge for a context");
        }
    }

    #[test]
    fn faults_count_from_after_in_steps_of_every() {
        let profile = Profile::parse("fail.cuMemAlloc = 2 after 3 every 2").unwrap();
        let failing: Vec<u64> = (1..=8).filter(|call| profile.faults[0].hits(*call)).collect();
        assert_eq!(failing, [5, 7]);
        assert_eq!(Profile::parse(&profile.to_text()).unwrap(), profile);
    }

    #[test]
    fn nvml_lists_processes_in_three_ways() {
        for pids in [NvmlPids::Own, NvmlPids::Host, NvmlPids::None] {
            let profile = Profile::parse(&format!("nvml_pids = {}", pids.name())).unwrap();
            assert_eq!(profile.nvml_pids, pids);
            assert_eq!(Profile::parse(&profile.to_text()).unwrap(), profile);
        }
        assert!(Profile::parse("nvml_pids = both").is_err());
    }

    #[test]
    fn limits_of_cgroups_are_kept_in_two_ways_or_not_at_all() {
        assert_eq!(Profile::default().memory_limits, MemoryLimits::None);
        for way in [MemoryLimits::None, MemoryLimits::Dmem, MemoryLimits::Misc] {
            let profile = Profile::parse(&format!("memory_limits = {}", way.name())).unwrap();
            assert_eq!(profile.memory_limits, way);
            assert_eq!(Profile::parse(&profile.to_text()).unwrap(), profile);
        }
        assert!(Profile::parse("memory_limits = yes").is_err());
    }

    #[test]
    fn gpus_with_unified_memory_are_beside_ordinary_ones() {
        let profile = Profile::parse("gpus = 3\nunified = 2, 0\nunified_name = Thor").unwrap();
        let named: Vec<&str> = (0..3).map(|gpu| profile.name_of(gpu)).collect();
        assert_eq!(named, ["Thor", "Software GPU H100-80GB", "Thor"]);
        assert_eq!(Profile::parse(&profile.to_text()).unwrap(), profile);
        let none = Profile::parse("unified =").unwrap();
        assert!(!none.is_unified(0));
        for wrong in ["unified = 0, 0", "unified = first", "unified = 2"] {
            assert!(Profile::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn gpus_in_mig_mode_have_the_instances_that_the_profile_names() {
        let text = "gpus = 3\nmig = 0: 3g.40gb@0, 1g.10gb@4; 2:\n";
        let profile = Profile::parse(text).unwrap();
        assert_eq!(Profile::parse(&profile.to_text()).unwrap(), profile);
        let named: Vec<(usize, &str)> = profile
            .instances()
            .iter()
            .map(|one| (one.parent, one.shape.name))
            .collect();
        assert_eq!(named, [(0, "3g.40gb"), (0, "1g.10gb")]);
        assert_eq!(profile.mig.iter().map(|of| of.gpu).collect::<Vec<u32>>(), [0, 2]);
        let other = Profile::parse("mig_product = h200-141gb\nmemory = 141GiB\nmig = 1: 3g.71gb@4").unwrap();
        assert_eq!(other.instances()[0].shape.memory(), 71_168 << 20);
        for (wrong, expected) in [
            ("mig = 2: 1g.10gb@0", "mig: expected indices below gpus (2)"),
            ("mig = 0: 1g.18gb@0", "mig: expected profiles of h100-80gb"),
            ("unified = 0\nmig = 0:", "mig: expected GPUs that are not unified"),
            (
                "memory = 40GiB\nmig = 0: 3g.40gb@0, 1g.10gb@4",
                "mig: expected instances that fit into memory",
            ),
            (
                "granularity = 1GiB\nmig = 0: 3g.40gb@0",
                "granularity: expected at most 2MiB",
            ),
            (
                "mig_product = none\nmig = 0:",
                "mig: expected GPUs that can be divided; those of none cannot",
            ),
            ("mig_product = h100", "line 1: mig_product = h100: expected a30-24gb"),
        ] {
            let said = Profile::parse(wrong).unwrap_err().to_string();
            assert!(said.starts_with(expected), "{wrong}: {said}");
        }
    }

    #[test]
    fn links_lead_to_switches_and_gpus() {
        let text = "gpus = 4\nnvlink = 0-1, 2=3, 3>0\nfabric = 0102030405060708090a0b0c0d0e0f10.7\n";
        let profile = Profile::parse(text).unwrap();
        assert_eq!(Profile::parse(&profile.to_text()).unwrap(), profile);
        let ends = |gpu| joined(&profile.nvlinks_of(gpu));
        let gpus: Vec<String> = profile.pci.iter().map(Pci::to_string).collect();
        assert_eq!((ends(0), ends(1)), ("0000:f0:00.0".into(), "0000:f0:00.0".into()));
        assert_eq!(
            (ends(2), ends(3)),
            (gpus[3].clone(), format!("{}, {}", gpus[2], gpus[0]))
        );
        for wrong in [
            "nvlink = 1-0",
            "nvlink = 0=0",
            "nvlink = 0",
            "nvlink = 0=2",
            "fabric = 01.2",
        ] {
            assert!(Profile::parse(wrong).is_err(), "{wrong}");
        }
        let [eight, islands] = [
            include_str!("../profiles/hgx-8.profile"),
            include_str!("../profiles/two-islands.profile"),
        ]
        .map(|text| Profile::parse(text).unwrap());
        assert_eq!((eight.gpus, eight.nvlinks_of(0)), (8, eight.nvlinks_of(7)));
        assert_ne!(islands.nvlinks_of(3), islands.nvlinks_of(4));
    }

    #[test]
    fn time_is_shared_as_the_profile_says() {
        let profile = Profile::parse("slice = 500us\nswitch_time = 0ns\nevent_stop = 1500ns").unwrap();
        let times = (profile.slice_ns, profile.switch_time_ns, profile.event_stop_ns);
        assert_eq!(times, (500_000, 0, 1_500));
        assert_eq!(Profile::parse(&profile.to_text()).unwrap(), profile);
        assert!(Profile::parse("slice = 1us").is_err());
        let profile = Profile::parse("late_events = yes").unwrap();
        assert!(profile.late_events && !Profile::default().late_events);
        assert_eq!(Profile::parse(&profile.to_text()).unwrap(), profile);
        assert!(Profile::parse("clock = fast").is_err());
        let profile = Profile::parse("clock = virtual").unwrap();
        assert_eq!(profile.clock, Clock::Virtual);
        assert_eq!(Profile::parse(&profile.to_text()).unwrap(), profile);
    }

    #[test]
    fn a_wrong_line_is_named_with_its_key() {
        for (text, expected) in [
            ("memory", "line 1: expected `key = value`"),
            ("# ok\nspeed = 3", "line 2: unknown key speed"),
            ("gpus = 1\ngpus = 1", "line 2: gpus is given twice"),
            ("gpus = 0", "line 1: gpus = 0: expected a number from 1 to 16"),
            (
                "memory = 80 GB",
                "line 1: memory = 80 GB: expected a size such as 80GiB",
            ),
            (
                "granularity = 3MiB",
                "line 1: granularity = 3MiB: expected a power of two from 4KiB to 1GiB",
            ),
            (
                "memory = 3MiB",
                "memory: expected a multiple of granularity (2097152 bytes)",
            ),
            (
                "gpus = 2\npci = 0000:1b:00.0",
                "pci: expected 2 addresses, one a GPU, got 1",
            ),
            (
                "fail.cuInit = soon",
                "line 1: fail.cuInit = soon: expected CODE [after N] [every M]",
            ),
            (
                "context_cost = 99TiB",
                "context_cost: expected at most memory, with context_unowned",
            ),
            (
                "granularity = 4KiB\nmemory = 1TiB",
                "granularity: expected at least memory / 16777215",
            ),
        ] {
            assert_eq!(Profile::parse(text).unwrap_err().to_string(), expected, "{text}");
        }
    }

    #[test]
    fn pci_addresses_in_every_spelling() {
        let expected = Some(Pci {
            domain: 0,
            bus: 0x1b,
            device: 0,
        });
        for text in ["1b:00.0", "0000:1b:00.0", "00000000:1B:00.0", "0000:1b:00"] {
            assert_eq!(parse_pci(text), expected, "{text}");
        }
        assert_eq!(parse_pci("nonsense"), None);
    }
}
