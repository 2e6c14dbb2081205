//! The guest as a process: qemu with two disks, two serial lines and no network.
//!
//! The guest's writes go to an unnamed file that qemu creates in the run's folder: the image does not change, and
//! nothing is left when qemu ends for any reason. If the disk is full, the guest gets an I/O error; by default qemu
//! would stop it silently.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use super::accelerator::{Accelerator, QEMU};
use super::ending::Running;
use super::rootfs::Image;
use super::scratch::Scratch;
use super::shell::Shell;
use crate::patience::stretched;

/// Time to boot. Emulated, it takes about 40 s on an idle machine of two cores.
const BOOT: Duration = Duration::from_secs(600);
/// The TSC is declared unstable from the start: an emulated TSC is found unstable under load, and the kernel then
/// patches its running code, which once ended kernel 6.12 in a panic.
///
/// cx16 is switched off for the kernel: qemu 7.2 emulates an unlocked cmpxchg16b with wrong flags, and the memory
/// allocator of kernel 6.12 uses one. Programs still see cx16 and use it locked, which works.
const KERNEL: &str = "root=/dev/vda rw console=ttyS0 mitigations=off panic=-1 tsc=unstable clearcpuid=cx16";

/// A booted guest. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Machine {
    shell: Shell,
    console: PathBuf,
    _qemu: Running,
}

impl Machine {
    /// Boots the image, with the payload as the second disk.
    pub(super) fn boot(
        image: &Image,
        payload: &Path,
        memory: u64,
        accelerator: &Accelerator,
        scratch: &Scratch,
    ) -> Result<Self> {
        let console = scratch.path("console.log");
        let processors = thread::available_parallelism().map_or(2, usize::from).clamp(2, 4);
        let drive = |file: &Path, more: &str| {
            format!(
                "file={},format=raw,if=virtio,{more}",
                file.display().to_string().replace(',', ",,")
            )
        };
        let mut command = accelerator.qemu();
        command
            .args(["-smp", &processors.to_string(), "-m", &format!("{}M", memory >> 20)])
            .arg("-kernel")
            .arg(&image.kernel)
            .arg("-initrd")
            .arg(&image.initramfs)
            .args(["-append", KERNEL])
            .args(["-drive", &drive(&image.disk, "snapshot=on,cache=unsafe,werror=report")])
            .args(["-drive", &drive(payload, "readonly=on")])
            .args(["-serial", &format!("file:{}", console.display())])
            .args(["-chardev", "stdio,id=shell,signal=off", "-serial", "chardev:shell"])
            .env("TMPDIR", scratch.folder())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(scratch.path("qemu.log")).context("cannot create qemu.log")?);
        let mut qemu = Running::start(&mut command, QEMU)?;
        let input = qemu.child.stdin.take().context("qemu has no standard input")?;
        let output = qemu.child.stdout.take().context("qemu has no standard output")?;
        let mut machine = Self {
            shell: Shell::new(input, output),
            console,
            _qemu: qemu,
        };
        let booted = machine.shell.ready(stretched(BOOT));
        booted.with_context(|| {
            let said = fs::read_to_string(scratch.path("qemu.log")).unwrap_or_default();
            format!("the guest does not boot: {said}{}", machine.end_of_console())
        })?;
        Ok(machine)
    }

    /// Runs a command as the guest's user and returns its status.
    pub(super) fn run(&mut self, command: &str, limit: Duration, hear: &mut dyn FnMut(&[u8])) -> Result<i32> {
        let ran = self.shell.run(command, limit, hear);
        ran.with_context(|| self.end_of_console())
    }

    fn end_of_console(&self) -> String {
        let text = fs::read(&self.console).unwrap_or_default();
        format!(
            "the end of its console:\n{}",
            crate::shell::tail(&String::from_utf8_lossy(&text), 15)
        )
    }
}
