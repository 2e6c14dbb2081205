//! Sets COMMAND's environment so that it finds the limits. With a mount namespace ([`crate::namespace`]) the
//! variables point into it.
#![forbid(unsafe_code)]

use crate::environment::{CUDA_VISIBLE_DEVICES, Environment, SoftGpu};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use vgpu_abi::paths::RUN_DIR_VARIABLE;

/// The paths under which COMMAND finds the share and the libraries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// The folder of shares; None: the default folder in a container.
    pub shares: Option<PathBuf>,
    /// The backstop; None: the loader finds it by /etc/ld.so.preload.
    pub preload: Option<PathBuf>,
    /// The folder in which libvgpu.so has the driver's names.
    pub libraries: PathBuf,
}

/// The variables that COMMAND gets beside the caller's. `gpu` is the UUID of the share's GPU.
#[must_use]
pub fn variables(
    places: &Places,
    gpu: &str,
    soft_gpu: Option<&SoftGpu>,
    environment: &Environment,
) -> Vec<(&'static str, OsString)> {
    let mut variables = vec![(
        "LD_LIBRARY_PATH",
        before(&places.libraries, environment.ld_library_path.as_deref()),
    )];
    if let Some(preload) = &places.preload {
        variables.push(("LD_PRELOAD", before(preload, environment.ld_preload.as_deref())));
    }
    if let Some(shares) = &places.shares {
        variables.push((RUN_DIR_VARIABLE, shares.clone().into_os_string()));
    }
    let shown = environment.cuda_visible_devices.as_deref();
    // Drivers before r570 give a process one instance of a GPU in MIG mode, the first unless another is named.
    let is_instance = gpu.starts_with("MIG-");
    if shown.map_or(is_instance, |shown| {
        shows_whole_gpus(shown) || is_instance && names_instance(shown)
    }) {
        variables.push((CUDA_VISIBLE_DEVICES, gpu.into()));
    }
    for (variable, value) in soft_gpu.into_iter().flat_map(SoftGpu::variables) {
        variables.extend(value.map(|value| (variable, value.as_os_str().to_owned())));
    }
    variables
}

/// Returns true if the caller's CUDA_VISIBLE_DEVICES names whole GPUs of the machine. It is then replaced, because
/// COMMAND sees other GPUs. A value that hides all GPUs or names a part of a GPU is kept.
fn shows_whole_gpus(value: &OsStr) -> bool {
    let value = value.to_string_lossy();
    let first = value.split(',').next().unwrap_or_default().trim();
    first.parse::<usize>().is_ok() || first.get(..4).is_some_and(|head| head.eq_ignore_ascii_case("GPU-"))
}

/// Returns true if the value names instances: COMMAND sees that of its share alone.
fn names_instance(value: &OsStr) -> bool {
    let value = value.to_string_lossy();
    value
        .trim_start()
        .get(..4)
        .is_some_and(|head| head.eq_ignore_ascii_case("MIG-"))
}

/// `first`, then the caller's list.
fn before(first: &Path, rest: Option<&OsStr>) -> OsString {
    let mut list = first.as_os_str().to_owned();
    if let Some(rest) = rest {
        list.push(":");
        list.push(rest);
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_caller_had_is_kept_behind_ours() {
        let places = Places {
            shares: Some("/r/a/shares".into()),
            preload: Some("/r/a/lib/libvgpu-preload.so".into()),
            libraries: "/r/a/lib".into(),
        };
        let empty = variables(&places, "GPU-a", None, &Environment::default());
        assert_eq!(
            empty,
            [
                ("LD_LIBRARY_PATH", "/r/a/lib".into()),
                ("LD_PRELOAD", "/r/a/lib/libvgpu-preload.so".into()),
                ("VGPU_RUN_DIR", "/r/a/shares".into()),
            ]
        );
        let environment = Environment {
            ld_preload: Some("/opt/x.so /opt/y.so".into()),
            ld_library_path: Some("/opt/lib::".into()),
            ..Environment::default()
        };
        let soft_gpu = SoftGpu {
            state: Some("/s".into()),
            profile: None,
        };
        let kept = variables(&places, "GPU-a", Some(&soft_gpu), &environment);
        assert_eq!(kept[0].1, "/r/a/lib:/opt/lib::");
        assert_eq!(kept[1].1, "/r/a/lib/libvgpu-preload.so:/opt/x.so /opt/y.so");
        assert_eq!(kept[3], ("SOFT_GPU_STATE", "/s".into()));
        assert_eq!(kept.len(), 4);
    }

    #[test]
    fn the_callers_visible_devices_become_the_shares() {
        let places = Places {
            shares: None,
            preload: None,
            libraries: "/r".into(),
        };
        let of = |value: &str| {
            let environment = Environment {
                cuda_visible_devices: Some(value.into()),
                ..Environment::default()
            };
            let variables = variables(&places, "GPU-a", None, &environment);
            variables
                .into_iter()
                .find(|(name, _)| *name == CUDA_VISIBLE_DEVICES)
                .map(|(_, value)| value)
        };
        for value in ["0", "1", " 3,2", "GPU-bb,0", "gpu-b"] {
            assert_eq!(of(value), Some("GPU-a".into()), "{value:?}");
        }
        for value in ["-1", "NoDevFiles", "MIG-1", ","] {
            assert_eq!(of(value), None, "{value:?}");
        }
        let of_instance = |value: Option<&str>| {
            let environment = Environment {
                cuda_visible_devices: value.map(OsString::from),
                ..Environment::default()
            };
            let variables = variables(&places, "MIG-a", None, &environment);
            variables
                .iter()
                .any(|(name, value)| *name == CUDA_VISIBLE_DEVICES && value == "MIG-a")
        };
        for value in [None, Some("0"), Some("GPU-bb"), Some("MIG-b")] {
            assert!(of_instance(value), "{value:?}");
        }
        assert!(!of_instance(Some("-1")), "all GPUs are hidden");
    }
}
