//! The library replaces HAMi-core in a container as HAMi's device plugin creates it, configured only by HAMi's
//! variables. Also tests failures that HAMi's users have reported, each with its issue number.

mod support;

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;
use support::serve::Serving;
use support::{Bench, GIB, MIB, dist, lines, number};
use vgpu_core::hami::region;

/// A container: software GPUs, and the folder that HAMi mounts for one container.
struct Container {
    bench: Bench,
    folder: tempfile::TempDir,
}

impl Container {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("a mode");
        // The folder also contains the mount point of HAMi's library.
        fs::write(folder.path().join("libvgpu.so"), "").expect("a file");
        Self {
            bench: Bench::new(),
            folder,
        }
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("0af1.cache")
    }

    /// A client with HAMi's variables, and with the driver's libraries in the loader's second folder.
    fn client(&self, steps: &[&str], variables: &[(&str, &str)]) -> Command {
        let mut command = self.bench.client(steps);
        let path = format!("{}:{}", self.bench.lib().display(), dist().join("soft-gpu").display());
        command
            .env_remove("VGPU_RUN_DIR")
            .env("LD_LIBRARY_PATH", path)
            .env("CUDA_DEVICE_MEMORY_SHARED_CACHE", self.cache())
            .env("NVIDIA_VISIBLE_DEVICES", self.bench.gpu(0))
            .envs(variables.iter().copied());
        command
    }

    fn run(&self, steps: &[&str], variables: &[(&str, &str)]) -> Vec<String> {
        let output = self.client(steps, variables).output().expect("a client");
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{steps:?}: {output:?}"
        );
        lines(&output)
    }

    /// A client of [`Self::client`] that has run `steps` and accepts more.
    fn serving(&self, steps: &[&str], variables: &[(&str, &str)]) -> Serving {
        let mut client = Serving::new(self.client(&[steps, &["serve"]].concat(), variables));
        client.did(steps);
        client
    }

    /// Runs a client that must be refused. Returns the line that it prints.
    fn refusal(&self, variables: &[(&str, &str)]) -> String {
        let command = self.client(&["cuinit", "cuinit", "memory"], variables);
        let output = { command }.output().expect("a client");
        assert_eq!(lines(&output), ["cuinit 800", "cuinit 800", "memory 4"], "{output:?}");
        let said = String::from_utf8(output.stderr).expect("text");
        assert_eq!(said.lines().count(), 1, "{said}");
        said
    }

    /// The folders with ledgers of this test's GPUs.
    fn places(&self) -> Vec<PathBuf> {
        let entries = ["/dev/shm", "/tmp"]
            .into_iter()
            .filter_map(|base| fs::read_dir(base).ok());
        let names: Vec<String> = (0..2).map(|index| self.bench.gpu(index).to_lowercase()).collect();
        let own = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.contains("vgpu-") && names.iter().any(|gpu| name.ends_with(gpu))
        };
        entries
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .filter(own)
            .collect()
    }

    /// PID and use of GPU `place` of each process, as the monitor sees them.
    fn monitored(&self, place: u64) -> Vec<(u32, u64)> {
        let file = fs::File::open(self.cache()).expect("a region");
        assert_eq!(file.metadata().expect("a file").len(), region::SIZE);
        let word = |at: u64| {
            let mut bytes = [0; 8];
            file.read_exact_at(&mut bytes, at).expect("a word");
            u64::from_le_bytes(bytes)
        };
        assert_eq!(word(0) as u32, region::MAGIC);
        let count = word(region::PROCESS_COUNT_AT) as u32;
        (0..count as usize)
            .map(region::process_at)
            .map(|at| (word(at) as u32, word(at + 8 + place * 64 + 32)))
            .collect()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        for place in self.places() {
            let _ = fs::remove_dir_all(place);
        }
    }
}

const LIMIT: (&str, &str) = ("CUDA_DEVICE_MEMORY_LIMIT_0", "3000m");

