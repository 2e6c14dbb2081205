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
}

/// The checked command line.
#[derive(Debug)]
pub(super) struct Options {
    pub(super) debian: Debian,
    pub(super) memory: u64,
    pub(super) disk: u64,
    pub(super) tests: Option<PathBuf>,
}

impl Options {
    pub(super) fn check(arguments: Arguments) -> Result<Self> {
        if let Some(tests) = arguments.tests.as_ref().filter(|tests| !tests.is_file()) {
            bail!(
                "--tests {}: no such file: build/e2e.sh guest builds it",
                tests.display()
            );
        }
        Ok(Self {
            debian: Debian::parse(&arguments.debian)?,
            memory: size::parse(Resource::Memory, &arguments.memory)?,
            disk: size::parse(Resource::Disk, &arguments.disk)?,
            tests: arguments.tests,
        })
    }
}
