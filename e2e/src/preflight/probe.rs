//! Collects the facts for `preflight`: tries rights, measures sizes.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, process};

use anyhow::{Context, Result, anyhow};
use rustix::mount::{MountFlags, mount};

use super::facts::{Disk, Facts, Failure, GI, Memory, Root, Step, Tried};
use crate::cluster::cgroup;
use crate::{layout, shell};

/// Prefix of a probe's folder, followed by its PID.
const PROBE: &str = "vgpu-e2e-probe-";

pub(super) fn facts(program: &Path, may_ask: bool) -> Result<Facts> {
    Ok(Facts {
        root: root(program, may_ask)?,
        memory: memory(Path::new("/"))?,
        disks: disks()?,
    })
}

// === root ===

/// Tries as root, through sudo if this is not root. `program` is vgpu-e2e. It must not be the calling test binary:
/// that has no `probe` command and would call this function again forever.
fn root(program: &Path, may_ask: bool) -> Result<Root> {
    let user = rustix::process::geteuid();
    if user.is_root() {
        let tried = tried(&mut shell::command(program, ["probe"]))?;
        return tried
            .map(Root::Tried)
            .map_err(|said| anyhow!("the probe of this machine gave no answer: {said}"));
    }
    let user = user.as_raw();
    let may = shell::command("sudo", ["-n", "true"]).env("LC_ALL", "C").output();
    match may {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Root::NoSudo { user }),
        Err(error) => return Err(error).context("cannot run sudo"),
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = shell::tail(&said, 1);
            // sudo asks on the session's terminal, whatever standard input is.
            let asks = (said.contains("password") || said.contains("authentication")) && File::open("/dev/tty").is_ok();
            if asks && !may_ask {
                return Ok(Root::Tried(Tried::default()));
            }
            let asked = asks && {
                println!("a cluster needs root; sudo asks for the password now, and again when all is built");
                Command::new("sudo")
                    .arg("-v")
                    .status()
                    .is_ok_and(|status| status.success())
            };
            if !asked {
                return Ok(Root::Refused { user, said });
            }
        }
    }
    // sudoers may allow some commands but not this one.
    let tried = tried(shell::command("sudo", [program]).arg("probe"))?;
    Ok(tried.map_or_else(|said| Root::Refused { user, said }, Root::Tried))
}

/// Returns the probe's results, or its error output if there are none.
fn tried(probe: &mut Command) -> Result<Result<Tried, String>> {
    let said = shell::capture(probe)?;
    let found = serde_json::from_str(&said.stdout);
    Ok(found.map_err(|_| format!("{}: {}", said.status, shell::tail(&said.stderr, 1))))
}

/// The command `probe`, run as root: prints its results as JSON.
pub(crate) fn as_root() -> Result<()> {
    let tried = Tried {
        namespaces: namespaces()?,
        cgroups: cgroups()?,
        kernel_log: kernel_log(),
        state: state(Path::new(layout::STATE)),
    };
    println!(
        "{}",
        serde_json::to_string(&tried).context("cannot encode what was found")?
    );
    Ok(())
}

/// Creates namespaces as a cluster does, and runs the command `probe --inside` in them.
fn namespaces() -> Result<Option<Failure>> {
    let own = env::current_exe().context("this program has no path")?;
    let mut unshare = shell::command(
        "unshare",
        ["--mount", "--net", "--pid", "--fork", "--kill-child=SIGKILL", "--"],
    );
    let output = match unshare.arg(own).args(["probe", "--inside"]).output() {
        Ok(output) => output,
        Err(error) => return Ok(failure(Step::Mount, format!("unshare of util-linux: {error}"))),
    };
    if output.status.success() {
        return serde_json::from_slice(&output.stdout).context("the probe in new namespaces gave no answer");
    }
    Ok(failure(
        Step::Mount,
        shell::tail(&String::from_utf8_lossy(&output.stderr), 1),
    ))
}

/// The command `probe --inside`: creates a cluster's mounts and network device.
pub(crate) fn in_namespaces() -> Result<()> {
    let found = mounts().or_else(network);
    println!(
        "{}",
        serde_json::to_string(&found).context("cannot encode what was found")?
    );
    Ok(())
}

fn mounts() -> Option<Failure> {
    if let Err(error) = mount("tmpfs", "/run", "tmpfs", MountFlags::NOSUID, None) {
        return failure(Step::Mount, format!("mount of a tmpfs: {error}"));
    }
    let made = ["/run/upper", "/run/work"].iter().try_for_each(fs::create_dir);
    if let Err(error) = made {
        return failure(Step::Mount, format!("a folder in a tmpfs: {error}"));
    }
    let options = c"lowerdir=/etc,upperdir=/run/upper,workdir=/run/work";
    let error = mount("overlay", "/etc", "overlay", MountFlags::empty(), Some(options)).err()?;
    failure(Step::Overlay, format!("mount of an overlay: {error}"))
}