#[test]
fn the_limit_of_its_variables_holds_for_all_processes_together() {
    let container = Container::new();
    let full = 3000 * MIB;
    let mut first = container.serving(&["init"], &[LIMIT]);
    assert_eq!(first.ask("info"), format!("0 {full} {full}"));
    assert_eq!(first.ask("alloc:2000MiB"), "0");
    let shown = container.run(&["init", "info", "alloc:1002MiB", "alloc:1000MiB", "memory"], &[LIMIT]);
    assert_eq!(shown[1], format!("info 0 {} {full}", 1000 * MIB));
    assert_eq!(shown[2..4], ["alloc 2", "alloc 0"]);
    let seen = format!("memory 0 1 {} {full} {full}", container.bench.gpu(0));
    assert_eq!(shown[4], seen, "one GPU of two, and its share");
    first.kill();
    let shown = container.run(&["init", "alloc:3000MiB", "alloc:2MiB"], &[LIMIT]);
    assert_eq!(shown[1..], ["alloc 0", "alloc 2"], "what the dead held is free");
    assert_eq!(container.places().len(), 1);
}

#[test]
fn mounted_limits_come_first_and_its_variables_are_nobody_s_to_set() {
    let container = Container::new();
    container.bench.share("share", 0, 0, GIB);
    let mut command = container.bench.client(&["init", "info"]);
    command
        .env("CUDA_DEVICE_MEMORY_LIMIT", "40g")
        .env("CUDA_DEVICE_MEMORY_LIMIT_0", "40g")
        .env("CUDA_DEVICE_MEMORY_SHARED_CACHE", container.cache());
    let output = command.output().expect("a client");
    assert_eq!(lines(&output)[1], format!("info 0 {GIB} {GIB}"), "{output:?}");
    assert!(!container.cache().exists() && container.places().is_empty());
}

#[test]
fn each_gpu_has_the_limit_of_its_place_in_the_list() {
    let container = Container::new();
    let both = format!("{},{}", container.bench.gpu(1), container.bench.gpu(0));
    let variables = [
        ("NVIDIA_VISIBLE_DEVICES", both.as_str()),
        ("CUDA_DEVICE_MEMORY_LIMIT_0", "1g"),
        ("CUDA_DEVICE_MEMORY_LIMIT", "2g"),
    ];
    let shown = container.run(&["cuinit", "devices"], &variables);
    let totals: Vec<u64> = [5, 8].iter().map(|word| number(&shown[1], *word)).collect();
    assert_eq!(totals, [2 * GIB, GIB], "in the driver's order: {}", shown[1]);
    // HAMi-core 319: a subset by CUDA_VISIBLE_DEVICES.
    let mut subset = variables.to_vec();
    subset.push(("CUDA_VISIBLE_DEVICES", "1"));
    let mut client = container.serving(&["init"], &subset);
    assert_eq!(client.ask("info"), format!("0 {GIB} {GIB}"));
    assert_eq!([client.ask("alloc:1GiB"), client.ask("alloc:2MiB")], ["0", "2"]);
    assert_eq!(container.monitored(0).len(), 1, "the list's order is the region's too");
    assert_eq!(container.monitored(0)[0].1, GIB);
    assert_eq!(container.monitored(1)[0].1, 0);
    client.kill();
}

#[test]
fn the_monitor_goes_on_seeing() {
    let container = Container::new();
    let mut first = container.serving(&["init", "alloc:1GiB"], &[LIMIT]);
    assert_eq!(container.monitored(0), [(first.pid(), GIB)]);
    let file = fs::File::open(container.cache()).expect("a region");
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, 1600).expect("a limit");
    assert_eq!(u64::from_le_bytes(bytes), 3000 * MIB);
    let names = fs::read_dir(container.folder.path()).expect("a folder").count();
    assert_eq!(
        names, 2,
        "its monitor refuses a folder with more than the library and the region"
    );
    let second = container.serving(&["init", "alloc:512MiB"], &[LIMIT]);
    let mut both = [(first.pid(), GIB), (second.pid(), GIB / 2)];
    both.sort_unstable();
    assert_eq!(container.monitored(0), both);
    // The process is killed. The next process that asks for figures removes its entry.
    second.kill();
    assert_eq!(first.ask("free:0"), "0");
    let shown = container.run(&["init", "info"], &[LIMIT]);
    assert_eq!(number(&shown[1], 2), 3000 * MIB);
    assert!(
        container.monitored(0).iter().all(|(_, used)| *used == 0),
        "{:?}",
        container.monitored(0)
    );
    first.kill();
}

