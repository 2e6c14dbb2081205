//! The steps of one run, with their checks.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::accelerator::{Accelerator, QEMU};
use super::ending;
use super::machine::Machine;
use super::options::Options;
use super::payload::{self, quoted};
use super::rootfs::{self, USER};
use super::scratch::Scratch;
use super::transcript::Transcript;
use crate::patience::stretched;
use crate::prepared::Prepared;
use crate::{layout, shell};

/// Time for a command in the guest that takes seconds by itself: an emulated guest on a busy machine is 50 times
/// slower.
const SHORT: Duration = Duration::from_secs(1800);
/// Time for the demo and the tests, on a machine that is 20 times slower.
const LONG: Duration = Duration::from_secs(2 * 3600);

/// Facts printed at the start.
const FACTS: [&str; 8] = [
    "sed -n 's/^PRETTY_NAME=//p' /etc/os-release; uname -rv",
    "id; sudo -n id -un",
    "nproc; free -h; df -h /",
    "ip -brief address",
    "mount | grep cgroup",
    "cat /sys/fs/cgroup/cgroup.controllers /proc/self/cgroup",
    "sudo aa-status | head -n 5",
    "command -v go docker containerd kubelet || echo none of them is there",
];
/// Facts that must be the same at the end.
const KEPT: [(&str, &str); 5] = [
    (
        "the controllers that the root cgroup gives its children",
        "cat /sys/fs/cgroup/cgroup.subtree_control",
    ),
    ("cgroups", "find /sys/fs/cgroup -maxdepth 1 -type d | sort"),
    (
        "AppArmor's profiles",
        "sudo sort /sys/kernel/security/apparmor/profiles",
    ),
    ("mounts", "awk '{print $5}' /proc/self/mountinfo | sort"),
    (
        "folders of /var/lib, /opt and /etc",
        "ls -d /var/lib/* /opt/* /etc/* | sort",
    ),
];

/// Runs everything, and returns true if something failed.
pub(super) fn all(options: &Options, cache: &Path) -> Result<bool> {
    let scratch = Scratch::take(cache)?;
    let number = options.debian.number();
    let path = layout::output().join(format!("guest-debian-{number}.md"));
    let mut transcript = Transcript::new(&path)?;
    transcript.line(&format!("# A guest with Debian {number}"));
    transcript.heading("This machine");

    let image = rootfs::image(options.debian, options.disk, cache, &scratch, &mut |text| {
        transcript.line(text)
    })?;
    let accelerator = Accelerator::find(&image.kernel, &scratch)?;
    let program = std::env::current_exe().context("this program has no path")?;
    let prepared = Prepared::make(program, &mut |text| transcript.line(text))?;
    ending::check()?;
    let payload = scratch.path("payload.tar");
    payload::write(&prepared, options.tests.as_deref(), &payload)?;
    transcript.line(&format!("checkout: {}", commit()));
    transcript.line(&format!("{}; {}", version_of_qemu()?, accelerator.describe()));

    transcript.heading("The guest");
    let mut guest = Guest {
        machine: Machine::boot(&image, &payload, options.memory, &accelerator, &scratch)?,
        transcript: &mut transcript,
    };
    guest.unpack()?;
    for fact in FACTS {
        guest.show(fact, stretched(SHORT))?;
    }
    let before = guest.kept()?;

    let mut failed = Vec::new();
    if options.has_demo {
        failed.extend(guest.demo(&prepared)?);
    }
    failed.extend(guest.tests(options)?);
    guest.transcript.heading("Afterwards");
    failed.extend(guest.changed(&before)?);
    guest.show(
        "sudo dmesg | grep DENIED || echo AppArmor denied nothing",
        stretched(SHORT),
    )?;

    transcript.heading("Result");
    match failed.is_empty() {
        true => transcript.line(&format!("All of it passed, in {} s.", transcript.seconds())),
        false => transcript.line(&format!("Failed: {}.", failed.join("; "))),
    }
    eprintln!("transcript: {}", transcript.path().display());
    Ok(!failed.is_empty())
}

struct Guest<'a> {
    machine: Machine,
    transcript: &'a mut Transcript,
}

