//! The guest's size, checked against this machine's memory and disk.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::install::bytes;
use crate::preflight;

const GI: u64 = 1 << 30;
/// The disk space of a run: the unpacked file system, the image, the payload, and the guest's own files.
const ON_DISK: u64 = 8 * GI;

/// A resource of the guest whose size the user can choose.
#[derive(Debug, Clone, Copy)]
pub(super) enum Resource {
    Memory,
    Disk,
}

impl Resource {
    fn variable(self) -> &'static str {
        match self {
            Self::Memory => "VGPU_GUEST_MEMORY",
            Self::Disk => "VGPU_GUEST_DISK",
        }
    }

    fn flag(self) -> &'static str {
        match self {
            Self::Memory => "--memory",
            Self::Disk => "--disk",
        }
    }

    /// A cluster needs 4 GiB of memory and 8 GiB of disk; the rest is for the guest's own system, tools and images.
    fn least(self) -> u64 {
        match self {
            Self::Memory => 6 * GI,
            Self::Disk => 14 * GI,
        }
    }
}

/// Parses a size in bytes; the error is one line with the valid form.
pub(super) fn parse(resource: Resource, text: &str) -> Result<u64> {
    let (variable, flag, least) = (resource.variable(), resource.flag(), resource.least() / GI);
    match bytes(text.trim()) {
        None => bail!("{variable} (or {flag}) is {text:?}, which is no size: give one such as {least}Gi"),
        Some(size) if size < resource.least() => {
            bail!("{variable} (or {flag}) is {text:?}, too small for a guest with a cluster: give {least}Gi or more")
        }
        Some(size) => Ok(size),
    }
}

/// Fails with one line if this machine has less than the guest needs.
pub(super) fn room(memory: u64, cache: &Path) -> Result<()> {
    let free = memory_available()?.min(preflight::memory_limit()?.unwrap_or(u64::MAX));
    ensure!(
        free >= memory,
        "a guest with {} of memory does not fit: {} are free here; set {}",
        in_gi(memory),
        in_gi(free),
        Resource::Memory.variable()
    );
    let folder = cache.ancestors().find(|folder| folder.exists()).unwrap_or(cache);
    let known =
        rustix::fs::statvfs(folder).with_context(|| format!("cannot ask for the room in {}", folder.display()))?;
    let free = known.f_bavail.saturating_mul(known.f_frsize);
    ensure!(
        free >= ON_DISK,
        "a guest takes {} of disk: {} has {} free; XDG_CACHE_HOME names another place",
        in_gi(ON_DISK),
        folder.display(),
        in_gi(free)
    );
    Ok(())
}

fn in_gi(bytes: u64) -> String {
    format!("{}.{} GiB", bytes / GI, bytes % GI * 10 / GI)
}

fn memory_available() -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    Ok(kib.context("/proc/meminfo has no MemAvailable")? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_that_is_none_or_too_small_is_refused_by_variable_value_and_remedy() {
        let error = |text| parse(Resource::Memory, text).unwrap_err().to_string();
        for bad in [
            "",
            "abc",
            "-8Gi",
            "8 GB",
            "1.5Gi",
            "99999999999999999999",
            "18446744073709551615Gi",
        ] {
            assert_eq!(
                error(bad),
                format!("VGPU_GUEST_MEMORY (or --memory) is {bad:?}, which is no size: give one such as 6Gi")
            );
        }
        for small in ["0", "8", "5Gi"] {
            assert_eq!(
                error(small),
                format!(
                    "VGPU_GUEST_MEMORY (or --memory) is {small:?}, too small for a guest with a cluster: give 6Gi or more"
                )
            );
        }
        assert_eq!(parse(Resource::Memory, "6144Mi").unwrap(), 6 * GI);
        assert!(
            parse(Resource::Disk, "13Gi")
                .unwrap_err()
                .to_string()
                .starts_with("VGPU_GUEST_DISK")
        );
    }
}
