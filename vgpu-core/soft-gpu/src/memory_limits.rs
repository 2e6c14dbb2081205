//! Limits of GPU memory for cgroups, as drivers from r615 on set and hold them (nvmlDeviceSetMemoryLimits_v1). The
//! profile's `memory_limits` says which of the driver's two ways this GPU has, or none.
//!
//! | | `dmem` | `misc` |
//! |---|---|---|
//! | who keeps limits | the cgroup: files `dmem.max` and `dmem.min` | the driver: the file `memory-limits` of the state folder |
//! | a cgroup has them | if its parent's `cgroup.subtree_control` names dmem | always |
//! | what is charged | every allocation, to the cgroup and all its ancestors | an allocation below a limited cgroup, to the nearest one |
//! | a limit below what is in use | holds for the next allocations | is refused |
//! | the cgroup is removed | its limits are gone | they stay, for whatever folder gets the same inode number |
//! | asked before a limit was set | no limit | NOT_SUPPORTED |
//!
//! Charged is all memory of the GPU but managed memory. An importer is charged nothing. Charges are the sum of what
//! living processes have, so they end with the process. While limits are supported, allocations of all processes of the
//! folder take turns (the folder's lock), so a limit holds to the granule.
//!
//! With `dmem`, the cgroup may be a real one, if the kernel has the controller and knows this GPU's memory by its name
//! (`build/dmem.sh`): limits are set and read there, and what the kernel has charged is added to what is in use.
//!
//! Different from a real driver: nothing is charged to a kernel's controller, and a process in a cgroup namespace is held
//! by the limits that it can see there, its own cgroup's alone. A process that moves to another cgroup takes its charges
//! with it at its next allocation. With `misc`, a process that allocated before the limit was set and frees that memory is
//! charged less by as much. A soft limit is kept and returned, and has no effect.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;

use crate::account::Full;
use crate::cgroup::{self, Cgroup};
use crate::layout::{LIVE, PHASE_MASK, Proc};
use crate::liveness::Lock;
use crate::profile::MemoryLimits;
use crate::state::{Member, State};

/// The limit of a cgroup that has none: NVML_DEVICE_MEMORY_LIMIT_MAX.
pub const NO_LIMIT: u64 = u64::MAX;
/// The file of the state folder in which the driver keeps limits with `misc`.
const TABLE: &str = "memory-limits";
const HARD_FILE: &str = "dmem.max";
const SOFT_FILE: &str = "dmem.min";
/// What a kernel has charged. Plain folders have no such file.
const USED_FILE: &str = "dmem.current";

/// Bytes; [`NO_LIMIT`]: none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub soft: u64,
    pub hard: u64,
}

/// Why limits are not set or not returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    NotSupported,
    Invalid,
    NoPermission,
    /// The folder is no cgroup, or has no file for the limit.
    System,
}

/// A hard limit, and how many bytes of it are in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Use {
    hard: u64,
    used: u64,
}

impl Limits {
    const NONE: Self = Self {
        soft: 0,
        hard: NO_LIMIT,
    };
}

impl State {
    /// Sets the limits of a cgroup, named by its folder. `is_root`: whether the caller may.
    pub fn set_memory_limits(&self, gpu: usize, folder: &Path, limits: Limits, is_root: bool) -> Result<(), Refused> {
        let way = self.way(gpu)?;
        let device = self.profile().memory + self.profile().reserved;
        let too_large = |bytes: u64| bytes != NO_LIMIT && bytes > device;
        if limits.soft > limits.hard || too_large(limits.hard) || too_large(limits.soft) {
            return Err(Refused::Invalid);
        }
        if !is_root {
            return Err(Refused::NoPermission);
        }
        let cgroups = not_root(folder)?;
        let _lock = Lock::take(self.dir()).map_err(|_| Refused::System)?;
        match way {
            Way::Dmem if !has_dmem(&cgroups[0]) => Err(Refused::System),
            Way::Dmem => {
                let region = self.region(gpu);
                let written = write_line(folder, SOFT_FILE, &region, limits.soft, Limits::NONE.soft)
                    .and_then(|()| write_line(folder, HARD_FILE, &region, limits.hard, Limits::NONE.hard));
                written.map_err(|_| Refused::System)
            }
            Way::Misc if limits.hard < self.charged(gpu, cgroups[0].id) => Err(Refused::Invalid),
            Way::Misc => {
                let mut table = Table::read(self.dir());
                table.0.retain(|entry| (entry.gpu, entry.id) != (gpu, cgroups[0].id));
                table.0.push(Entry {
                    gpu,
                    id: cgroups[0].id,
                    limits,
                    above: cgroups[1..].iter().map(|one| one.id).collect(),
                });
                table.write(self.dir()).map_err(|_| Refused::System)
            }
        }
    }

