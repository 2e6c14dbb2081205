//! KVM where it works, else emulation, with the reason.
//!
//! That /dev/kvm is there does not say so: inside of a virtual machine it may hang. So a kernel without a root file
//! system is started: it has to end in its own panic within seconds.

use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::ending::{self, Running};
use super::scratch::Scratch;
use crate::shell;

pub(super) const QEMU: &str = "qemu-system-x86_64";
const DEVICE: &str = "/dev/kvm";
const LIMIT: Duration = Duration::from_secs(15);

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Accelerator {
    Kvm,
    /// With the reason why it is not KVM.
    Emulation(String),
}

impl Accelerator {
    pub(super) fn find(kernel: &Path, scratch: &Scratch) -> Result<Self> {
        if let Err(error) = File::options().read(true).write(true).open(DEVICE) {
            return Ok(Self::Emulation(format!("{DEVICE}: {error}")));
        }
        let (console, log) = (scratch.path("kvm.console.log"), scratch.path("kvm.log"));
        let mut command = ending::tied(QEMU);
        command
            .args([
                "-nodefaults",
                "-no-user-config",
                "-no-reboot",
                "-display",
                "none",
                "-m",
                "256",
            ])
            .args([
                "-accel",
                "kvm",
                "-cpu",
                "host",
                "-append",
                "console=ttyS0 panic=-1",
                "-kernel",
            ])
            .arg(kernel)
            .arg("-serial")
            .arg(format!("file:{}", console.display()))
            .stdout(Stdio::null())
            .stderr(File::create(&log).context("cannot create kvm.log")?);
        let qemu = Running::start(&mut command, QEMU)?;
        let end = Instant::now() + LIMIT;
        while Instant::now() < end {
            ending::check()?;
            let said = fs::read(&console).unwrap_or_default();
            if String::from_utf8_lossy(&said).contains("Kernel panic") {
                return Ok(Self::Kvm);
            }
            if qemu.has_ended()? {
                let said = fs::read_to_string(&log).unwrap_or_default();
                return Ok(Self::Emulation(format!(
                    "with {DEVICE} qemu ends: {}",
                    shell::tail(&said, 1)
                )));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(Self::Emulation(format!(
            "with {DEVICE} a kernel hangs: nothing of it for {} s",
            LIMIT.as_secs()
        )))
    }

    /// What qemu is told.
    pub(super) fn arguments(&self) -> [&'static str; 4] {
        match self {
            Self::Kvm => ["-accel", "kvm", "-cpu", "host"],
            Self::Emulation(_) => ["-accel", "tcg,thread=multi", "-cpu", "max"],
        }
    }

    pub(super) fn describe(&self) -> String {
        match self {
            Self::Kvm => "KVM".to_owned(),
            Self::Emulation(reason) => format!("emulation, 10 to 20 times slower than this machine ({reason})"),
        }
    }
}