impl Guest<'_> {
    /// Runs the demo. Returns its name if it failed.
    fn demo(&mut self, prepared: &Prepared) -> Result<Option<String>> {
        self.transcript.heading(&format!("The demo, as `{USER}`"));
        let status = self.in_checkout(prepared.program(), "demo")?;
        Ok((status != 0).then(|| "the demo".to_owned()))
    }

    /// Runs the tests. Returns their name if one failed.
    fn tests(&mut self, options: &Options) -> Result<Option<String>> {
        let Some(tests) = &options.tests else {
            return Ok(Some("the tests: --tests names no program".to_owned()));
        };
        let modules = options.modules.join(", ");
        self.transcript.heading(&format!("The tests of {modules}, as `{USER}`"));
        let status = self.in_checkout(tests, &left_out(tests, &options.modules)?)?;
        Ok((status != 0).then(|| "the tests".to_owned()))
    }

    /// Runs a program of the checkout there, and returns its status.
    fn in_checkout(&mut self, program: &Path, arguments: &str) -> Result<i32> {
        let checkout = layout::workspace();
        let program = program.strip_prefix(&checkout).unwrap_or(program);
        let [folder, program] = [&*checkout, program].map(|path| quoted(&path.display().to_string()));
        self.show(&format!("cd {folder} && {program} {arguments}"), stretched(LONG))
    }

    /// Compares the facts that must be the same at the end. Returns the differences.
    fn changed(&mut self, before: &[String]) -> Result<Vec<String>> {
        let mut changed = Vec::new();
        let after = self.kept()?;
        for ((what, _), (before, after)) in KEPT.iter().zip(before.iter().zip(&after)) {
            if before != after {
                self.transcript
                    .line(&format!("{what}, before:\n{before}\nafter:\n{after}"));
                changed.push(format!("{what} are not as before"));
            }
        }
        Ok(changed)
    }

    /// Runs the command with its output in the transcript. Returns its status.
    fn show(&mut self, command: &str, limit: Duration) -> Result<i32> {
        self.transcript.line(&format!("```console\n$ {command}"));
        let transcript = &mut *self.transcript;
        let status = self.machine.run(command, limit, &mut |bytes| transcript.raw(bytes));
        self.transcript.line("```");
        let status = status?;
        if status != 0 {
            self.transcript.line(&format!("\nexit status {status}\n"));
        }
        Ok(status)
    }

    /// Runs the command outside the transcript and returns its output; an error if it fails.
    fn ask(&mut self, command: &str) -> Result<String> {
        let mut said = Vec::new();
        let status = self
            .machine
            .run(command, stretched(SHORT), &mut |bytes| said.extend_from_slice(bytes))?;
        let said = String::from_utf8_lossy(&said).into_owned();
        ensure!(
            status == 0,
            "in the guest, {command}: exit status {status}: {}",
            shell::tail(&said, 12)
        );
        Ok(said)
    }

    /// Unpacks the payload to its place. Makes root's folders above it accessible.
    fn unpack(&mut self) -> Result<()> {
        self.ask("systemctl is-system-running --wait || systemctl --failed")?;
        self.ask("sudo tar -x --numeric-owner --keep-directory-symlink -C / -f /dev/vdb")?;
        for folder in [layout::workspace(), layout::cache()?, layout::output()] {
            let folder = quoted(&folder.display().to_string());
            self.ask(&format!(
                "p={folder}; while [ \"$p\" != / ]; do sudo chmod a+rx \"$p\" && p=$(dirname \"$p\") || exit; done"
            ))?;
        }
        Ok(())
    }

    fn kept(&mut self) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for (what, command) in KEPT {
            let said = self.ask(command)?;
            match said.lines().count() {
                0..=2 => self.transcript.line(&format!("{what}: {}", said.trim())),
                count => self.transcript.line(&format!("{what}: {count}")),
            }
            found.push(said);
        }
        Ok(found)
    }
}

/// Options that make the test program skip every module except these.
fn left_out(tests: &Path, wanted: &[&str]) -> Result<String> {
    let listed = shell::output(&mut shell::command(tests, ["--list"]))?;
    let mut modules: Vec<&str> = listed
        .lines()
        .filter_map(|line| Some(line.split_once("::")?.0))
        .collect();
    modules.dedup();
    for one in wanted {
        ensure!(modules.contains(one), "{} has no tests of {one}.rs", tests.display());
    }
    let others = modules.iter().filter(|module| !wanted.contains(module));
    Ok(others.map(|module| format!(" --skip {module}::")).collect())
}

/// Git's description of the checkout.
fn commit() -> String {
    let mut git = shell::command("git", ["describe", "--always", "--dirty", "--abbrev=12"]);
    let said = shell::output(git.current_dir(layout::workspace()));
    said.map_or_else(|_| "of no known commit".to_owned(), |said| said.trim().to_owned())
}

fn version_of_qemu() -> Result<String> {
    let said = shell::output(&mut shell::command(QEMU, ["--version"]))?;
    Ok(said.lines().next().unwrap_or_default().to_owned())
}
