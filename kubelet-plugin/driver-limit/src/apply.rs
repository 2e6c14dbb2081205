//! Sets limits and reads them back. What was not read back is not there: some kernels ignore a limit and report success.

use std::path::{Path, PathBuf};

use crate::{code::Code, records::Limit};

/// NVML_DEVICE_MEMORY_LIMIT_MAX.
pub(crate) const NO_LIMIT: u64 = u64::MAX;

/// The driver's limits.
pub(crate) trait Driver {
    fn is_mig(&self, gpu: &str) -> Result<bool, Code>;
    /// Bytes of the GPU's memory: no limit may be larger.
    fn total(&self, gpu: &str) -> Result<u64, Code>;
    /// Sets the hard limit of a cgroup, by its folder; [`NO_LIMIT`] takes it back. The soft limit is 0: a removed cgroup leaves its own in its ancestors
    /// forever.
    fn set(&self, gpu: &str, cgroup: &Path, hard: u64) -> Result<(), Code>;
    fn get(&self, gpu: &str, cgroup: &Path) -> Result<Found, Code>;
    /// The PIDs of processes that use the GPU, as this process's /proc shows them. One may be listed twice.
    fn processes(&self, gpu: &str) -> Result<Vec<u32>, Code>;
}

/// The limits of a cgroup, and what of them is in use, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub(crate) soft: u64,
    pub(crate) hard: u64,
    pub(crate) used: u64,
}

impl Found {
    /// Returns true if this is a hard limit of that many bytes, without a soft limit.
    pub(crate) fn is(&self, hard: u64) -> bool {
        (self.soft, self.hard) == (0, hard)
    }
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("GPU {gpu}: {code}; check it with nvidia-smi on the node")]
    Gpu { gpu: String, code: Code },
    #[error(
        "GPU {0}: it is in MIG mode, where the driver limits no cgroup; use a GPU without MIG, or do \
         not require the driver's limit"
    )]
    Mig(String),
    #[error(
        "GPU {gpu}: limit of {bytes} bytes for cgroup {cgroup}: {code}; {}",
        remedy(*code), cgroup = .cgroup.display()
    )]
    Set {
        gpu: String,
        cgroup: PathBuf,
        bytes: u64,
        code: Code,
    },
    #[error("GPU {gpu}: limit of cgroup {cgroup} cannot be read back: {code}; {}", remedy(*code), cgroup = .cgroup.display())]
    Get { gpu: String, cgroup: PathBuf, code: Code },
    #[error(
        "GPU {gpu}: cgroup {cgroup} has a hard limit of {} bytes and a soft limit of {} bytes, after {bytes} and 0 were \
         set; the driver or another program on the node changed it: look for other programs that set limits, or \
         do not require the driver's limit",
        found.hard, found.soft, cgroup = .cgroup.display()
    )]
    Differs {
        gpu: String,
        cgroup: PathBuf,
        bytes: u64,
        found: Found,
    },
}

impl Error {
    /// Returns true if NVML did not answer.
    pub(crate) fn is_no_answer(&self) -> bool {
        match self {
            Self::Gpu { code, .. } | Self::Set { code, .. } | Self::Get { code, .. } => code.is_no_answer(),
            Self::Mig(_) | Self::Differs { .. } => false,
        }
    }
}

fn remedy(code: Code) -> &'static str {
    match code {
        Code::NOT_SUPPORTED => {
            "the driver limits no cgroups here: check that it is r615 or newer, that its registry key RmMemacctMode is not \
             0, and that the node has cgroup v2; or do not require the driver's limit"
        }
        Code::NO_PERMISSION => "the container runtime's hooks must run as root of the node",
        Code::OPERATING_SYSTEM => {
            "the cgroup is gone, or the kernel has no controller dmem for it: check the kernel log"
        }
        Code::HANGS => "it may hang: check the GPU with nvidia-smi, and the kernel log of the node",
        Code::INVALID_ARGUMENT => "more than that is in use already, or the driver knows less memory of the GPU",
        _ => "check the GPU with nvidia-smi on the node",
    }
}

/// Sets each limit and reads it back. `folder` returns a cgroup's folder.
pub(crate) fn apply(driver: &impl Driver, limits: &[Limit], folder: impl Fn(&str) -> PathBuf) -> Result<(), Error> {
    let one = |limit: &Limit| hold(driver, limit, &folder(&limit.cgroup)).map(drop);
    limits.iter().try_for_each(one)
}

/// Returns the bytes to which a limit is set: at most all of the GPU's memory.
pub(crate) fn bytes(driver: &impl Driver, limit: &Limit) -> Result<u64, Error> {
    let failed = |code| Error::Gpu {
        gpu: limit.gpu.clone(),
        code,
    };
    match limit.bytes {
        None => Ok(NO_LIMIT),
        Some(bytes) => Ok(bytes.min(driver.total(&limit.gpu).map_err(failed)?)),
    }
}