/// Runs in its own network namespace, which ends with this process.
fn network() -> Option<Failure> {
    let link = |step, kind| {
        let mut add = shell::command("ip", ["link", "add", "name", kind, "type", kind]);
        let path = env::var("PATH").unwrap_or_default();
        // A missing `ip` is reported with the other missing programs.
        let output = add.env("PATH", format!("{path}:/usr/sbin:/sbin")).output().ok()?;
        let said = String::from_utf8_lossy(&output.stderr);
        (!output.status.success()).then(|| failure(step, shell::tail(&said, 1)))?
    };
    link(Step::Bridge, "bridge")
        .or_else(|| link(Step::Veth, "veth"))
        .or_else(forward)
}

fn forward() -> Option<Failure> {
    let file = "/proc/sys/net/ipv4/ip_forward";
    let error = fs::write(file, "1").err()?;
    failure(Step::Forward, format!("{file}: {error}"))
}

fn kernel_log() -> Option<Failure> {
    let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(nonblocking)
        .open("/dev/kmsg");
    failure(Step::KernelLog, format!("/dev/kmsg: {}", opened.err()?))
}

/// Checks that the folder, or its nearest existing parent, is writable.
fn state(folder: &Path) -> Option<Failure> {
    let there = folder.ancestors().find(|folder| folder.exists())?;
    let error = rustix::fs::access(there, rustix::fs::Access::WRITE_OK).err()?;
    failure(Step::State, format!("{}: {error}", there.display()))
}

fn failure(step: Step, said: impl Into<String>) -> Option<Failure> {
    let said = said.into();
    Some(Failure { step, said })
}

// === cgroups ===

/// Creates and removes a folder in each hierarchy.
fn cgroups() -> Result<Option<Failure>> {
    let roots = cgroup::roots()?;
    if roots.is_empty() {
        return Ok(failure(Step::NoCgroups, ""));
    }
    Ok(roots
        .iter()
        .find_map(|root| make_and_remove(root).or_else(|| busy(root))))
}

