//! Uses KVM if it works, else emulation, with the reason.
//!
//! A /dev/kvm that can be opened proves little: inside a virtual machine it may hang. So a kernel without a root file
//! system is started on it. KVM works if that kernel panics within seconds.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
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
    /// With the reason why KVM is not used.
    Emulation(String),
}

impl Accelerator {
    pub(super) fn find(kernel: &Path, scratch: &Scratch) -> Result<Self> {
        if let Err(error) = File::options().read(true).write(true).open(DEVICE) {
            return Ok(Self::Emulation(format!("{DEVICE}: {error}")));
        }
        let (console, log) = (scratch.path("kvm.console.log"), scratch.path("kvm.log"));
        let mut command = Self::Kvm.qemu();
        command
            .args(["-m", "256", "-append", "console=ttyS0 panic=-1"])
            .arg("-kernel")
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

    /// A qemu command that dies with this program: no devices except those added by the caller, no network, no reboot.
    pub(super) fn qemu(&self) -> Command {
        let mut command = ending::tied(QEMU);
        command.args(["-nodefaults", "-no-user-config", "-no-reboot"]);
        command.args(["-display", "none", "-nic", "none"]);
        command.args(match self {
            Self::Kvm => ["-accel", "kvm", "-cpu", "host"],
            Self::Emulation(_) => ["-accel", "tcg,thread=multi", "-cpu", "max"],
        });
        command
    }

    pub(super) fn describe(&self) -> String {
        match self {
            Self::Kvm => "KVM".to_owned(),
            Self::Emulation(reason) => format!("emulation, 10 to 20 times slower than this machine ({reason})"),
        }
    }
}