#[test]
fn core_86_a_lock_that_a_killed_process_held_holds_nobody_up() {
    let container = Container::new();
    container.run(&["init", "alloc:1GiB"], &[LIMIT]);
    let file = fs::File::options()
        .write(true)
        .open(container.cache())
        .expect("a region");
    file.write_all_at(&[0; 32], 24).expect("the semaphore is taken");
    file.write_all_at(&i32::MAX.to_le_bytes(), 16)
        .expect("by nobody who lives");
    let shown = container.run(&["init", "alloc:1GiB", "info"], &[LIMIT]);
    assert_eq!(shown[..2], ["init 0", "alloc 0"]);
}

#[test]
fn core_200_garbage_in_the_region_is_not_shown_and_lifts_nothing() {
    let container = Container::new();
    container.run(&["init"], &[LIMIT]);
    let file = fs::File::options()
        .write(true)
        .open(container.cache())
        .expect("a region");
    file.write_all_at(&[0xff; 4096], 1600).expect("limits and processes");
    file.write_all_at(&u32::MAX.to_le_bytes(), region::PROCESS_COUNT_AT)
        .expect("a count");
    let shown = container.run(&["init", "alloc:1GiB", "info", "memory", "alloc:3000MiB"], &[LIMIT]);
    assert_eq!(shown[2], format!("info 0 {} {}", 3000 * MIB - GIB, 3000 * MIB));
    assert_eq!(number(&shown[3], 5), GIB);
    assert_eq!(shown[4], "alloc 2");
    assert_eq!(container.monitored(0).len(), 1);
    // The file is truncated while in use. That is harmless, because no process has mapped it.
    file.set_len(0).expect("a cut");
    assert_eq!(container.run(&["init", "alloc:1GiB"], &[LIMIT])[1], "alloc 0");
    assert_eq!(file.metadata().expect("a file").size(), region::SIZE);
}

#[test]
fn hami_1607_a_variable_that_is_changed_later_lifts_nothing() {
    let container = Container::new();
    container.run(&["init"], &[LIMIT]);
    let shown = container.run(&["init", "info"], &[("CUDA_DEVICE_MEMORY_LIMIT_0", "40g")]);
    assert_eq!(shown[1], format!("info 0 {0} {0}", 3000 * MIB));
}

#[test]
fn hami_2125_a_process_without_the_variables_is_not_unlimited() {
    let container = Container::new();
    container.run(&["init", "alloc:1GiB"], &[LIMIT]);
    let mut command = container.client(&["cuinit", "alloc:1GiB"], &[]);
    command.env_remove("CUDA_DEVICE_MEMORY_SHARED_CACHE");
    let output = command.output().expect("a client");
    assert_eq!(lines(&output), ["cuinit 800", "alloc 800"], "{output:?}");
    // A child process inherits the variables.
    let shown = container.run(
        &["init", "alloc:2000MiB", "exec:init,alloc:3000MiB,alloc:2MiB"],
        &[LIMIT],
    );
    assert_eq!(shown[2..], ["init 0", "alloc 0", "alloc 2"]);
}

#[test]
fn no_limit_is_all_of_the_gpu() {
    let container = Container::new();
    let bare = container.bench.bare(&["init", "info"]).output().expect("a client");
    let total = number(&lines(&bare)[1], 3);
    for variables in [
        &[][..],
        &[("CUDA_DEVICE_MEMORY_LIMIT", "0")],
        &[("CUDA_DEVICE_MEMORY_LIMIT", "900g")],
    ] {
        let container = Container::new();
        let shown = container.run(&["init", "info"], variables);
        assert_eq!(number(&shown[1], 3), total, "{variables:?}");
    }
}