    /// Returns the limits of a cgroup, and the bytes that are charged to it.
    pub fn memory_limits(&self, gpu: usize, folder: &Path) -> Result<(Limits, u64), Refused> {
        let way = self.way(gpu)?;
        let cgroups = not_root(folder)?;
        let own = &cgroups[0];
        let limits = match way {
            Way::Dmem if !has_dmem(own) => return Err(Refused::NotSupported),
            Way::Dmem => self.dmem_limits(gpu, own),
            Way::Misc => {
                let table = Table::read(self.dir());
                let entry = table.0.iter().find(|entry| (entry.gpu, entry.id) == (gpu, own.id));
                entry.ok_or(Refused::NotSupported)?.limits
            }
        };
        let of_kernel = match way {
            Way::Dmem => read_line(&own.folder, USED_FILE, &self.region(gpu)),
            Way::Misc => None,
        };
        Ok((limits, self.charged(gpu, own.id) + of_kernel.unwrap_or(0)))
    }

    /// Cuts the bytes that a program is told of a GPU to the limit of the calling process's cgroup: of the next one
    /// upwards that can have a limit, even if one further up has a lower limit.
    pub fn cut_to_limit(&self, gpu: usize, told: Told) -> Told {
        let Some(limit) = self.own_limit(gpu) else { return told };
        Told {
            total: told.total.min(limit.hard),
            free: told.free.min(limit.hard.saturating_sub(limit.used)),
            used: limit.used,
        }
    }

    fn own_limit(&self, gpu: usize) -> Option<Use> {
        let way = self.way(gpu).ok()?;
        let cgroups = cgroup::own(self.cgroup());
        let (id, hard) = match way {
            Way::Dmem => {
                let nearest = cgroups.iter().find(|one| has_dmem(one))?;
                (nearest.id, self.dmem_limits(gpu, nearest).hard)
            }
            Way::Misc => self.nearest_in_table(gpu, &cgroups)?,
        };
        let used = self.charged(gpu, id);
        (hard != NO_LIMIT).then_some(Use { hard, used })
    }

    fn way(&self, gpu: usize) -> Result<Way, Refused> {
        // The profile first: without limits, no file is read.
        let way = match self.profile().memory_limits {
            MemoryLimits::Dmem => Way::Dmem,
            MemoryLimits::Misc => Way::Misc,
            MemoryLimits::None => return Err(Refused::NotSupported),
        };
        match self.instance(gpu).is_some() || self.has_mig(gpu) {
            true => Err(Refused::NotSupported),
            false => Ok(way),
        }
    }

    /// The name of a GPU's memory in the files of dmem.
    fn region(&self, gpu: usize) -> String {
        let pci = self.pci(gpu);
        format!("nvidia/{:08x}:{:02x}:{:02x}.0/vidmem", pci.domain, pci.bus, pci.device)
    }

    fn dmem_limits(&self, gpu: usize, cgroup: &Cgroup) -> Limits {
        let region = self.region(gpu);
        let line = |file| read_line(&cgroup.folder, file, &region);
        Limits {
            soft: line(SOFT_FILE).unwrap_or(Limits::NONE.soft),
            hard: line(HARD_FILE).unwrap_or(Limits::NONE.hard),
        }
    }

    /// The nearest of these cgroups with a limit, also beyond the root of the process's cgroup namespace: the setter of
    /// the limit saw what lies above.
    fn nearest_in_table(&self, gpu: usize, cgroups: &[Cgroup]) -> Option<(u64, u64)> {
        let table = Table::read(self.dir());
        let entry = |id: u64| table.0.iter().find(|entry| (entry.gpu, entry.id) == (gpu, id));
        let above = cgroups.last().and_then(|last| entry(last.id));
        let above = above.iter().flat_map(|entry| &entry.above);
        let mut all = cgroups.iter().map(|one| one.id).chain(above.copied());
        all.find_map(|id| entry(id).filter(|entry| entry.limits.hard != NO_LIMIT))
            .map(|entry| (entry.id, entry.limits.hard))
    }

