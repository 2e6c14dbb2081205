//! The command line of the guest: as given, and checked.

use std::path::PathBuf;

use anyhow::{Result, bail};

use super::rootfs::Debian;
use super::size::{self, Resource};

/// The command line, as given.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Debian's release in the guest: 12 or 13.
    #[arg(long, env = "DEBIAN", default_value = "12")]
    debian: String,
    /// The guest's memory.
    #[arg(long, env = "VGPU_GUEST_MEMORY", default_value = "8Gi")]
    memory: String,
    /// The size of the guest's disk. It is sparse: only written blocks use space here.
    #[arg(long, env = "VGPU_GUEST_DISK", default_value = "20Gi")]
    disk: String,
    /// The program of the end-to-end tests, built for release; without it, only the demo is run.
    #[arg(long)]
    tests: Option<PathBuf>,
    /// Only the tests of this module, without the demo: machine, example or driver_limit.
    #[arg(long, env = "VGPU_GUEST_ONLY")]
    only: Option<String>,
}

/// The checked command line.
#[derive(Debug)]
pub(super) struct Options {
    pub(super) debian: Debian,
    pub(super) memory: u64,
    pub(super) disk: u64,
    pub(super) tests: Option<PathBuf>,
    /// The modules of tests.
    pub(super) modules: Vec<&'static str>,
    /// True: the demo runs too.
    pub(super) has_demo: bool,
}

/// The modules of the tests that a guest runs.
const MODULES: [&str; 3] = ["machine", "example", "driver_limit"];

impl Options {
    pub(super) fn check(arguments: Arguments) -> Result<Self> {
        if let Some(tests) = arguments.tests.as_ref().filter(|tests| !tests.is_file()) {
            bail!(
                "--tests {}: no such file: build/e2e.sh guest builds it",
                tests.display()
            );
        }
        let only = arguments.only.filter(|only| !only.is_empty());
        let modules: Vec<&str> = MODULES
            .into_iter()
            .filter(|module| only.as_deref().is_none_or(|only| only == *module))
            .collect();
        if modules.is_empty() {
            bail!(
                "VGPU_GUEST_ONLY (or --only) is {:?}, which is no module that a guest tests: give one of {}",
                only.unwrap_or_default(),
                MODULES.join(", ")
            );
        }
        Ok(Self {
            modules,
            has_demo: only.is_none(),
            debian: Debian::parse(&arguments.debian)?,
            memory: size::parse(Resource::Memory, &arguments.memory)?,
            disk: size::parse(Resource::Disk, &arguments.disk)?,
            tests: arguments.tests,
        })
    }
}
