//! Capacity keys of our GPUs.
//!
//! From Kubernetes 1.38 on `memory` and `dra.vgpu/memory` are one name, in slices, requests and results. Slices have the
//! short one; whatever reads a capacity finds it under both.

use crate::DRIVER_NAME;

/// Bytes of device memory.
pub const MEMORY: &str = "memory";
/// Percent of GPU time that is guaranteed.
pub const CORES: &str = "cores";
/// Multiprocessors of an instance of a GPU.
pub const MULTIPROCESSORS: &str = "multiprocessors";
/// How many claims may share the GPU; each takes one.
pub const SHARES: &str = "shares";

/// Returns a name without our driver's domain.
#[must_use]
pub fn short(name: &str) -> &str {
    let own = name.strip_prefix(DRIVER_NAME).and_then(|rest| rest.strip_prefix('/'));
    own.unwrap_or(name)
}

/// Returns a capacity of ours under either of its names.
///
/// # Errors
/// Both values, first that of the short name, if both names are there.
pub fn find<V>(key: &str, get: impl Fn(&str) -> Option<V>) -> Result<Option<V>, (V, V)> {
    match (get(key), get(&format!("{DRIVER_NAME}/{key}"))) {
        (Some(short), Some(long)) => Err((short, long)),
        (short, long) => Ok(short.or(long)),
    }
}

/// Says behind the path of the long name that both names are there: one text for requests and results.
#[must_use]
pub fn twice(key: &str, short: &str, long: &str) -> String {
    let (short, long) = (vgpu_quantity::quoted(short), vgpu_quantity::quoted(long));
    format!("{long}, and {short} in {key}, are one capacity under two names")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_capacity_has_two_names() {
        for (name, is) in [
            ("memory", "memory"),
            ("dra.vgpu/memory", "memory"),
            ("gpu.nvidia.com/memory", "gpu.nvidia.com/memory"),
            ("dra.vgpux/memory", "dra.vgpux/memory"),
            ("dra.vgpu", "dra.vgpu"),
        ] {
            assert_eq!(short(name), is);
        }
        let find_in = |names: &[(&'static str, u32)]| {
            let map: BTreeMap<&str, u32> = names.iter().copied().collect();
            find(MEMORY, |name| map.get(name).copied())
        };
        assert_eq!(find_in(&[("cores", 1)]), Ok(None));
        assert_eq!(find_in(&[("memory", 1)]), Ok(Some(1)));
        assert_eq!(find_in(&[("dra.vgpu/memory", 2)]), Ok(Some(2)));
        assert_eq!(find_in(&[("memory", 1), ("dra.vgpu/memory", 2)]), Err((1, 2)));
    }
}