    /// The bytes that living processes have charged to a cgroup.
    fn charged(&self, gpu: usize, id: u64) -> u64 {
        let is_charged = |proc: &Proc| {
            proc.phase.load(Ordering::Acquire) & PHASE_MASK == LIVE
                && proc.gpus[gpu]
                    .cgroups
                    .iter()
                    .any(|known| known.load(Ordering::Relaxed) == id)
        };
        let procs = self.places().filter(|(_, proc)| is_charged(proc));
        let units = procs.map(|(_, proc)| proc.gpus[gpu].charged.load(Ordering::Relaxed));
        units.sum::<u64>() * self.profile().granularity
    }
}

/// What a program is told of a GPU's memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    pub total: u64,
    pub free: u64,
    pub used: u64,
}

#[derive(Clone, Copy)]
enum Way {
    Dmem,
    Misc,
}

impl Member {
    /// Charges units to the process's cgroups, unless a limit would be exceeded. Dead processes are buried before that is
    /// reported.
    pub(crate) fn charge_cgroups(&self, gpu: usize, units: u64) -> Result<(), Full> {
        let Ok(way) = self.state().way(gpu) else { return Ok(()) };
        self.try_charge(way, gpu, units).or_else(|Full| {
            if !self.state().mark_dead(Some(self.place), |_, _| true) {
                return Err(Full);
            }
            self.state().bury();
            self.try_charge(way, gpu, units)
        })
    }

    /// Takes units back that were charged.
    pub(crate) fn uncharge_cgroups(&self, gpu: usize, units: u64) {
        let charged = &self.state().proc(self.place).gpus[gpu].charged;
        let _ = charged.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |had| {
            Some(had.saturating_sub(units))
        });
    }

    fn try_charge(&self, way: Way, gpu: usize, units: u64) -> Result<(), Full> {
        let state = self.state();
        let cgroups = cgroup::own(state.cgroup());
        let _lock = Lock::take(state.dir()).map_err(|_| Full)?;
        let limits: Vec<(u64, u64)> = match way {
            Way::Dmem => cgroups
                .iter()
                .map(|one| {
                    (
                        one.id,
                        if has_dmem(one) {
                            state.dmem_limits(gpu, one).hard
                        } else {
                            NO_LIMIT
                        },
                    )
                })
                .collect(),
            Way::Misc => state.nearest_in_table(gpu, &cgroups).into_iter().collect(),
        };
        if limits.is_empty() {
            return Ok(());
        }
        let proc = &state.proc(self.place).gpus[gpu];
        for (at, known) in proc.cgroups.iter().enumerate() {
            known.store(limits.get(at).map_or(0, |(id, _)| *id), Ordering::Relaxed);
        }
        let more = units.saturating_mul(state.profile().granularity);
        let fits = |(id, hard): &(u64, u64)| *hard == NO_LIMIT || state.charged(gpu, *id).saturating_add(more) <= *hard;
        if !limits.iter().all(fits) {
            return Err(Full);
        }
        proc.charged.fetch_add(units, Ordering::Relaxed);
        Ok(())
    }
}

/// The cgroups of a folder, which must not be the root of its hierarchy: that has no limits.
fn not_root(folder: &Path) -> Result<Vec<Cgroup>, Refused> {
    let cgroups = cgroup::at(folder).map_err(|_| Refused::System)?;
    match cgroups.len() {
        1 => Err(Refused::NotSupported),
        _ => Ok(cgroups),
    }
}

/// Whether a cgroup's parent enables the controller for its children. A kernel's cgroup then has the controller's files,
/// also where a cgroup namespace hides the parent. A plain file has what was written last to it, such as `+dmem`.
fn has_dmem(cgroup: &Cgroup) -> bool {
    if is_of_kernel(&cgroup.folder) {
        return true;
    }
    let Some(parent) = cgroup.folder.parent() else {
        return false;
    };
    let enabled = fs::read_to_string(parent.join("cgroup.subtree_control")).unwrap_or_default();
    enabled.split_whitespace().fold(false, |on, word| match word {
        "dmem" | "+dmem" => true,
        "-dmem" => false,
        _ => on,
    })
}

