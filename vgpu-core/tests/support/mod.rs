//! A share in a temporary folder, and clients under it, set up as `vgpu run` does.
#![allow(dead_code, unused_imports)] // Not every test file uses all of it.

pub(crate) mod actor;
pub(crate) mod alone;
pub(crate) mod caller;
pub(crate) mod chance;
pub(crate) mod hang;
pub(crate) mod serve;
pub(crate) mod text;
#[cfg(target_arch = "x86_64")]
pub(crate) mod trace;
pub(crate) mod truth;
pub(crate) mod watched;

use caller::Caller;
use hang::HangGuard;
use serve::Serving;
use std::path::{Path, PathBuf};
use std::process::Command;
pub(crate) use text::{lines, number, until};
use vgpu_abi::arbitration::{Counted, Entry, PAGE, SLOTS, counters, node_page_writes, slot_file_name};
use vgpu_abi::entitlement::{Holder, entries};
use vgpu_abi::ledger;
use vgpu_abi::limits::{ComputePolicy, Limits, Priority};
use vgpu_abi::paths::{ARBITRATION, LEDGER, LIMITS, NODE_PAGE, PRELOAD_FILE, RUN_DIR_VARIABLE, SHIM_FILE, SHIM_NAMES};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;
pub(crate) const GRANULE: u64 = 2 << 20;

/// The folder of the release artefacts, which must not be older than their sources.
pub(crate) fn dist() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dist");
    let dist = std::env::var_os("VGPU_DIST").map_or(own, PathBuf::from);
    for file in [
        SHIM_FILE,
        PRELOAD_FILE,
        "soft-gpu/libcuda.so.1",
        "soft-gpu/libnvidia-ml.so.1",
    ] {
        vgpu_built_from::assert_fresh(&dist.join(file));
    }
    dist.canonicalize().expect("a path")
}

