//! Creates a share of a software GPU as Prepare and `vgpu run` do: limits file, ledger, the GPU's state.

use crate::dist;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use vgpu_abi::ledger;
use vgpu_abi::limits::Limits;
use vgpu_abi::paths::{LEDGER, LIBCUDA, LIBNVIDIA_ML, LIMITS};
use vgpu_cache::run;

/// Name of the one share.
pub const NAME: &str = "share";

#[derive(Debug)]
pub struct Share {
    folder: tempfile::TempDir,
    /// The share's ledger: in a container, the copy on a tmpfs of its own.
    ledger: PathBuf,
    pub memory: u64,
    pub gpu: String,
}

impl Share {
    /// A share of `memory` bytes of the first GPU. `probe`: the client of `c/client.c`, which prints the GPU's UUID.
    /// `driver`: the folder in which programs under the share find the real libraries.
    ///
    /// # Panics
    /// The software GPU does not work.
    #[must_use]
    pub fn new(memory: u64, probe: &Path, driver: &Path) -> Self {
        Self::with_profile(memory, probe, driver, "")
    }

    /// The same on a software GPU with this profile.
    ///
    /// # Panics
    /// The software GPU does not work.
    #[must_use]
    pub fn with_profile(memory: u64, probe: &Path, driver: &Path, profile: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let open = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
        open(folder.path(), 0o755);
        for (name, mode) in [("state", 0o1777), ("shares", 0o755), ("shares/share", 0o755)] {
            fs::create_dir(folder.path().join(name)).expect("a folder");
            open(&folder.path().join(name), mode);
        }
        let mut share = Self {
            ledger: folder.path().join("shares").join(NAME).join(LEDGER),
            folder,
            memory,
            gpu: String::new(),
        };
        let profile_file = share.folder.path().join("profile");
        fs::write(&profile_file, profile).expect("a profile");
        // The state keeps the profile of the client that creates it.
        let mut bare = Command::new(probe);
        bare.arg("uuid")
            .env("SOFT_GPU_PROFILE", &profile_file)
            .env("LD_LIBRARY_PATH", dist("soft-gpu"))
            .env("SOFT_GPU_STATE", share.state());
        share.gpu = run(&mut bare)
            .unwrap_or_else(|error| panic!("{error}"))
            .trim()
            .to_owned();
        let limits = Limits::of_memory(
            NAME,
            &share.gpu,
            memory,
            driver.join(LIBCUDA),
            driver.join(LIBNVIDIA_ML),
        );
        let directory = share.shares().join(NAME);
        fs::write(directory.join(LIMITS), limits.render()).expect("limits");
        fs::write(directory.join(LEDGER), ledger::image(&limits)).expect("a ledger");
        open(&directory.join(LEDGER), 0o666);
        share
    }

    /// Returns the folder of shares.
    #[must_use]
    pub fn shares(&self) -> PathBuf {
        self.folder.path().join("shares")
    }

    /// Returns the folder of the software GPU's state.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// Names another file as the ledger.
    pub(crate) fn set_ledger(&mut self, ledger: PathBuf) {
        self.ledger = ledger;
    }

    /// Reads the ledger as the node does.
    ///
    /// # Panics
    /// It is damaged.
    #[must_use]
    pub fn usage(&self) -> ledger::Usage {
        let bytes = fs::read(&self.ledger).expect("a ledger");
        ledger::read(&bytes).expect("a sound ledger")
    }

    /// Returns the bytes charged.
    #[must_use]
    pub fn charged(&self) -> u64 {
        self.usage().charged
    }
}