fn is_of_kernel(folder: &Path) -> bool {
    folder.join(USED_FILE).exists()
}

/// Reads a region's line `REGION BYTES|max` of a file of dmem; None if there is none.
fn read_line(folder: &Path, file: &str, region: &str) -> Option<u64> {
    let text = fs::read_to_string(folder.join(file)).ok()?;
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(region)?.strip_prefix(' '))?;
    match value.trim() {
        "max" => Some(NO_LIMIT),
        bytes => bytes.parse().ok(),
    }
}

/// Writes a region's line. In a plain folder, a line with the default is removed, and so is a file without lines, so that a
/// folder without limits can be. A kernel takes one line at each write, and keeps those of other regions.
fn write_line(folder: &Path, file: &str, region: &str, bytes: u64, default: u64) -> io::Result<()> {
    if is_of_kernel(folder) {
        let value = if bytes == NO_LIMIT {
            "max".to_owned()
        } else {
            bytes.to_string()
        };
        return fs::write(folder.join(file), format!("{region} {value}"));
    }
    let before = fs::read_to_string(folder.join(file)).unwrap_or_default();
    let of_others = before.lines().filter(|line| line.split(' ').next() != Some(region));
    let own = (bytes != default).then(|| format!("{region} {bytes}"));
    let lines: String = of_others
        .map(str::to_owned)
        .chain(own)
        .map(|line| line + "\n")
        .collect();
    if !lines.is_empty() {
        return replace(folder, file, &lines);
    }
    match fs::remove_file(folder.join(file)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Readers do not take the lock, so they must never see half a file.
fn replace(folder: &Path, file: &str, text: &str) -> io::Result<()> {
    let aside = folder.join(format!("{file}.{}.new", std::process::id()));
    fs::write(&aside, text)?;
    fs::rename(&aside, folder.join(file))
}

/// The limits that the driver keeps itself.
struct Table(Vec<Entry>);

/// A line `GPU ID SOFT HARD ABOVE...`.
struct Entry {
    gpu: usize,
    id: u64,
    limits: Limits,
    /// The cgroup's ancestors, nearest first.
    above: Vec<u64>,
}

impl Table {
    fn read(dir: &Path) -> Self {
        let text = fs::read_to_string(dir.join(TABLE)).unwrap_or_default();
        let entry = |line: &str| {
            let numbers: Vec<u64> = line.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
            let [gpu, id, soft, hard, ref above @ ..] = numbers[..] else {
                return None;
            };
            Some(Entry {
                gpu: usize::try_from(gpu).ok()?,
                id,
                limits: Limits { soft, hard },
                above: above.to_vec(),
            })
        };
        Self(text.lines().filter_map(entry).collect())
    }

    fn write(&self, dir: &Path) -> io::Result<()> {
        let line = |entry: &Entry| {
            let Limits { soft, hard } = entry.limits;
            let above: String = entry.above.iter().map(|id| format!(" {id}")).collect();
            format!("{} {} {soft} {hard}{above}\n", entry.gpu, entry.id)
        };
        replace(dir, TABLE, &self.0.iter().map(line).collect::<String>())
    }
}

#[cfg(test)]
#[cfg(not(miri))] // files and mappings
mod tests {
    use super::*;
    use crate::cgroup::tests::tree;
    use crate::env::Config;
    use crate::profile::Profile;
    use std::path::PathBuf;

    const MIB: u64 = 1 << 20;
    const DEVICE: u64 = 1024 * MIB;
    /// A granule of the profile.
    const UNIT: u64 = 2 * MIB;

    /// A state folder, and beside it a tree of cgroups: a pod with two containers, and another pod.
    struct Machine(tempfile::TempDir, Profile);

    impl Machine {
        fn new(way: &str) -> Self {
            let profile = format!("gpus = 2\nmemory = 1GiB\nreserved = 0\nmemory_limits = {way}");
            let machine = Self(tempfile::tempdir().unwrap(), Profile::parse(&profile).unwrap());
            std::fs::create_dir(machine.0.path().join("state")).unwrap();
            tree(&machine.at(""), &["pod/one", "pod/two", "other/one"]);
            machine
        }

        fn at(&self, cgroup: &str) -> PathBuf {
            self.0.path().join("cgroups").join(cgroup)
        }

        fn config(&self, cgroup: &str) -> Config {
            Config {
                dir: self.0.path().join("state"),
                origin: "a test",
                profile: Some(("a test".into(), self.1.clone())),
                cgroup: Some(self.at(cgroup)),
                caps: None,
            }
        }

        fn state(&self) -> State {
            State::open(&self.config("")).unwrap()
        }

        /// A process in a cgroup.
        fn process(&self, cgroup: &str) -> Member {
            let config = self.config(cgroup);
            State::open(&config).unwrap().join(&config).unwrap()
        }

        fn set(&self, cgroup: &str, hard: u64) -> Result<(), Refused> {
            self.state()
                .set_memory_limits(0, &self.at(cgroup), Limits { soft: 0, hard }, true)
        }

        /// Hard limit and use.
        fn get(&self, cgroup: &str) -> Result<(u64, u64), Refused> {
            let found = self.state().memory_limits(0, &self.at(cgroup));
            found.map(|(limits, used)| (limits.hard, used))
        }
    }

    /// What cuMemGetInfo says: total and free.
    fn told(process: &Member) -> (u64, u64) {
        let free = process.free(0);
        let all = Told {
            total: DEVICE,
            free,
            used: DEVICE - free,
        };
        let told = process.state().cut_to_limit(0, all);
        (told.total, told.free)
    }

    #[test]
    fn a_limit_holds_to_the_granule_over_all_processes_of_a_cgroup() {
        for way in ["dmem", "misc"] {
            let machine = Machine::new(way);
            machine.set("pod/one", 100 * UNIT).unwrap();
            let (one, beside) = (machine.process("pod/one"), machine.process("pod/one"));
            let stranger = machine.process("other/one");
            one.grow(0, 60).unwrap();
            assert_eq!(beside.grow(0, 41), Err(Full), "{way}");
            beside.grow(0, 40).unwrap();
            assert_eq!(one.grow(0, 1), Err(Full), "{way}");
            stranger.grow(0, 200).unwrap();
            one.grow(1, 200).expect("the other GPU has no limit");
            assert_eq!(machine.get("pod/one"), Ok((100 * UNIT, 100 * UNIT)), "{way}");
            beside.shrink(0, 40);
            one.grow(0, 40).unwrap();
            assert_eq!(machine.get("pod/one"), Ok((100 * UNIT, 100 * UNIT)), "{way}");
        }
    }

    #[test]
    fn an_allocation_on_one_gpu_moves_no_charges_of_another() {
        let machine = Machine::new("misc");
        let set = |gpu, cgroup: &str| {
            let limits = Limits {
                soft: 0,
                hard: 100 * UNIT,
            };
            machine
                .state()
                .set_memory_limits(gpu, &machine.at(cgroup), limits, true)
                .unwrap();
        };
        // The nearest limited cgroup differs between the GPUs.
        set(0, "pod/one");
        set(1, "pod");
        let one = machine.process("pod/one");
        one.grow(0, 60).unwrap();
        one.grow(1, 1).unwrap();
        assert_eq!(machine.get("pod/one"), Ok((100 * UNIT, 60 * UNIT)));
        let beside = machine.process("pod/one");
        assert_eq!(beside.grow(0, 41), Err(Full));
    }

    #[test]
    fn managed_memory_is_not_charged() {
        for way in ["dmem", "misc"] {
            let machine = Machine::new(way);
            machine.set("pod/one", 100 * UNIT).unwrap();
            let one = machine.process("pod/one");
            one.grow_managed(0, 300).unwrap();
            one.grow(0, 100).expect("nothing was charged");
            one.shrink_managed(0, 300);
            assert_eq!(machine.get("pod/one"), Ok((100 * UNIT, 100 * UNIT)), "{way}");
            assert_eq!(one.grow(0, 1), Err(Full), "{way}");
        }
    }

    #[test]
    fn what_the_gpu_refuses_is_not_charged() {
        let machine = Machine::new("dmem");
        machine.set("pod/one", DEVICE).unwrap();
        let (one, stranger) = (machine.process("pod/one"), machine.process("other/one"));
        stranger.grow(0, DEVICE / UNIT).unwrap();
        assert_eq!(one.grow(0, 1), Err(Full));
        assert_eq!(machine.get("pod/one"), Ok((DEVICE, 0)));
    }

    #[test]
    fn with_dmem_limits_nest_and_with_misc_the_nearest_counts() {
        for (way, limits_nest) in [("dmem", true), ("misc", false)] {
            let machine = Machine::new(way);
            machine.set("pod", 100 * UNIT).unwrap();
            machine.set("pod/one", 80 * UNIT).unwrap();
            let (one, two) = (machine.process("pod/one"), machine.process("pod/two"));
            one.grow(0, 80).unwrap();
            assert_eq!(one.grow(0, 1), Err(Full), "{way}");
            // The second container has no limit of its own: the pod's holds, for both or for it alone.
            let room = if limits_nest { 20 } else { 100 };
            two.grow(0, room).unwrap();
            assert_eq!(two.grow(0, 1), Err(Full), "{way}");
        }
    }

    #[test]
    fn programs_see_the_limit_of_the_next_cgroup_that_can_have_one() {
        let machine = Machine::new("dmem");
        machine.set("pod", 100 * UNIT).unwrap();
        let one = machine.process("pod/one");
        assert_eq!(
            told(&one),
            (DEVICE, DEVICE),
            "a pod's limit is not seen in its containers"
        );
        machine.set("pod/one", 80 * UNIT).unwrap();
        one.grow(0, 30).unwrap();
        assert_eq!(told(&one), (80 * UNIT, 50 * UNIT));
        fs::write(machine.at("pod/cgroup.subtree_control"), "cpu").unwrap();
        assert_eq!(
            told(&one),
            (100 * UNIT, 70 * UNIT),
            "without files of its own, the pod's is read"
        );
        let machine = Machine::new("misc");
        machine.set("pod", 100 * UNIT).unwrap();
        assert_eq!(told(&machine.process("pod/one")), (100 * UNIT, 100 * UNIT));
        machine
            .state()
            .set_memory_limits(0, &machine.at("pod"), Limits::NONE, true)
            .unwrap();
        assert_eq!(told(&machine.process("pod/one")), (DEVICE, DEVICE), "taken back");
    }

    #[test]
    fn a_limit_below_what_is_in_use() {
        let machine = Machine::new("dmem");
        let one = machine.process("pod/one");
        one.grow(0, 100).unwrap();
        machine.set("pod/one", 50 * UNIT).expect("nothing is ended");
        assert_eq!(
            machine.get("pod/one"),
            Ok((50 * UNIT, 100 * UNIT)),
            "earlier memory is charged"
        );
        one.shrink(0, 60);
        one.grow(0, 10).unwrap();
        assert_eq!(one.grow(0, 1), Err(Full));

        let machine = Machine::new("misc");
        let one = machine.process("pod/one");
        one.grow(0, 100).unwrap();
        machine
            .set("pod/one", 50 * UNIT)
            .expect("earlier memory is not charged");
        one.grow(0, 50).unwrap();
        assert_eq!(machine.set("pod/one", 49 * UNIT), Err(Refused::Invalid));
        machine.set("pod/one", 50 * UNIT).unwrap();
    }

    #[test]
    fn a_dead_process_is_not_charged() {
        let machine = Machine::new("dmem");
        machine.set("pod/one", 100 * UNIT).unwrap();
        let (one, dead) = (machine.process("pod/one"), machine.process("pod/one"));
        dead.grow(0, 100).unwrap();
        assert_eq!(one.grow(0, 1), Err(Full));
        dead.state()
            .proc(dead.place)
            .phase
            .fetch_or(crate::layout::DEAD, Ordering::Relaxed);
        dead.state().proc(dead.place).phase.fetch_and(!LIVE, Ordering::Relaxed);
        one.grow(0, 100).expect("buried");
    }

    #[test]
    fn with_dmem_a_cgroup_takes_its_limits_along_and_with_misc_they_stay() {
        let machine = Machine::new("dmem");
        machine.set("pod/one", UNIT).unwrap();
        fs::remove_dir_all(machine.at("pod/one")).unwrap();
        assert_eq!(machine.get("pod/one"), Err(Refused::System));
        tree(&machine.at(""), &["pod/one"]);
        assert_eq!(machine.get("pod/one"), Ok((NO_LIMIT, 0)));

        let machine = Machine::new("misc");
        machine.set("pod/one", UNIT).unwrap();
        // Another cgroup at the same place in the kernel's memory.
        fs::rename(machine.at("pod/one"), machine.at("other/two")).unwrap();
        assert_eq!(machine.get("other/two"), Ok((UNIT, 0)));
    }

    #[test]
    fn a_process_in_a_cgroup_namespace_is_below_what_the_setter_saw() {
        let machine = Machine::new("misc");
        machine.set("pod", 100 * UNIT).unwrap();
        machine.set("pod/one", NO_LIMIT).unwrap();
        for hidden in ["cgroup.procs", "pod/cgroup.procs"] {
            fs::remove_file(machine.at(hidden)).expect("hidden from the process");
        }
        let one = machine.process("pod/one");
        one.grow(0, 100).unwrap();
        assert_eq!(one.grow(0, 1), Err(Full));
    }

    #[test]
    fn a_kernels_files_are_written_a_line_at_a_time_and_its_charges_are_in_use() {
        let machine = Machine::new("dmem");
        let region = machine.state().region(0);
        let put = |file: &str, text: &str| fs::write(machine.at("pod/one").join(file), text).unwrap();
        put("dmem.current", &format!("another 7\n{region} {}\n", 30 * UNIT));
        machine.set("pod/one", 100 * UNIT).unwrap();
        let written = |file: &str| fs::read_to_string(machine.at("pod/one").join(file)).unwrap();
        assert_eq!(written("dmem.max"), format!("{region} {}", 100 * UNIT));
        assert_eq!(written("dmem.min"), format!("{region} 0"));
        let one = machine.process("pod/one");
        one.grow(0, 10).unwrap();
        assert_eq!(machine.get("pod/one"), Ok((100 * UNIT, 40 * UNIT)));
        // In a cgroup namespace the parent, which enables the controller, is not seen.
        fs::remove_file(machine.at("pod/cgroup.subtree_control")).unwrap();
        assert_eq!(one.grow(0, 91), Err(Full));
        machine.set("pod/one", NO_LIMIT).unwrap();
        assert_eq!(written("dmem.max"), format!("{region} max"), "the file is the kernel's");
        assert_eq!(machine.get("pod/one"), Ok((NO_LIMIT, 40 * UNIT)));
    }

    #[test]
    fn refusals() {
        let machine = Machine::new("dmem");
        let set = |cgroup: &str, soft, hard, is_root| {
            let state = machine.state();
            state.set_memory_limits(0, &machine.at(cgroup), Limits { soft, hard }, is_root)
        };
        assert_eq!(set("pod/one", 0, UNIT, false), Err(Refused::NoPermission));
        assert_eq!(set("pod/one", 2, 1, true), Err(Refused::Invalid));
        assert_eq!(set("pod/one", 0, DEVICE + 1, true), Err(Refused::Invalid));
        assert_eq!(set("pod/one", 0, DEVICE, true), Ok(()));
        assert_eq!(set("pod/none", 0, UNIT, true), Err(Refused::System));
        assert_eq!(set("", 0, UNIT, true), Err(Refused::NotSupported), "the root");
        fs::write(machine.at("pod/cgroup.subtree_control"), "-dmem").unwrap();
        assert_eq!(set("pod/one", 0, UNIT, true), Err(Refused::System));
        fs::write(machine.at("pod/cgroup.subtree_control"), "+dmem").unwrap();
        assert_eq!(set("pod/one", UNIT, UNIT, true), Ok(()));
        let expected = Limits { soft: UNIT, hard: UNIT };
        assert_eq!(
            machine.state().memory_limits(0, &machine.at("pod/one")),
            Ok((expected, 0))
        );
        fs::write(machine.0.path().join("state/control"), "mig 0").unwrap();
        assert_eq!(machine.get("pod/one"), Err(Refused::NotSupported));

        assert_eq!(
            Machine::new("misc").get("pod/one"),
            Err(Refused::NotSupported),
            "never set"
        );
        let machine = Machine::new("none");
        assert_eq!(machine.set("pod/one", UNIT), Err(Refused::NotSupported));
        machine.process("pod/one").grow(0, DEVICE / UNIT).unwrap();
    }
}