/// A GPU with shares, its state and the folder of libraries of one test.
pub(crate) struct Bench {
    folder: tempfile::TempDir,
    state: PathBuf,
    gpus: Vec<String>,
    /// The size of a context in the profile, as the plugin would measure it.
    context: u64,
    /// A profile that only clients under the shares use.
    profile: Option<PathBuf>,
    _hang_guard: Option<HangGuard>,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with_profile("")
    }

    /// A bench with the GPUs of a profile.
    pub(crate) fn with_profile(profile: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["state", "run", "lib"] {
            std::fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        for name in SHIM_NAMES {
            let link = folder.path().join("lib").join(name);
            std::os::unix::fs::symlink(dist().join(SHIM_FILE), link).expect("a link");
        }
        std::fs::write(folder.path().join("profile"), profile).expect("a profile");
        let mut bench = Self {
            state: folder.path().join("state"),
            folder,
            gpus: Vec::new(),
            context: context_cost(profile),
            profile: None,
            _hang_guard: HangGuard::of_bench(),
        };
        // The state keeps the profile of the client that creates it.
        let mut first = bench.bare(&["cuinit", "devices"]);
        first.env("SOFT_GPU_PROFILE", bench.folder.path().join("profile"));
        let shown = lines(&first.output().expect("a client"));
        let words: Vec<&str> = shown[1].split(' ').collect();
        let count: usize = words[2].parse().expect("a count");
        bench.gpus = (0..count).map(|index| uuid(words[4 + 3 * index])).collect();
        bench
    }

    /// A bench whose devices are instances of GPUs in MIG mode.
    pub(crate) fn of_instances(profile: &str) -> Self {
        let mut bench = Self::with_profile(profile);
        for gpu in &mut bench.gpus {
            *gpu = gpu.replacen("GPU-", "MIG-", 1);
        }
        bench
    }

    /// A bench with one share of `memory` bytes on the first GPU.
    pub(crate) fn with_share(memory: u64) -> Self {
        Self::of_share("", memory)
    }

    /// The same with a profile for the GPUs.
    pub(crate) fn of_share(profile: &str, memory: u64) -> Self {
        let bench = Self::with_profile(profile);
        bench.share("share", 0, 0, memory);
        bench
    }

    /// A bench with one share of `memory` bytes on the first GPU of another bench.
    pub(crate) fn on_gpu_of(other: &Self, memory: u64) -> Self {
        let mut bench = Self::new();
        bench.state.clone_from(&other.state);
        bench.gpus.clone_from(&other.gpus);
        bench.context = other.context;
        bench.share("share", 0, 0, memory);
        bench
    }

    /// The same shares on GPUs with the same UUIDs, whose driver has these faults.
    pub(crate) fn with_faults(mut self, faults: &str) -> Self {
        let profile = self.folder.path().join("profile");
        std::fs::write(&profile, faults).expect("a profile");
        self.profile = Some(profile);
        self
    }

    pub(crate) fn gpu(&self, index: usize) -> &str {
        &self.gpus[index]
    }

    pub(crate) fn lib(&self) -> PathBuf {
        self.folder.path().join("lib")
    }

    pub(crate) fn directory(&self, share: &str) -> PathBuf {
        self.folder.path().join("run").join(share)
    }

    pub(crate) fn limits(&self, share: &str, order: u32, gpu: usize, memory: u64) -> Limits {
        let driver = dist().join("soft-gpu");
        let (libcuda, libnvidia_ml) = (driver.join("libcuda.so.1"), driver.join("libnvidia-ml.so.1"));
        Limits {
            order,
            context_reserve: Some(self.context),
            ..Limits::of_memory(share, &self.gpus[gpu], memory, libcuda, libnvidia_ml)
        }
    }

    pub(crate) fn share(&self, share: &str, order: u32, gpu: usize, memory: u64) {
        self.put(&self.limits(share, order, gpu, memory));
    }

    /// One share of `memory` bytes on the first GPU, whose limits `change` changes.
    pub(crate) fn share_with(&self, memory: u64, change: impl FnOnce(&mut Limits)) {
        let mut limits = self.limits("share", 0, 0, memory);
        change(&mut limits);
        self.put(&limits);
    }

    pub(crate) fn put(&self, limits: &Limits) {
        let directory = self.directory(&limits.share);
        std::fs::create_dir_all(&directory).expect("a folder");
        std::fs::write(directory.join(LIMITS), limits.render()).expect("limits");
        std::fs::write(directory.join(LEDGER), ledger::image(limits)).expect("a ledger");
    }

    /// Creates the pages with which the shares of the first GPU arbitrate its time, with an entry for each slot.
    pub(crate) fn pages(&self, entries: &[Entry; SLOTS]) {
        self.pages_on(0, entries);
    }

    /// The same for another GPU.
    pub(crate) fn pages_on(&self, gpu: usize, entries: &[Entry; SLOTS]) {
        let folder = self.arbitration_on(gpu);
        std::fs::create_dir_all(&folder).expect("a folder");
        for slot in 0..SLOTS as u8 {
            std::fs::write(folder.join(slot_file_name(slot)), [0; PAGE]).expect("a page");
        }
        let mut page = [0; PAGE];
        for (at, bytes) in node_page_writes([0; 4], entries) {
            page[at as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        std::fs::write(folder.join(NODE_PAGE), page).expect("a page");
    }

    /// Returns the counters in the page of a slot.
    pub(crate) fn counted(&self, slot: u8) -> Counted {
        self.counted_on(0, slot)
    }

    /// The same for another GPU.
    pub(crate) fn counted_on(&self, gpu: usize, slot: u8) -> Counted {
        let page = std::fs::read(self.arbitration_on(gpu).join(slot_file_name(slot))).expect("a page");
        counters(&page).expect("a whole page")
    }

    /// The folder with the first GPU's pages.
    pub(crate) fn arbitration(&self) -> PathBuf {
        self.arbitration_on(0)
    }

    fn arbitration_on(&self, gpu: usize) -> PathBuf {
        self.folder.path().join("run").join(ARBITRATION).join(&self.gpus[gpu])
    }

    /// Uses the arbitration pages of another bench that has the same GPU.
    pub(crate) fn arbitrates_with(&self, other: &Self) {
        let own = self.folder.path().join("run").join(ARBITRATION);
        let pages = other.folder.path().join("run").join(ARBITRATION);
        std::os::unix::fs::symlink(pages, own).expect("a link");
    }

    pub(crate) fn ledger(&self, share: &str) -> PathBuf {
        self.directory(share).join(LEDGER)
    }

    /// Opens the ledger of `share`, so that a test can damage it.
    pub(crate) fn open_ledger(&self, share: &str) -> std::fs::File {
        let mut options = std::fs::OpenOptions::new();
        options
            .read(true)
            .write(true)
            .open(self.ledger(share))
            .expect("a ledger")
    }

    /// Gives the share of [`Self::with_share`] this percentage of the GPU's time.
    pub(crate) fn limit_time(&self, cores: u32) {
        let holder = Holder {
            slot: 0,
            cores,
            compute_policy: ComputePolicy::Guaranteed,
            priority: Priority::Low,
            generation: 1,
            ignored: false,
        };
        self.pages(&entries(&[holder]));
        self.share_with(GIB, |limits| {
            (limits.cores, limits.slot) = (cores, Some(0));
            limits.compute_policy = ComputePolicy::Guaranteed;
        });
    }

    /// The software GPU's shared file.
    pub(crate) fn state(&self) -> PathBuf {
        self.state.join("gpus")
    }

    pub(crate) fn usage(&self, share: &str) -> ledger::Usage {
        let bytes = std::fs::read(self.directory(share).join(LEDGER)).expect("a ledger");
        ledger::read(&bytes).expect("a sound ledger")
    }

    /// A client under the shares. Each of `steps` may be several, separated by spaces.
    pub(crate) fn client(&self, steps: &[&str]) -> Command {
        let mut command = client(steps);
        command
            .env("LD_LIBRARY_PATH", self.lib())
            .env(RUN_DIR_VARIABLE, self.folder.path().join("run"))
            .env("SOFT_GPU_STATE", &self.state);
        if let Some(profile) = &self.profile {
            command.env("SOFT_GPU_PROFILE", profile);
        }
        command
    }

    /// A client of the bare GPU.
    pub(crate) fn bare(&self, steps: &[&str]) -> Command {
        let mut command = client(steps);
        command
            .env("LD_LIBRARY_PATH", dist().join("soft-gpu"))
            .env("SOFT_GPU_STATE", &self.state);
        command
    }

    /// A client under the shares that has done `steps` and serves.
    #[track_caller]
    pub(crate) fn serving(&self, steps: &[&str]) -> Serving {
        let mut client = Serving::new(self.client(&[steps, &["serve"]].concat()));
        client.did(steps);
        client
    }

    /// Starts a client and kills it while it holds `bytes`. Nothing checks for dead processes afterwards.
    #[track_caller]
    pub(crate) fn death_with(&self, bytes: &str) {
        let allocation = format!("alloc:{bytes}");
        let output = self.client(&["init", &allocation, "kill"]).output().expect("a client");
        assert_eq!(lines(&output), ["init 0", "alloc 0"]);
    }

    /// A client that makes single calls, under the shares or on the bare GPU.
    pub(crate) fn caller(&self, limited: bool) -> Caller {
        Caller::like(&if limited { self.client(&[]) } else { self.bare(&[]) })
    }

    /// Runs a client to its end. Returns its lines.
    pub(crate) fn run(&self, steps: &[&str]) -> Vec<String> {
        let output = self.client(steps).output().expect("a client");
        assert!(output.status.success(), "{steps:?}: {output:?}");
        lines(&output)
    }

    /// Returns the bytes free for a new client.
    pub(crate) fn free(&self) -> u64 {
        number(&self.run(&["init", "info"])[1], 2)
    }

    /// Runs a client that must be refused. Returns its only line on stderr.
    pub(crate) fn refusal(&self) -> String {
        let output = self.client(&["cuinit", "cuinit", "memory"]).output().expect("a client");
        assert_eq!(lines(&output), ["cuinit 800", "cuinit 800", "memory 4"], "{output:?}");
        let said = String::from_utf8(output.stderr).expect("text");
        assert_eq!(said.lines().count(), 1, "{said}");
        said
    }
}

/// Returns the size of a context in a profile, which is in MiB.
fn context_cost(profile: &str) -> u64 {
    let mut lines = profile.lines().filter_map(|line| line.strip_prefix("context_cost = "));
    let text = lines.next().map(|size| size.trim_end_matches("MiB"));
    text.map_or(0, |mib| mib.parse::<u64>().expect("MiB") * MIB)
}

fn client(steps: &[&str]) -> Command {
    let mut command = Command::new(vgpu_built_from::program("gpu-client"));
    command
        .args(steps.iter().flat_map(|steps| steps.split(' ')))
        .env_remove("LD_PRELOAD")
        .env_remove("CUDA_VISIBLE_DEVICES");
    command
}

fn uuid(hex: &str) -> String {
    let part = |range: std::ops::Range<usize>| &hex[range];
    let parts = [part(0..8), part(8..12), part(12..16), part(16..20), part(20..32)];
    format!("GPU-{}", parts.join("-"))
}