/// Sets a limit in the cgroup's folder, and returns what was read back.
pub(crate) fn hold(driver: &impl Driver, limit: &Limit, folder: &Path) -> Result<Found, Error> {
    let (gpu, cgroup) = (|| limit.gpu.clone(), || folder.to_path_buf());
    let failed = |code| Error::Gpu { gpu: gpu(), code };
    if driver.is_mig(&limit.gpu).map_err(failed)? {
        return Err(Error::Mig(gpu()));
    }
    let bytes = bytes(driver, limit)?;
    driver.set(&limit.gpu, folder, bytes).map_err(|code| Error::Set {
        gpu: gpu(),
        cgroup: cgroup(),
        bytes,
        code,
    })?;
    let found = driver.get(&limit.gpu, folder).map_err(|code| Error::Get {
        gpu: gpu(),
        cgroup: cgroup(),
        code,
    })?;
    if !found.is(bytes) {
        return Err(Error::Differs {
            gpu: gpu(),
            cgroup: cgroup(),
            bytes,
            found,
        });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{cell::RefCell, collections::BTreeMap};

    const TOTAL: u64 = 80 << 30;

    /// A driver that does what is asked, but for one thing.
    #[derive(Default)]
    struct Fake {
        limits: RefCell<BTreeMap<(String, PathBuf), Found>>,
        mig: bool,
        no_gpu: Option<Code>,
        no_set: Option<Code>,
        no_get: Option<Code>,
        /// What it answers instead of what was set.
        other: Option<Found>,
    }

    impl Driver for Fake {
        fn is_mig(&self, _: &str) -> Result<bool, Code> {
            self.no_gpu.map_or(Ok(self.mig), Err)
        }

        fn total(&self, _: &str) -> Result<u64, Code> {
            Ok(TOTAL)
        }

        fn processes(&self, _: &str) -> Result<Vec<u32>, Code> {
            Ok(Vec::new())
        }

        fn set(&self, gpu: &str, cgroup: &Path, hard: u64) -> Result<(), Code> {
            let found = self.other.unwrap_or(Found { soft: 0, hard, used: 0 });
            self.limits.borrow_mut().insert((gpu.into(), cgroup.into()), found);
            self.no_set.map_or(Ok(()), Err)
        }

        fn get(&self, gpu: &str, cgroup: &Path) -> Result<Found, Code> {
            let found = self.limits.borrow().get(&(gpu.into(), cgroup.into())).copied();
            self.no_get.map_or(found.ok_or(Code(6)), Err)
        }
    }

    fn limit(cgroup: &str, bytes: u64) -> Limit {
        Limit {
            cgroup: cgroup.into(),
            gpu: "GPU-1".into(),
            bytes: Some(bytes),
        }
    }

    fn applied(driver: &Fake) -> Result<(), Error> {
        let limits = [limit("/pod", 2 * TOTAL), limit("/pod/one", 10 << 30)];
        apply(driver, &limits, |cgroup| Path::new("/cgroups").join(&cgroup[1..]))
    }

    #[test]
    fn every_limit_is_set_with_no_soft_one_and_none_above_the_gpu() {
        let driver = Fake::default();
        applied(&driver).expect("applied");
        let set: Vec<(PathBuf, u64, u64)> = driver
            .limits
            .into_inner()
            .into_iter()
            .map(|((_, cgroup), found)| (cgroup, found.soft, found.hard))
            .collect();
        let expected = [
            ("/cgroups/pod".into(), 0, TOTAL),
            ("/cgroups/pod/one".into(), 0, 10 << 30),
        ];
        assert_eq!(set, expected);
    }

    #[test]
    fn a_driver_that_refuses_or_answers_another_limit_is_named_with_its_answer() {
        let other = |soft, hard| Some(Found { soft, hard, used: 0 });
        for (driver, expected) in [
            (
                Fake {
                    no_gpu: Some(Code(15)),
                    ..Fake::default()
                },
                "GPU GPU-1: NVML_ERROR_GPU_IS_LOST",
            ),
            (
                Fake {
                    mig: true,
                    ..Fake::default()
                },
                "GPU GPU-1: it is in MIG mode",
            ),
            (
                Fake {
                    no_set: Some(Code::NOT_SUPPORTED),
                    ..Fake::default()
                },
                "NVML_ERROR_NOT_SUPPORTED; the driver limits no",
            ),
            (
                Fake {
                    no_set: Some(Code::NO_PERMISSION),
                    ..Fake::default()
                },
                "NVML_ERROR_NO_PERMISSION; the container runtime's",
            ),
            (
                Fake {
                    no_set: Some(Code::OPERATING_SYSTEM),
                    ..Fake::default()
                },
                "OPERATING_SYSTEM; the cgroup is gone",
            ),
            (
                Fake {
                    no_set: Some(Code::INVALID_ARGUMENT),
                    ..Fake::default()
                },
                "for cgroup /cgroups/pod: NVML_ERROR_INVALID",
            ),
            (
                Fake {
                    no_set: Some(Code(777)),
                    ..Fake::default()
                },
                "NVML's error 777",
            ),
            (
                Fake {
                    no_get: Some(Code::NOT_SUPPORTED),
                    ..Fake::default()
                },
                "cannot be read back: NVML_ERROR_NOT_SUPPORTED",
            ),
            (
                Fake {
                    other: other(0, u64::MAX),
                    ..Fake::default()
                },
                "hard limit of 18446744073709551615 bytes",
            ),
            (
                Fake {
                    other: other(0, TOTAL - 1),
                    ..Fake::default()
                },
                "after 85899345920 and 0 were set",
            ),
            (
                Fake {
                    other: other(1, TOTAL),
                    ..Fake::default()
                },
                "a soft limit of 1 bytes",
            ),
        ] {
            let error = applied(&driver).expect_err(expected).to_string();
            assert!(error.contains(expected) && !error.contains('\n'), "{expected}: {error}");
        }
    }
}