#[test]
fn what_cannot_be_held_is_refused_with_one_line() {
    let container = Container::new();
    let said = container.refusal(&[("CUDA_DEVICE_MEMORY_LIMIT", "lots")]);
    assert!(
        said.contains("CUDA_DEVICE_MEMORY_LIMIT") && said.contains("lots"),
        "{said}"
    );
    let said = container.refusal(&[LIMIT, ("NVIDIA_VISIBLE_DEVICES", "GPU-0000")]);
    assert!(said.contains("NVIDIA_VISIBLE_DEVICES"), "{said}");
    let said = container.refusal(&[LIMIT, ("CUDA_DEVICE_MEMORY_SHARED_CACHE", "/proc/nowhere/x.cache")]);
    assert!(said.contains("/proc/nowhere/x.cache"), "{said}");
    let lib = container.bench.lib();
    let said = container.refusal(&[LIMIT, ("LD_LIBRARY_PATH", lib.to_str().expect("a path"))]);
    assert!(said.contains("libcuda.so.1"), "{said}");
    // A ledger that somebody has damaged.
    container.run(&["init"], &[LIMIT]);
    let ledger = container.places()[0].join("ledger");
    fs::write(&ledger, "short").expect("a file");
    let said = container.refusal(&[LIMIT]);
    assert!(said.contains("ledger has 5 bytes"), "{said}");
}

#[test]
fn a_file_that_is_no_region_is_left_alone_and_limits_hold() {
    let container = Container::new();
    fs::write(container.cache(), "a thesis").expect("a file");
    let output = container
        .client(&["init", "alloc:3000MiB", "alloc:2MiB"], &[LIMIT])
        .output()
        .expect("a client");
    assert_eq!(lines(&output), ["init 0", "alloc 0", "alloc 2"]);
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(said.lines().count() == 1 && said.contains("no HAMi region"), "{said}");
    assert_eq!(fs::read(container.cache()).expect("a file"), b"a thesis");
}

#[test]
fn hami_1662_many_that_start_at_once_share_one_account() {
    let container = Container::new();
    // Twelve processes: more may not be able to start at once with the software GPU on a busy machine.
    let mut clients: Vec<_> = (0..12)
        .map(|_| container.client(&["init", "alloc:200MiB", "wait"], &[LIMIT]))
        .map(Serving::new)
        .collect();
    for client in &mut clients {
        assert_eq!([client.line(), client.line()], ["init 0", "alloc 0"]);
    }
    let shown = container.run(&["init", "info"], &[LIMIT]);
    assert_eq!(number(&shown[1], 2), 600 * MIB);
    assert_eq!(container.places().len(), 1);
    clients.into_iter().for_each(Serving::kill);
}

/// Runs a client as in a container whose `/etc/ld.so.preload` names the one file, with the driver in the loader's
/// folders.
fn preloaded(container: &Container, mut command: Command) -> Vec<String> {
    let library = container.folder.path().join("libvgpu.so");
    fs::copy(dist().join("libvgpu-hami.so"), &library).expect("the one file");
    command
        .env("LD_PRELOAD", &library)
        .env("LD_LIBRARY_PATH", dist().join("soft-gpu"));
    let output = command.output().expect("a client");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    lines(&output)
}

#[test]
fn one_file_in_its_place_holds_programs_that_open_the_driver() {
    let container = Container::new();
    let steps = ["init info alloc:3000MiB alloc:2MiB memory fork init info"];
    let shown = preloaded(&container, container.client(&steps, &[LIMIT]));
    let full = 3000 * MIB;
    assert_eq!(
        shown[..4],
        ["init 0", &format!("info 0 {full} {full}"), "alloc 0", "alloc 2"]
    );
    let seen = format!("memory 0 1 {} {full} {full}", container.bench.gpu(0));
    assert_eq!(shown[4], seen);
    let order = ["memory", "open:cuda", "init", "info"];
    let shown = preloaded(&container, container.client(&order, &[LIMIT]));
    assert_eq!(shown[3], format!("info 0 {full} {full}"));
    let path = format!("open:{}", dist().join("soft-gpu/libcuda.so.1").display());
    let shown = preloaded(&container, container.client(&[&path, "init", "info"], &[LIMIT]));
    assert_eq!(shown[2], format!("info 0 {full} {full}"), "by its path");
    assert_eq!(container.places().len(), 1);
}