fn make_and_remove(root: &Path) -> Option<Failure> {
    cgroup::remove_of_killed(root, PROBE);
    let folder = root.join(format!("{PROBE}{}", process::id()));
    let made = fs::create_dir(&folder).and_then(|()| match fs::remove_dir(&folder) {
        // A probe in another PID namespace does not see this process, and has removed the folder.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    });
    let error = made.err()?;
    let step = match error.kind() {
        ErrorKind::ReadOnlyFilesystem => Step::ReadOnlyCgroups,
        _ => Step::MakeCgroup,
    };
    failure(step, format!("a folder in {}: {error}", root.display()))
}

/// cgroup v2 enables controllers for children only in a cgroup without processes. The machine's own root is exempt.
fn busy(root: &Path) -> Option<Failure> {
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap_or_default();
    let is_machines_root = !root.join("cgroup.events").exists();
    let (has, gives) = (read("cgroup.controllers"), read("cgroup.subtree_control"));
    let lacks = has.split_whitespace().any(|controller| {
        cgroup::NEEDED.contains(&controller) && !gives.split_whitespace().any(|given| given == controller)
    });
    if is_machines_root || !lacks || read("cgroup.procs").trim().is_empty() {
        return None;
    }
    failure(Step::BusyCgroup, format!("{} has processes", root.display()))
}

// === sizes ===

/// The memory limit of this process's cgroups, if they have one.
pub(crate) fn memory_limit() -> Result<Option<u64>> {
    let found = memory(Path::new("/"))?;
    Ok(found.limit.map(|_| found.bytes))
}

/// `at` is `/`, or in tests a folder with the same layout.
fn memory(at: &Path) -> Result<Memory> {
    let file = at.join("proc/meminfo");
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let total = total.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    let machine = Memory {
        bytes: total.with_context(|| format!("{} has no MemTotal in kB", file.display()))? << 10,
        limit: None,
    };
    let own = fs::read_to_string(at.join("proc/self/cgroup")).unwrap_or_default();
    let limits = limit_files(at, &own).into_iter().filter_map(|file| {
        let bytes = fs::read_to_string(&file).ok()?.trim().parse().ok()?; // `max` or a huge number means no limit
        Some(Memory {
            bytes,
            limit: Some(file),
        })
    });
    Ok(limits.fold(
        machine,
        |least, limit| if limit.bytes < least.bytes { limit } else { least },
    ))
}

/// The memory limit files of this process's cgroup and of all above it, as far as they are visible from here.
fn limit_files(at: &Path, own: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in own.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let (roots, file): (&[&str], _) = match controllers {
            "" => (&["", "unified"], "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => (&["memory"], "memory.limit_in_bytes"),
            _ => continue,
        };
        for root in roots {
            let root = at.join(cgroup::UNIFIED.trim_start_matches('/')).join(root);
            let folder = root.join(path.trim_start_matches('/'));
            let above = folder.ancestors().take_while(|folder| folder.starts_with(&root));
            files.extend(above.map(|folder| folder.join(file)));
        }
    }
    files
}

/// The disk space for a cluster: its state, the cache of tools (with Go's in the same folder), the image archives.
fn disks() -> Result<Vec<Disk>> {
    let cache = layout::cache()?;
    let tools = fs::read_dir(cache.join("tools")).into_iter().flatten().flatten();
    let is_built = tools
        .map(|tool| tool.path().join("kubelet"))
        .any(|kubelet| kubelet.is_file());
    let tools = if is_built { GI / 2 } else { 6 * GI };
    let needs = [
        (PathBuf::from(layout::STATE), GI),
        (cache, tools),
        (layout::output(), GI),
    ];
    by_file_system(&needs).context("cannot see how much of a disk is free")
}

fn by_file_system(needs: &[(PathBuf, u64)]) -> io::Result<Vec<Disk>> {
    let mut disks: BTreeMap<u64, Disk> = BTreeMap::new();
    for (folder, needed) in needs {
        // A missing folder will be on the disk of its nearest existing parent.
        let there = folder
            .ancestors()
            .find(|folder| folder.exists())
            .unwrap_or(Path::new("/"));
        let found = rustix::fs::statvfs(there)?;
        let disk = disks.entry(fs::metadata(there)?.dev()).or_insert(Disk {
            folders: Vec::new(),
            free: found.f_bavail.saturating_mul(found.f_frsize),
            needed: 0,
        });
        disk.folders.push(folder.clone());
        disk.needed += needed;
    }
    Ok(disks.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, file: &str, text: &str) {
        let file = root.join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    #[test]
    fn the_smallest_limit_of_memory_counts() {
        let root = tempfile::tempdir().unwrap();
        let at = root.path();
        write(at, "proc/meminfo", "MemTotal:       16000000 kB\nMemFree: 1 kB\n");
        let seen = || memory(at).map(|memory| (memory.bytes, memory.limit)).unwrap();
        assert_eq!(seen(), (16_000_000 << 10, None));
        // v2, in a systemd session.
        write(at, "proc/self/cgroup", "0::/user.slice/a.scope\n");
        write(at, "sys/fs/cgroup/user.slice/a.scope/memory.max", "max\n");
        assert_eq!(seen(), (16_000_000 << 10, None));
        write(at, "sys/fs/cgroup/user.slice/memory.max", "2147483648\n");
        assert_eq!(seen(), (2 * GI, Some(at.join("sys/fs/cgroup/user.slice/memory.max"))));
        // v1, in a container that sees its own cgroup as the root, but the host's path.
        write(at, "proc/self/cgroup", "4:cpu,cpuacct:/docker/c\n3:memory:/docker/c\n");
        write(at, "sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n");
        assert_eq!(
            seen(),
            (GI, Some(at.join("sys/fs/cgroup/memory/memory.limit_in_bytes")))
        );
        write(
            at,
            "sys/fs/cgroup/memory/memory.limit_in_bytes",
            "9223372036854771712\n",
        );
        assert_eq!(seen(), (16_000_000 << 10, None));
        write(at, "proc/meminfo", "nothing\n");
        assert!(memory(at).unwrap_err().to_string().contains("no MemTotal"));
    }

    #[test]
    fn what_lies_on_one_disk_is_added_up() {
        let root = tempfile::tempdir().unwrap();
        let needs = [(root.path().join("a/b"), 2), (root.path().to_path_buf(), 3)];
        let disks = by_file_system(&needs).unwrap();
        assert_eq!(disks.len(), 1);
        assert!(disks[0].needed == 5 && disks[0].folders.len() == 2 && disks[0].free > 5);
        let other = by_file_system(&[(root.path().join("a"), 1), (PathBuf::from("/proc/a"), 1)]).unwrap();
        assert_eq!(other.len(), 2);
    }

    #[test]
    fn a_cgroup_of_a_container_with_processes_gives_no_controllers_on() {
        let root = tempfile::tempdir().unwrap();
        let at = root.path();
        write(at, "cgroup.controllers", "cpuset cpu io memory pids\n");
        write(at, "cgroup.subtree_control", "cpu memory pids\n");
        write(at, "cgroup.procs", "1\n");
        assert!(busy(at).is_none(), "the machine's own root may have processes");
        write(at, "cgroup.events", "populated 1\n");
        assert_eq!(busy(at).unwrap().step, Step::BusyCgroup);
        write(at, "cgroup.subtree_control", "cpuset cpu memory pids\n");
        assert!(busy(at).is_none());
        write(at, "cgroup.subtree_control", "");
        write(at, "cgroup.procs", "");
        assert!(busy(at).is_none());
        // v1 does not have these files.
        assert!(busy(Path::new("/nowhere")).is_none());
    }
}