#[test]
fn one_file_in_its_place_holds_programs_that_are_linked_with_the_driver() {
    let container = Container::new();
    let source = container.folder.path().join("linked.c");
    let program = source.with_extension("");
    fs::write(
        &source,
        "#include <stdio.h>\n#include <stddef.h>\n\
         int cuInit(unsigned); int cuDevicePrimaryCtxRetain(void **, int); int cuCtxSetCurrent(void *);\n\
         int cuMemGetInfo_v2(size_t *, size_t *);\n\
         int main(void) { void *c = 0; size_t f = 0, t = 0; int a = cuInit(0), b = cuDevicePrimaryCtxRetain(&c, 0);\n\
         cuCtxSetCurrent(c); cuMemGetInfo_v2(&f, &t); printf(\"%d %d %zu\\n\", a, b, t); return 0; }\n",
    )
    .expect("a program");
    // These tests could not be built without a linker.
    let built = Command::new("cc")
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .arg(dist().join("soft-gpu/libcuda.so.1"))
        .status();
    assert!(built.expect("cc").success());
    let like = container.client(&[], &[LIMIT]);
    let mut command = Command::new(&program);
    command.envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))));
    assert_eq!(preloaded(&container, command), [format!("0 0 {}", 3000 * MIB)]);
}

#[test]
fn one_file_in_its_place_is_nothing_to_other_programs() {
    let container = Container::new();
    let mut command = Command::new("cat");
    command
        .arg("/proc/self/maps")
        .env("CUDA_DEVICE_MEMORY_LIMIT", "not read");
    let maps = preloaded(&container, command).join("\n");
    assert!(maps.contains("libvgpu.so") && !maps.contains("memfd"), "{maps}");
    assert!(container.places().is_empty());
}

#[test]
fn the_log_level_tells_the_limits() {
    let container = Container::new();
    let variables = [LIMIT, ("LIBCUDA_LOG_LEVEL", "3"), ("CUDA_DEVICE_SM_LIMIT", "30")];
    let output = container.client(&["init"], &variables).output().expect("a client");
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(said.contains(&format!("{} bytes, 30 %", 3000 * MIB)), "{said}");
}

/// The percentage of the GPU's time that a client got in a second, with these variables.
fn percent_of_time(container: &Container, variables: &[(&str, &str)]) -> u64 {
    let said = container.run(&["init", "work:500,1000,0"], variables);
    let [code, kernels, ms] = [1, 2, 3].map(|index| number(&said[1], index));
    assert_eq!(code, 0, "{said:?}");
    kernels * 50 / ms
}

#[test]
fn gpu_time_follows_the_variables() {
    const SM: &str = "CUDA_DEVICE_SM_LIMIT";
    const POLICY: &str = "GPU_CORE_UTILIZATION_POLICY";
    /// A busy machine delays a program that waits for its share: with 190 runnable threads it got 6 %. That a share gets
    /// what is its own is tested in `compute`.
    const LIMITED: std::ops::RangeInclusive<u64> = 1..=36;
    for (variables, is_limited) in [
        (&[(SM, "30"), (POLICY, "force")][..], true),
        (&[(SM, "30")], false),
        (&[(SM, "30"), (POLICY, "disable")], false),
        (&[(SM, "0"), (POLICY, "force")], false),
        (&[(SM, "100"), (POLICY, "force")], false),
        (&[(SM, "250"), (POLICY, "force")], false),
    ] {
        let percent = percent_of_time(&Container::new(), variables);
        let expected = if is_limited { LIMITED } else { 65..=101 };
        assert!(expected.contains(&percent), "{variables:?}: {percent}");
    }
    // With the default policy, while NVML lists another process on the GPU.
    let container = Container::new();
    let mut neighbour = Serving::new(container.bench.bare(&["init serve"]));
    neighbour.did(&["init"]);
    let percent = percent_of_time(&container, &[(SM, "30")]);
    neighbour.kill();
    assert!(LIMITED.contains(&percent), "beside another process: {percent}");
}
