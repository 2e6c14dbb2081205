//! Runs the program as a runtime does: with a state on standard input, a claim's files, and the software GPU's NVML as the
//! driver. The hierarchy of cgroups is a tree of plain folders, because machines with cgroup v1 are refused; so is this
//! machine, if it is one.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use soft_gpu::{env::Config, state::State};
use tempfile::TempDir;
use vgpu_abi::limits::{Limits, TOLERANCE};
use vgpu_node::driver_limit::{DriverLimit, NO_ANSWER, Probed, REFUSED};

const HOOK: &str = env!("CARGO_BIN_EXE_vgpu-driver-limit");
const POD: &str = "0123abcd-1111-2222-3333-444455556666";
/// The lock of the pod's record.
const LOCK: &str = "records/0123abcd-1111-2222-3333-444455556666.pod.lock";
/// Of hooks that gave up because the machine is slow.
const BUSY: [&str; 2] = ["NVML does not answer", "lock for too long"];
const GIB: u64 = 1 << 30;
const DEVICE: u64 = 80 * GIB;

/// A node: its processes, its cgroups, its software GPUs and its claims.
struct Node {
    dir: TempDir,
    /// UUIDs of the GPUs.
    gpus: Vec<String>,
    /// The name of the first GPU's memory in files of dmem.
    region: String,
    /// By what the program's waits are divided.
    hurry: u32,
}

/// Returns the folder of the software GPU's libraries in dist/, which must be of these sources.
fn libraries() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist");
    let folder = std::env::var_os("VGPU_DIST")
        .map_or(own, PathBuf::from)
        .join("soft-gpu");
    for file in ["libcuda.so.1", "libnvidia-ml.so.1"] {
        vgpu_built_from::assert_fresh(&folder.join(file));
    }
    folder
}

/// Only root may set limits. Where the tests run as an ordinary user, that alone is seen.
fn is_root(test: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        vgpu_skip::skip(test, "needs root: NVML lets nobody else set limits");
    }
    is_root
}

impl Node {
    /// A node whose driver keeps limits in this way. `way` may have further lines of the profile.
    fn new(way: &str) -> Self {
        let mut node = Self {
            dir: tempfile::tempdir().expect("a folder"),
            gpus: Vec::new(),
            region: String::new(),
            hurry: 1,
        };
        node.put(
            "proc/self/mountinfo",
            &format!("24 1 0:21 / {} rw - cgroup2 cgroup2 rw\n", node.at("cgroups").display()),
        );
        node.put("proc/self/cgroup", "0::/system.slice/containerd.service\n");
        node.put("cgroups/cgroup.controllers", "cpu memory dmem misc\n");
        node.cgroup("");
        node.put(
            "state/profile",
            &match way.contains("context_cost") {
                true => format!("memory = 80GiB\nreserved = 0\nmemory_limits = {way}\n"),
                false => format!("memory = 80GiB\nreserved = 0\ncontext_cost = 0\nmemory_limits = {way}\n"),
            },
        );
        let state = State::open(&Config {
            dir: node.at("state"),
            origin: "the test",
            profile: None,
            cgroup: None,
            caps: None,
        });
        let state = state.expect("a state");
        node.gpus = (0..2).map(|gpu| state.uuid_text(gpu)).collect();
        let pci = state.pci(0);
        node.region = format!("nvidia/{:08x}:{:02x}:{:02x}.0/vidmem ", pci.domain, pci.bus, pci.device);
        node
    }

    /// The same, for a test that has the program wait until it gives up: it does so four times as soon. Too soon for other tests,
    /// because the machine may be slow.
    fn impatient() -> Self {
        Self {
            hurry: 4,
            ..Self::new("dmem")
        }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.at(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
        fs::write(path, text).expect("a file");
    }

    fn cgroup(&self, path: &str) {
        for folder in Path::new(path).ancestors() {
            let folder = format!("cgroups/{}", folder.display());
            self.put(&format!("{folder}/cgroup.procs"), "");
            if !self.at(&folder).join("cgroup.subtree_control").exists() {
                self.put(&format!("{folder}/cgroup.subtree_control"), "cpu memory\n");
            }
        }
    }

    /// A claim with shares of this many bytes, each on one of the GPUs.
    fn claim(&self, uid: &str, shares: &[(&str, usize, u64)]) {
        for (name, gpu, memory) in shares {
            let limits = Limits::of_memory(
                *name,
                &self.gpus[*gpu],
                *memory,
                "/d/libcuda.so.1",
                "/d/libnvidia-ml.so.1",
            );
            self.put(&format!("claims/{uid}/{name}/limits"), &limits.render());
        }
    }

    fn command(&self, claim: &str) -> Command {
        let mut command = Command::new(HOOK);
        command.arg("set").arg("--claim").arg(self.at("claims").join(claim));
        command.arg("--records").arg(self.at("records"));
        self.add_node(&mut command);
        command
    }

    /// Runs the hook of a container whose claim has no limit.
    fn lift(&self, claim: &str, cgroup: &str) -> Output {
        self.cgroup(cgroup);
        self.put("proc/77/cgroup", &format!("0::/{cgroup}\n"));
        let mut command = Command::new(HOOK);
        command.arg("lift").arg("--claim").arg(self.at("claims").join(claim));
        command.arg("--records").arg(self.at("records"));
        command.args(["--gpu", &self.gpus[0]]);
        self.add_node(&mut command);
        with_stdin(&mut command, r#"{"id": "lifting", "pid": 77}"#)
    }

    fn lifts(&self, claim: &str, cgroup: &str) {
        let output = self.lift(claim, cgroup);
        assert!(output.status.success() && output.stderr.is_empty(), "{}", said(&output));
        assert!(!self.at(&format!("claims/{claim}/no-driver-limit")).exists());
    }

    fn check(&self) -> Output {
        let mut command = Command::new(HOOK);
        command.arg("check").arg("--records").arg(self.at("records"));
        self.add_node(&mut command);
        command.output().expect("the program starts")
    }

    /// What a check prints of each share: the claim, its state and the pod's, and the reason.
    fn checked(&self) -> Vec<[String; 4]> {
        let output = self.check();
        assert!(output.status.success() && output.stderr.is_empty(), "{}", said(&output));
        let text = String::from_utf8(output.stdout).expect("text");
        let lines = text.lines().map(|line| {
            let line: Value = serde_json::from_str(line).expect("JSON");
            ["claim", "state", "pod", "reason"].map(|field| line[field].as_str().expect(field).to_owned())
        });
        lines.collect()
    }

    fn probe(&self, gpus: &[&str]) -> Output {
        let mut command = Command::new(HOOK);
        command.arg("probe").args(gpus.iter().flat_map(|gpu| ["--gpu", gpu]));
        self.add_node(&mut command);
        command.output().expect("the program starts")
    }

    /// What a probe says of each of these GPUs.
    fn probed(&self, gpus: &[&str]) -> Vec<DriverLimit> {
        let output = self.probe(gpus);
        assert!(output.status.success() && output.stderr.is_empty(), "{}", said(&output));
        let text = String::from_utf8(output.stdout).expect("text");
        let answers = text.lines().map(|line| serde_json::from_str(line).expect("JSON"));
        let (named, answers): (Vec<String>, _) =
            answers.map(|Probed { gpu, driver_limit }| (gpu, driver_limit)).unzip();
        assert_eq!(named, gpus);
        answers
    }

    /// Why the driver limits no cgroups on the first GPU.
    fn refuses(&self) -> String {
        match self.probed(&[&self.gpus[0]]).remove(0) {
            DriverLimit::None(why) => why,
            other => panic!("{other:?}"),
        }
    }

    fn add_node(&self, command: &mut Command) {
        for (option, path) in [("--cgroups", "cgroups"), ("--proc", "proc"), ("--soft-gpu", "state")] {
            command.arg(option).arg(self.at(path));
        }
        command.arg("--nvml").arg(libraries().join("libnvidia-ml.so.1"));
        command.args(["--hurry", &self.hurry.to_string()]);
    }

    /// Makes a container with this cgroup, as a runtime does, and runs the hook for it.
    fn start(&self, claim: &str, container: &str, cgroup: &str, more: &[&str]) -> Output {
        self.cgroup(cgroup);
        self.put("proc/77/cgroup", &format!("0::/{cgroup}\n"));
        let state = format!(r#"{{"ociVersion": "1.1.0", "id": "{container}", "status": "creating", "pid": 77}}"#);
        with_stdin(self.command(claim).args(more), &state)
    }

    /// Starts the container, again if the machine is too busy, as kubelet does.
    fn starts(&self, claim: &str, container: &str, cgroup: &str) {
        let start = || self.start(claim, container, cgroup, &["--required"]);
        let is_busy = |output: &Output| BUSY.iter().any(|words| said(output).contains(words));
        let output = (0..5).map(|_| start()).find(|output| !is_busy(output));
        let output = output.expect("it was busy each time");
        assert!(output.status.success(), "{}", said(&output));
    }

    /// The line of a hook that must fail. Where the claim has a directory, the plugin finds it there too.
    fn refusal(&self, claim: &str, cgroup: &str) -> String {
        let output = self.start(claim, "c1", cgroup, &["--required"]);
        let line = said(&output);
        assert!(!output.status.success() && line.matches('\n').count() == 1, "{line}");
        let folder = self.at(&format!("claims/{claim}"));
        if folder.is_dir() {
            let report = fs::read_to_string(folder.join("not-started.vgpu-driver-limit")).expect("a report");
            assert_eq!(report, line);
        }
        line
    }

    /// The hard limit in a cgroup's file, on the first GPU.
    fn limit(&self, cgroup: &str) -> u64 {
        self.limit_if_any(cgroup).expect("a limit")
    }

    fn limit_if_any(&self, cgroup: &str) -> Option<u64> {
        let text = fs::read_to_string(self.at(&format!("cgroups/{cgroup}/dmem.max"))).ok()?;
        text.lines()
            .find_map(|line| line.strip_prefix(&self.region)?.parse().ok())
    }

    /// Of the driver, NVML says what this line of `control` means, or nothing special.
    fn control(&self, line: Option<&str>) {
        match line {
            Some(line) => self.put("state/control", line),
            None => fs::remove_file(self.at("state/control")).expect("removed"),
        }
    }
}

fn with_stdin(command: &mut Command, text: &str) -> Output {
    let command = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("the hook starts");
    // It may have ended already, with an error in its arguments.
    let _ = child.stdin.take().expect("its stdin").write_all(text.as_bytes());
    child.wait_with_output().expect("the hook ends")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn pod_cgroup() -> String {
    format!("kubepods/burstable/pod{POD}")
}

fn container_cgroup(name: &str) -> String {
    format!("{}/{name}", pod_cgroup())
}

/// A program on the driver itself, without our library: what goes around the first wall.
struct Client {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Client {
    fn start(node: &Node, cgroup: &str) -> Self {
        let mut client = Self::spawn(node, cgroup);
        assert_eq!(client.say("init:0"), DONE);
        client
    }

    /// Does not use the GPU yet.
    fn spawn(node: &Node, cgroup: &str) -> Self {
        let mut child = Command::new(vgpu_built_from::program("gpu-client"))
            .arg("serve")
            .env("LD_LIBRARY_PATH", libraries())
            .env("SOFT_GPU_STATE", node.at("state"))
            .env("SOFT_GPU_CGROUP", node.at("cgroups").join(cgroup))
            .env_remove("SOFT_GPU_PROFILE")
            .env_remove("CUDA_VISIBLE_DEVICES")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the client starts");
        let (to, from) = (child.stdin.take().expect("stdin"), child.stdout.take().expect("stdout"));
        Self {
            child,
            to,
            from: BufReader::new(from),
        }
    }

    /// The result of a step.
    fn say(&mut self, step: &str) -> String {
        writeln!(self.to, "{step}").expect("the client lives");
        let mut line = String::new();
        self.from.read_line(&mut line).expect("the client answers");
        let (_, answer) = line.trim_end().split_once(' ').expect("a result");
        answer.to_owned()
    }

    /// Uses the GPU, as a process that /proc shows in this cgroup.
    fn is_in(&mut self, node: &Node, cgroup: &str) {
        node.put(&format!("proc/{}/cgroup", self.child.id()), &format!("0::/{cgroup}\n"));
        assert_eq!(self.allocate(GIB), DONE);
    }

    fn allocate(&mut self, bytes: u64) -> String {
        self.say(&format!("alloc:{bytes}"))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const DONE: &str = "0";
const OUT_OF_MEMORY: &str = "2";

#[test]
fn the_driver_holds_the_claims_limit_for_a_program_without_the_library() {
    if !is_root("the_driver_holds_the_claims_limit_for_a_program_without_the_library") {
        return;
    }
    for way in ["dmem", "misc"] {
        let node = Node::new(way);
        node.claim("claim-a", &[("s", 0, 10 * GIB)]);
        node.starts("claim-a", "c1", &container_cgroup("c1"));
        let mut program = Client::start(&node, &container_cgroup("c1"));
        assert_eq!(program.say("info"), format!("0 {0} {0}", 10 * GIB + TOLERANCE), "{way}");
        assert_eq!(program.allocate(10 * GIB + TOLERANCE + 1), OUT_OF_MEMORY, "{way}");
        assert_eq!(program.allocate(10 * GIB + TOLERANCE), DONE, "{way}");
        assert_eq!(program.allocate(1), OUT_OF_MEMORY, "{way}");
        let mut beside = Client::start(&node, &container_cgroup("c1"));
        assert_eq!(
            beside.allocate(1),
            OUT_OF_MEMORY,
            "{way}: another process of the container"
        );
        let mut stranger = Client::start(&node, "");
        assert_eq!(stranger.allocate(60 * GIB), DONE, "{way}");
    }
}

#[test]
fn a_container_with_two_claims_has_their_sum_and_the_pod_what_was_started_in_it() {
    if !is_root("a_container_with_two_claims_has_their_sum_and_the_pod_what_was_started_in_it") {
        return;
    }
    let node = Node::new("dmem");
    node.claim("claim-a", &[("s", 0, 10 * GIB)]);
    node.claim("claim-b", &[("s", 0, 5 * GIB), ("t", 0, GIB)]);
    let (one, two) = (container_cgroup("c1"), container_cgroup("c2"));
    node.starts("claim-a", "c1", &one);
    assert_eq!(
        (node.limit(&one), node.limit(&pod_cgroup())),
        (10 * GIB + TOLERANCE, 10 * GIB + TOLERANCE)
    );
    node.starts("claim-a", "c2", &two);
    assert_eq!(node.limit(&pod_cgroup()), 10 * GIB + TOLERANCE, "the claim's size once");
    node.starts("claim-b", "c2", &two);
    assert_eq!(
        (node.limit(&one), node.limit(&two)),
        (10 * GIB + TOLERANCE, 16 * GIB + TOLERANCE)
    );
    assert_eq!(node.limit(&pod_cgroup()), 16 * GIB + 3 * TOLERANCE);
    // Both containers have the first claim: their own limits allow 26 GiB, the pod's does not.
    let (mut in_one, mut in_two) = (Client::start(&node, &one), Client::start(&node, &two));
    assert_eq!(in_one.allocate(10 * GIB), DONE);
    assert_eq!(in_two.allocate(7 * GIB), OUT_OF_MEMORY);
    assert_eq!(in_two.allocate(6 * GIB), DONE);
}

#[test]
fn a_container_that_starts_again_is_limited_again() {
    if !is_root("a_container_that_starts_again_is_limited_again") {
        return;
    }
    let node = Node::new("dmem");
    node.claim("claim-a", &[("s", 0, 10 * GIB)]);
    for container in ["c1", "c2", "c1"] {
        let cgroup = container_cgroup(container);
        let _ = fs::remove_dir_all(node.at(&format!("cgroups/{cgroup}")));
        node.starts("claim-a", container, &cgroup);
        assert_eq!(node.limit(&cgroup), 10 * GIB + TOLERANCE);
    }
    assert_eq!(node.limit(&pod_cgroup()), 10 * GIB + TOLERANCE, "the same share");
    // The pod ends; the next one's hook leaves nothing of it.
    fs::remove_dir_all(node.at(&format!("cgroups/{}", pod_cgroup()))).expect("removed");
    node.starts("claim-a", "c3", "machine.slice/c3");
    let mut records: Vec<_> = fs::read_dir(node.at("records"))
        .expect("listed")
        .map(|file| file.expect("a file").file_name())
        .collect();
    records.sort();
    assert_eq!(records, ["c3.container", "c3.container.lock"]);
}

#[test]
fn every_gpu_of_the_claim_is_limited_and_a_whole_one_to_its_size() {
    if !is_root("every_gpu_of_the_claim_is_limited_and_a_whole_one_to_its_size") {
        return;
    }
    let node = Node::new("dmem");
    node.claim("claim-a", &[("s", 0, GIB), ("t", 1, DEVICE)]);
    let cgroup = container_cgroup("c1");
    node.starts("claim-a", "c1", &cgroup);
    let text = fs::read_to_string(node.at(&format!("cgroups/{cgroup}/dmem.max"))).expect("limits");
    let mut bytes: Vec<u64> = text
        .lines()
        .filter_map(|line| line.rsplit(' ').next()?.parse().ok())
        .collect();
    bytes.sort_unstable();
    assert_eq!(bytes, [GIB + TOLERANCE, DEVICE], "{text}");
    let soft = node.at(&format!("cgroups/{cgroup}/dmem.min"));
    assert!(!soft.exists(), "no soft limit");
}

#[test]
fn hooks_of_one_pod_at_once_add_up() {
    if !is_root("hooks_of_one_pod_at_once_add_up") {
        return;
    }
    let node = Node::new("dmem");
    let claims: Vec<String> = (0..8).map(|number| format!("claim-{number}")).collect();
    let cgroup = container_cgroup("c1");
    node.cgroup(&cgroup);
    node.put("proc/77/cgroup", &format!("0::/{cgroup}\n"));
    let children: Vec<Child> = claims
        .iter()
        .map(|claim| {
            node.claim(claim, &[("s", 0, GIB)]);
            let mut command = node.command(claim);
            let command = command.arg("--required").stdin(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn().expect("the hook starts");
            let mut stdin = child.stdin.take().expect("its stdin");
            stdin.write_all(br#"{"id": "c1", "pid": 77}"#).expect("written");
            child
        })
        .collect();
    for child in children {
        let output = child.wait_with_output().expect("the hook ends");
        assert!(output.status.success(), "{}", said(&output));
    }
    assert_eq!(node.limit(&cgroup), 8 * GIB + TOLERANCE);
    assert_eq!(node.limit(&pod_cgroup()), 8 * (GIB + TOLERANCE));
}

/// The hook is killed while the driver hangs: after the record was written, before the limit was set.
#[test]
fn a_killed_hook_keeps_nobody_waiting() {
    if !is_root("a_killed_hook_keeps_nobody_waiting") {
        return;
    }
    let node = Node::new("dmem");
    node.claim("claim-a", &[("s", 0, 10 * GIB)]);
    node.claim("claim-b", &[("s", 0, 5 * GIB)]);
    node.put("state/control", "hang");
    let (one, two) = (container_cgroup("c1"), container_cgroup("c2"));
    node.cgroup(&one);
    node.put("proc/77/cgroup", &format!("0::/{one}\n"));
    let mut command = node.command("claim-a");
    let command = command.arg("--required").stdin(Stdio::piped()).stderr(Stdio::null());
    let mut killed = command.spawn().expect("the hook starts");
    let mut stdin = killed.stdin.take().expect("its stdin");
    stdin.write_all(br#"{"id": "c1", "pid": 77}"#).expect("written");
    drop(stdin);
    let record = node.at(&format!("records/{POD}.pod"));
    let end = Instant::now() + Duration::from_secs(60);
    while !record.exists() {
        assert!(Instant::now() < end, "no record");
        std::thread::sleep(Duration::from_millis(5));
    }
    killed.kill().expect("killed");
    killed.wait().expect("ended");
    fs::remove_file(node.at("state/control")).expect("it does not hang any more");
    // The container that did not start counts in the pod's limit. It is not in the other container's.
    node.starts("claim-b", "c2", &two);
    assert_eq!(node.limit(&two), 5 * GIB + TOLERANCE);
    assert_eq!(node.limit(&pod_cgroup()), 15 * GIB + 2 * TOLERANCE);
    node.starts("claim-a", "c1", &one);
    assert_eq!(node.limit(&one), 10 * GIB + TOLERANCE);
    assert_eq!(node.limit(&pod_cgroup()), 15 * GIB + 2 * TOLERANCE);
}

#[test]
fn a_driver_that_refuses_ends_the_container_with_its_answer() {
    if !is_root("a_driver_that_refuses_ends_the_container_with_its_answer") {
        return;
    }
    for (fault, expected) in [
        (
            "fail.nvmlDeviceSetMemoryLimits_v1 = 4",
            "NVML_ERROR_NO_PERMISSION; the container runtime's hooks",
        ),
        ("fail.nvmlDeviceSetMemoryLimits_v1 = 17 after 1", "for cgroup "),
        (
            "fail.nvmlDeviceGetMemoryLimits_v1 = 3",
            "cannot be read back: NVML_ERROR_NOT_SUPPORTED",
        ),
    ] {
        let node = Node::new(&format!("dmem\n{fault}"));
        node.claim("claim-a", &[("s", 0, 10 * GIB)]);
        let line = node.refusal("claim-a", &container_cgroup("c1"));
        assert!(line.contains(expected), "{fault}: {line}");
    }
    let node = Node::new("dmem");
    node.claim("claim-a", &[("s", 0, 10 * GIB)]);
    node.put("state/gpus", "not the state of a GPU");
    let output = node.start("claim-a", "c1", &container_cgroup("c1"), &["--required"]);
    let line = said(&output);
    let expected = "libnvidia-ml.so.1: nvmlInit: NVML_ERROR_DRIVER_NOT_LOADED; check the driver";
    assert_eq!(output.status.code(), Some(REFUSED.into()));
    assert!(line.contains(expected), "{line}");
}

/// An administrator switches MIG on after the probe: the driver limits no cgroup of such a GPU.
#[test]
fn a_gpu_in_mig_mode_is_refused_and_not_tried() {
    for way in ["dmem", "misc"] {
        let node = Node::new(way);
        node.claim("claim-a", &[("s", 0, 10 * GIB)]);
        node.control(Some("mig 0"));
        let line = node.refusal("claim-a", &container_cgroup("c1"));
        let expected = format!(
            "container c1: GPU {}: it is in MIG mode, where the driver limits no cgroup; use a GPU without MIG",
            node.gpus[0]
        );
        assert!(line.contains(&expected), "{line}");
        assert!(node.refuses().contains("it is in MIG mode"));
        let output = node.start("claim-a", "c2", &container_cgroup("c2"), &[]);
        assert!(output.status.success() && output.stderr.is_empty(), "{}", said(&output));
        let report = fs::read_to_string(node.at("claims/claim-a/no-driver-limit")).expect("a report");
        assert!(report.contains("it is in MIG mode"), "{report}");
        assert_eq!(node.limit_if_any(&container_cgroup("c2")), None);
    }
}

/// A process of the container may use the GPU before its hook runs: that of an earlier hook, or one that joined the cgroup.
#[test]
fn a_limit_below_what_is_in_use_holds_with_dmem_and_is_refused_by_the_drivers_accounting() {
    if !is_root("a_limit_below_what_is_in_use_holds_with_dmem_and_is_refused_by_the_drivers_accounting") {
        return;
    }
    let cgroup = container_cgroup("c1");
    let node = Node::new("dmem");
    node.claim("claim-a", &[("s", 0, 10 * GIB)]);
    node.cgroup(&cgroup);
    let mut program = Client::start(&node, &cgroup);
    assert_eq!(program.allocate(12 * GIB), DONE);
    node.starts("claim-a", "c1", &cgroup);
    assert_eq!(
        program.allocate(1),
        OUT_OF_MEMORY,
        "it keeps what it has, and gets no more"
    );
    // The driver's own accounting counts from the first limit on.
    let node = Node::new("misc");
    node.claim("claim-a", &[("s", 0, 20 * GIB)]);
    node.claim("claim-b", &[("s", 0, 10 * GIB)]);
    node.starts("claim-a", "c1", &cgroup);
    let mut program = Client::start(&node, &cgroup);
    assert_eq!(program.allocate(18 * GIB), DONE);
    fs::remove_dir_all(node.at("records")).expect("the shares so far are forgotten");
    let line = node.refusal("claim-b", &cgroup);
    let expected = "NVML_ERROR_INVALID_ARGUMENT; more than that is in use already";
    assert!(
        line.contains(expected) && line.contains(&(10 * GIB + TOLERANCE).to_string()),
        "{line}"
    );
    assert_eq!(program.allocate(4 * GIB), OUT_OF_MEMORY, "the earlier limit holds");
}

/// The smallest share, on a GPU whose contexts take more than it.
#[test]
fn a_share_below_what_a_context_takes_starts_and_its_program_gets_out_of_memory() {
    if !is_root("a_share_below_what_a_context_takes_starts_and_its_program_gets_out_of_memory") {
        return;
    }
    for way in ["dmem", "misc"] {
        let node = Node::new(&format!("{way}\ncontext_cost = 300MiB"));
        node.claim("claim-a", &[("s", 0, 64 << 20)]);
        let cgroup = container_cgroup("c1");
        node.starts("claim-a", "c1", &cgroup);
        assert_eq!(Client::spawn(&node, &cgroup).say("init:0"), OUT_OF_MEMORY, "{way}");
        assert_eq!(Client::spawn(&node, "").say("init:0"), DONE, "{way}: elsewhere");
    }
}

/// NVIDIA's toolkit has a hook at the same stage, `apply-cuda-memory-limits`. It takes the limit from the container's
/// environment, which the pod's author writes, and with a limit alone it makes the soft limit the same. The runtime runs it before
/// ours or after it.
#[test]
fn a_limit_of_nvidias_toolkit_is_replaced_by_the_hook_or_by_the_next_check() {
    if !is_root("a_limit_of_nvidias_toolkit_is_replaced_by_the_hook_or_by_the_next_check") {
        return;
    }
    let cgroup = container_cgroup("c1");
    for is_first in [true, false] {
        let node = Node::new("dmem");
        node.claim("claim-a", &[("s", 0, 10 * GIB)]);
        let toolkit = || {
            for name in ["dmem.max", "dmem.min"] {
                node.put(
                    &format!("cgroups/{cgroup}/{name}"),
                    &format!("{}{}\n", node.region, 40 * GIB),
                );
            }
        };
        node.cgroup(&cgroup);
        if is_first {
            toolkit();
        }
        node.starts("claim-a", "c1", &cgroup);
        if !is_first {
            toolkit();
            assert_eq!(
                Client::start(&node, &cgroup).allocate(20 * GIB),
                OUT_OF_MEMORY,
                "the pod's limit is ours"
            );
            let [[_, state, _, reason]] = &node.checked()[..] else {
                panic!("a line")
            };
            assert_eq!(state, "set-again");
            let (hard, soft) = (
                format!("its hard limit was {}", 40 * GIB),
                format!("soft limit {}", 40 * GIB),
            );
            assert!(reason.contains(&hard) && reason.contains(&soft), "{reason}");
        }
        assert_eq!(node.limit(&cgroup), 10 * GIB + TOLERANCE, "is_first: {is_first}");
        let soft = fs::read_to_string(node.at(&format!("cgroups/{cgroup}/dmem.min"))).unwrap_or_default();
        assert!(!soft.contains(&(40 * GIB).to_string()), "is_first: {is_first}: {soft}");
        assert_eq!(node.checked()[0][1], "held");
        assert_eq!(
            Client::start(&node, &cgroup).allocate(11 * GIB),
            OUT_OF_MEMORY,
            "is_first: {is_first}"
        );
    }
}

/// A node without a process to spare: the user that the program runs as may have one process, which is the program, or two, of which
/// the second is the child that is to be asked by a thread.
#[test]
fn a_node_on_which_no_process_or_thread_can_be_made_has_no_answer() {
    if !is_root("a_node_on_which_no_process_or_thread_can_be_made_has_no_answer") {
        return;
    }
    const NOBODY: u32 = 2_147_000_061; // A user without processes.
    let node = Node::new("dmem");
    node.claim("claim-a", &[("s", 0, GIB)]);
    let cgroup = container_cgroup("c1");
    node.cgroup(&cgroup);
    node.put("proc/77/cgroup", &format!("0::/{cgroup}\n"));
    let open = fs::Permissions::from_mode(0o755);
    let program = node.at("program");
    // By another process: a file that this one has open for writing, or a child that it forks meanwhile, cannot be run.
    let copied = Command::new("cp").arg(HOOK).arg(&program).status().expect("cp starts");
    assert!(copied.success());
    for path in [node.dir.path(), &program] {
        fs::set_permissions(path, open.clone()).expect("set");
    }
    let before = || fs::read_to_string(node.at("cgroups/cgroup.subtree_control")).expect("a file");
    let enabled = before();
    for processes in ["1", "2"] {
        let limited = |arguments: &[&str]| {
            let mut command = Command::new("prlimit");
            command
                .arg(format!("--nproc={processes}"))
                .arg(&program)
                .args(arguments);
            command.uid(NOBODY).gid(NOBODY);
            node.add_node(&mut command);
            command
        };
        let records = node.at("records").display().to_string();
        let claim = node.at("claims/claim-a").display().to_string();
        let probe = limited(&["probe", "--gpu", "GPU-1"]).output().expect("prlimit starts");
        let mut set = limited(&["set", "--required", "--records", &records, "--claim", &claim]);
        for output in [probe, with_stdin(&mut set, r#"{"id": "c1", "pid": 77}"#)] {
            let line = said(&output);
            assert_eq!(output.status.code(), Some(NO_ANSWER.into()), "{processes}: {line}");
            let expected = "/proc/self/exe: cannot be started for NVML: Resource temporarily unavailable";
            assert!(
                line.contains(expected) && line.contains("limit of processes"),
                "{processes}: {line}"
            );
        }
    }
    assert!(!node.at("records").exists());
    assert_eq!(before(), enabled, "nothing was changed");
}

#[test]
fn a_driver_without_limits_fails_the_container_only_if_the_limit_is_required() {
    let node = Node::new("none");
    node.claim("claim-a", &[("s", 0, GIB)]);
    let cgroup = container_cgroup("c1");
    let line = node.refusal("claim-a", &cgroup);
    for part in [
        "vgpu-driver-limit: container c1: GPU GPU-",
        &pod_cgroup(),
        "NVML_ERROR_NOT_SUPPORTED",
        "r615",
        "do not require",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
    let report = node.at("claims/claim-a/no-driver-limit");
    assert!(!report.exists(), "the container did not start");
    // The newest container's reason is there. A runtime may have the longest id.
    let long = "c".repeat(1024);
    for (number, container) in ["c1", "c2", "c2", &long].into_iter().enumerate() {
        let output = node.start("claim-a", container, &container_cgroup(&format!("n{number}")), &[]);
        assert!(output.status.success() && output.stderr.is_empty(), "{}", said(&output));
        let report = fs::read_to_string(&report).expect("a report");
        let begin = format!("container {container}: GPU ");
        assert!(
            report.starts_with(&begin) && report.matches('\n').count() == 1,
            "{report}"
        );
    }
}

/// Nothing is waited for without end: neither the driver, nor another hook that waits for it.
#[test]
fn a_driver_that_hangs_is_given_up_on() {
    if !is_root("a_driver_that_hangs_is_given_up_on") {
        return;
    }
    let mut node = Node::new("dmem");
    node.claim("claim-a", &[("s", 0, 10 * GIB)]);
    node.claim("claim-b", &[("s", 0, 5 * GIB)]);
    let [one, two, three] = ["c1", "c2", "c3"].map(container_cgroup);
    node.starts("claim-a", "c1", &one);
    node.hurry = 4;
    node.control(Some("hang"));
    let line = node.refusal("claim-b", &two);
    assert!(line.contains("NVML does not answer; check it"), "{line}");
    let output = node.start("claim-b", "c2", &two, &[]);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", said(&output));
    let report = fs::read_to_string(node.at("claims/claim-b/no-driver-limit")).expect("a report");
    assert!(
        report.contains("container c2: ") && report.contains("NVML does not answer"),
        "{report}"
    );
    let [line] = &node.checked()[..1] else { panic!("a line") };
    assert_eq!(line[..3], ["claim-a", "failed", "failed"], "{line:?}");
    // Each GPU is asked for itself, and none has refused.
    for answer in node.probed(&[&node.gpus[0], &node.gpus[1]]) {
        assert!(
            matches!(&answer, DriverLimit::Unknown(why) if why.contains("NVML does not answer")),
            "{answer:?}"
        );
    }
    node.hurry = 1;
    node.control(None);
    // The second container is in the pod without a limit of its own, so the pod has none from now on.
    node.starts("claim-a", "c3", &three);
    assert_eq!(node.limit_if_any(&pod_cgroup()), None);
    assert_eq!(node.limit(&three), 10 * GIB + TOLERANCE);
}

/// A child that hangs in the kernel outlives its command. There is no second one beside it.
#[test]
fn a_check_does_not_ask_a_driver_that_has_not_answered() {
    if !is_root("a_check_does_not_ask_a_driver_that_has_not_answered") {
        return;
    }
    let mut node = Node::new("dmem");
    node.claim("claim-a", &[("s", 0, GIB)]);
    node.starts("claim-a", "c1", &container_cgroup("c1"));
    let mut child = Command::new(HOOK);
    child
        .args(["serve", "--nvml"])
        .arg(libraries().join("libnvidia-ml.so.1"));
    child.arg("--soft-gpu").arg(node.at("state"));
    child.arg("--alone").arg(node.at("cgroups"));
    let mut child = child
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut line = String::new();
    let mut from = BufReader::new(child.stdout.take().expect("its stdout"));
    from.read_line(&mut line).expect("it answers");
    assert_eq!(line, "ready\n");
    node.hurry = 4;
    for output in [node.check(), node.probe(&[&node.gpus[0]])] {
        let expected = "the driver has not answered an earlier question";
        assert_eq!(output.status.code(), Some(NO_ANSWER.into()), "{output:?}");
        assert!(said(&output).contains(expected), "{output:?}");
    }
    node.hurry = 1;
    // A container that starts has its own limit to set.
    node.starts("claim-a", "c2", &container_cgroup("c2"));
    drop(child.stdin.take());
    child.wait().expect("it ends");
    assert_eq!(node.checked().len(), 2);
}

/// The child that calls NVML crashes.
#[test]
fn a_driver_that_ends_its_process_is_named() {
    if !is_root("a_driver_that_ends_its_process_is_named") {
        return;
    }
    let node = Node::new("dmem");
    node.claim("claim-a", &[("s", 0, GIB)]);
    node.control(Some("hang"));
    let cgroup = container_cgroup("c1");
    node.cgroup(&cgroup);
    node.put("proc/77/cgroup", &format!("0::/{cgroup}\n"));
    let mut command = node.command("claim-a");
    let command = command.arg("--required").stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut hook = command.spawn().expect("the hook starts");
    let mut stdin = hook.stdin.take().expect("its stdin");
    stdin.write_all(br#"{"id": "c1", "pid": 77}"#).expect("written");
    drop(stdin);
    let children = format!("/proc/{0}/task/{0}/children", hook.id());
    // Once there is a record, NVML was loaded.
    let record = node.at(&format!("records/{POD}.pod"));
    while !record.exists() {
        assert!(hook.try_wait().expect("asked").is_none(), "it has ended");
        std::thread::sleep(Duration::from_millis(5));
    }
    let children = fs::read_to_string(children).expect("its child");
    let child = children.trim().parse().ok().and_then(rustix::process::Pid::from_raw);
    rustix::process::kill_process(child.expect("a PID"), rustix::process::Signal::KILL).expect("killed");
    let line = said(&hook.wait_with_output().expect("it ends"));
    assert!(line.contains("the process that called NVML has ended"), "{line}");
}

#[test]
fn a_lock_that_somebody_keeps_is_named() {
    let node = Node::impatient();
    node.claim("claim-a", &[("s", 0, GIB)]);
    fs::create_dir(node.at("records")).expect("a folder");
    let lock = fs::File::create(node.at(LOCK)).expect("made");
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("locked");
    let line = node.refusal("claim-a", &container_cgroup("c1"));
    assert!(
        line.contains("another vgpu-driver-limit has this record's lock"),
        "{line}"
    );
}

#[test]
fn a_record_that_somebody_keeps_loses_no_line_of_the_others() {
    if !is_root("a_record_that_somebody_keeps_loses_no_line_of_the_others") {
        return;
    }
    let node = Node::new("dmem");
    node.claim("claim-a", &[("s", 0, GIB)]);
    node.claim("claim-b", &[("s", 0, GIB)]);
    node.starts("claim-a", "c1", &container_cgroup("c1"));
    let lock = fs::File::create(node.at(LOCK)).expect("made");
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("locked");
    node.starts("claim-b", "z1", "machine.slice/z1");
    let [kept, other] = &node.checked()[..] else {
        panic!("two lines")
    };
    assert_eq!(kept[..3], ["claim-a", "failed", "failed"]);
    assert!(kept[3].contains("has this record's lock"), "{kept:?}");
    assert_eq!(other[..3], ["claim-b", "held", "none"]);
}

#[test]
fn a_container_without_its_limit_takes_its_pods_away() {
    if !is_root("a_container_without_its_limit_takes_its_pods_away") {
        return;
    }
    let node = Node::new("dmem");
    node.claim("claim-a", &[("s", 0, 10 * GIB)]);
    node.claim("claim-b", &[("s", 0, 5 * GIB)]);
    let (one, two) = (container_cgroup("c1"), container_cgroup("c2"));
    node.starts("claim-a", "c1", &one);
    assert_eq!(node.limit(&pod_cgroup()), 10 * GIB + TOLERANCE);
    // The file of the second container's limit cannot be made, so that one fails alone.
    fs::create_dir_all(node.at(&format!("cgroups/{two}/dmem.max"))).expect("in the way");
    let output = node.start("claim-b", "c2", &two, &[]);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", said(&output));
    assert_eq!(node.limit_if_any(&pod_cgroup()), None, "with it the second had no room");
    assert_eq!(node.limit(&one), 10 * GIB + TOLERANCE);
    let record = fs::read_to_string(node.at(&format!("records/{POD}.pod"))).expect("a record");
    let lifted = format!("lifted {} container c2 started without a limit: ", node.gpus[0]);
    assert!(record.contains(&lifted), "{record}");
    // A required limit that fails ends its container, and the pod's limit has the share already.
    let node = Node::new("dmem");
    node.claim("claim-a", &[("s", 0, 10 * GIB)]);
    node.claim("claim-b", &[("s", 0, 5 * GIB)]);
    node.starts("claim-a", "c1", &one);
    fs::create_dir_all(node.at(&format!("cgroups/{two}/dmem.max"))).expect("in the way");
    node.refusal("claim-b", &two);
    assert_eq!(node.limit(&pod_cgroup()), 15 * GIB + 2 * TOLERANCE);
}

/// Each claim of a container has a hook of its own. Without the limit of the second one, that of the first binds both.
#[test]
fn a_claim_whose_hook_fails_takes_the_limit_of_its_containers_other_claims_away() {
    if !is_root("a_claim_whose_hook_fails_takes_the_limit_of_its_containers_other_claims_away") {
        return;
    }
    let one = container_cgroup("c1");
    for is_locked in [false, true] {
        let mut node = Node::new("dmem");
        node.claim("claim-a", &[("s", 0, 10 * GIB)]);
        node.claim("claim-b", &[("s", 0, 5 * GIB)]);
        node.claim("claim-c", &[("s", 0, 5 * GIB)]);
        let output = node.start("claim-a", "c1", &one, &[]);
        assert!(output.status.success(), "{}", said(&output));
        let lock = fs::File::open(node.at(LOCK)).expect("opened");
        if is_locked {
            rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("locked");
            node.hurry = 4;
        } else {
            node.put("claims/claim-b/s/limits", "damaged");
        }
        let output = node.start("claim-b", "c1", &one, &[]);
        assert!(output.status.success() && output.stderr.is_empty(), "{}", said(&output));
        assert_eq!(node.limit_if_any(&one), None);
        assert_eq!(node.limit_if_any(&pod_cgroup()), None);
        if is_locked {
            continue;
        }
        let [[_, state, pod, reason]] = &node.checked()[..] else {
            panic!("a line")
        };
        assert_eq!((state.as_str(), pod.as_str()), ("failed", "lifted"));
        assert!(reason.starts_with("container c1 started without a limit: "), "{reason}");
        assert_eq!(node.limit_if_any(&one), None, "not set again");
        let line = node.refusal("claim-c", &one);
        assert!(line.contains("it has no limit for its other claims either"), "{line}");
        node.start("claim-c", "c1", &one, &[]);
        assert_eq!(node.limit_if_any(&one), None, "nor by another claim");
        // The container starts again, in another cgroup.
        fs::remove_dir_all(node.at(&format!("cgroups/{one}"))).expect("removed");
        let again = container_cgroup("c1-again");
        node.starts("claim-a", "c1-again", &again);
        assert_eq!(node.limit(&again), 10 * GIB + TOLERANCE);
    }
}

#[test]
fn a_claim_that_requires_its_limit_keeps_it_when_another_ones_hook_fails() {
    if !is_root("a_claim_that_requires_its_limit_keeps_it_when_another_ones_hook_fails") {
        return;
    }
    let one = container_cgroup("c1");
    for is_locked in [false, true] {
        let mut node = Node::new("dmem");
        node.claim("claim-a", &[("s", 0, 10 * GIB)]);
        node.claim("claim-b", &[("s", 0, 5 * GIB)]);
        node.starts("claim-a", "c1", &one);
        let lock = fs::File::open(node.at(LOCK)).expect("opened");
        if is_locked {
            rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("locked");
            node.hurry = 4;
        } else {
            node.put("claims/claim-b/s/limits", "damaged");
        }
        let output = node.start("claim-b", "c1", &one, &[]);
        assert!(output.status.success() && output.stderr.is_empty(), "{}", said(&output));
        assert_eq!(node.limit(&one), 10 * GIB + TOLERANCE);
        drop(lock);
        let [[_, state, _, _]] = &node.checked()[..] else {
            panic!("a line")
        };
        // The pod's limit, whose removal could not be noted.
        assert_eq!(state, if is_locked { "set-again" } else { "held" });
    }
}

#[test]
fn a_claim_without_a_limit_lifts_the_pods() {
    if !is_root("a_claim_without_a_limit_lifts_the_pods") {
        return;
    }
    for is_first in [false, true] {
        let node = Node::new("dmem");
        node.claim("claim-a", &[("s", 0, 10 * GIB), ("t", 1, GIB)]);
        fs::create_dir_all(node.at("claims/claim-w")).expect("a claim without files of shares");
        let [one, whole, three] = ["c1", "whole", "c3"].map(container_cgroup);
        if !is_first {
            node.starts("claim-a", "c1", &one);
        }
        node.lifts("claim-w", &whole);
        if is_first {
            node.starts("claim-a", "c1", &one);
        }
        let pod = fs::read_to_string(node.at(&format!("cgroups/{}/dmem.max", pod_cgroup()))).expect("a limit");
        assert_eq!(pod.lines().count(), 1, "the other GPU's: {pod}");
        assert_eq!(Client::start(&node, &whole).allocate(60 * GIB), DONE);
        node.starts("claim-a", "c3", &three);
        assert_eq!(node.limit(&three), 10 * GIB + TOLERANCE);
        let states = node.checked();
        let expected = ["held held", "held held", "held lifted", "held lifted"];
        let found = states.iter().map(|[_, state, pod, _]| format!("{state} {pod}"));
        let mut found: Vec<String> = found.collect();
        found.sort();
        assert_eq!(found, expected, "{states:?}");
    }
    let node = Node::new("dmem");
    node.claim("claim-a", &[("s", 0, GIB)]);
    node.lifts("claim-a", "machine.slice/c3");
    assert_eq!(
        fs::read_dir(node.at("records")).map_or(0, Iterator::count),
        0,
        "it has no pod"
    );
}

#[test]
fn a_lift_that_fails_starts_the_container_and_is_reported() {
    if !is_root("a_lift_that_fails_starts_the_container_and_is_reported") {
        return;
    }
    let node = Node::new("dmem");
    node.claim("claim-a", &[("s", 0, GIB)]);
    node.starts("claim-a", "c1", &container_cgroup("c1"));
    node.control(Some("lost 0"));
    fs::create_dir_all(node.at("claims/claim-w")).expect("a claim");
    let output = node.lift("claim-w", &container_cgroup("whole"));
    assert!(output.status.success() && output.stderr.is_empty(), "{}", said(&output));
    let report = fs::read_to_string(node.at("claims/claim-w/no-driver-limit")).expect("a report");
    assert!(
        report.contains("container lifting: ") && report.contains("GPU_IS_LOST"),
        "{report}"
    );
    node.control(None);
    let [_, state, pod, reason] = &node.checked()[0];
    assert_eq!((state.as_str(), pod.as_str()), ("held", "lifted"), "nobody changed it");
    assert!(reason.contains("without a limit"), "{reason}");
    assert_eq!(node.limit_if_any(&pod_cgroup()), None, "noted all the same");
}

#[test]
fn a_check_prints_each_share_and_sets_again_what_was_changed() {
    if !is_root("a_check_prints_each_share_and_sets_again_what_was_changed") {
        return;
    }
    let node = Node::new("dmem");
    assert_eq!(node.checked(), [[""; 4]; 0], "no record");
    node.claim("claim-a", &[("s", 0, 10 * GIB)]);
    node.claim("claim-b", &[("s", 0, 5 * GIB)]);
    let (one, alone) = (container_cgroup("c1"), "machine.slice/c2");
    node.starts("claim-a", "c1", &one);
    node.starts("claim-b", "c2", alone);
    let mut program = Client::start(&node, &one);
    assert_eq!(program.allocate(3 * GIB), DONE);
    let output = node.check();
    let text = String::from_utf8(output.stdout).expect("text");
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let line = |claim: &str, cgroup: &str, hard: u64, used: u64, pod: &str| {
        json!({"claim": claim, "share": "s", "gpu": node.gpus[0], "cgroup": format!("/{cgroup}"), "hard": hard + TOLERANCE,
               "used": used, "state": "held", "reason": "", "pod": pod})
    };
    let expected = [
        line("claim-a", &one, 10 * GIB, 3 * GIB, "held"),
        line("claim-b", alone, 5 * GIB, 0, "none"),
    ];
    assert_eq!(lines, expected);

    // Somebody has changed the container's limit, removed the pod's, and set a soft one.
    let file = |cgroup: &str, name: &str| format!("cgroups/{cgroup}/{name}");
    let before = fs::read_to_string(node.at(&file(&one, "dmem.max"))).expect("a limit");
    let soft = before.replace(&(10 * GIB + TOLERANCE).to_string(), &GIB.to_string());
    for (name, text, expected) in [
        (
            file(&one, "dmem.max"),
            Some(soft.as_str()),
            format!("its hard limit was {GIB} bytes, and its soft limit 0 bytes"),
        ),
        (
            file(&pod_cgroup(), "dmem.max"),
            None,
            "its hard limit was none".to_owned(),
        ),
        (
            file(&one, "dmem.min"),
            Some(soft.as_str()),
            format!("its soft limit {GIB} bytes"),
        ),
    ] {
        match text {
            Some(text) => node.put(&name, text),
            None => fs::remove_file(node.at(&name)).expect("removed"),
        }
        let [_, state, pod, reason] = &node.checked()[0];
        assert_eq!((state.as_str(), pod.as_str()), ("set-again", "held"), "{name}");
        assert!(reason.contains(&expected), "{name}: {reason}");
        assert_eq!(node.checked()[0][1], "held", "{name}: it is set again");
    }
    // systemd or a runtime disables the controller, which wipes the limits below.
    fs::remove_file(node.at(&file(&one, "dmem.max"))).expect("removed");
    node.put(&file(&pod_cgroup(), "cgroup.subtree_control"), "-dmem");
    let [_, state, _, reason] = &node.checked()[0];
    assert_eq!(state, "set-again", "{reason}");
    assert_eq!(node.limit(&one), 10 * GIB + TOLERANCE);
    node.control(Some("mig 0"));
    let [_, state, pod, reason] = &node.checked()[0];
    assert_eq!((state.as_str(), pod.as_str()), ("failed", "failed"));
    assert!(reason.contains("it is in MIG mode"), "{reason}");
    node.control(None);

    // A container that has ended has no line, and a pod that has ended no record.
    fs::remove_dir_all(node.at(&format!("cgroups/{one}"))).expect("removed");
    assert_eq!(node.checked().len(), 1);
    fs::remove_dir_all(node.at(&format!("cgroups/{}", pod_cgroup()))).expect("removed");
    assert_eq!(node.checked()[0][0], "claim-b");
    assert!(!node.at(&format!("records/{POD}.pod")).exists());
}

#[test]
fn a_check_that_cannot_look_says_why() {
    let node = Node::new("none");
    node.claim("claim-a", &[("s", 0, GIB)]);
    let _ = node.start("claim-a", "c1", &container_cgroup("c1"), &[]);
    node.put("state/gpus", "not the state of a GPU");
    let output = node.check();
    let line = said(&output);
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    assert!(
        line.contains("nvmlInit: NVML_ERROR_DRIVER_NOT_LOADED") && line.matches('\n').count() == 1,
        "{line}"
    );
}

#[test]
fn a_container_without_a_claim_that_uses_the_gpu_lifts_its_pods_limit() {
    if !is_root("a_container_without_a_claim_that_uses_the_gpu_lifts_its_pods_limit") {
        return;
    }
    let node = Node::new("dmem");
    node.claim("claim-a", &[("s", 0, 10 * GIB)]);
    let (one, strange) = (container_cgroup("c1"), container_cgroup("strange"));
    node.starts("claim-a", "c1", &one);
    node.cgroup(&strange);
    node.cgroup(&format!("{one}/nested"));
    let is_in = |client: &mut Client, cgroup: &str| client.is_in(&node, cgroup);
    let elsewhere = format!("{}-b/c1", pod_cgroup());
    node.cgroup(&elsewhere);
    let mut own = Client::start(&node, &format!("{one}/nested"));
    is_in(&mut own, &format!("{one}/nested"));
    let mut other = Client::start(&node, &elsewhere);
    is_in(&mut other, &elsewhere);
    let held = ["claim-a", "held", "held", ""].map(str::to_owned);
    assert_eq!(
        node.checked(),
        [held],
        "a program of the container, and one of a pod with a name that begins like it"
    );
    // NVML lists its PID of another namespace: /proc has no such process.
    let mut unseen = Client::start(&node, &strange);
    assert_eq!(unseen.allocate(GIB), DONE);
    assert_eq!(node.checked()[0][2], "held", "not noticed");
    let mut stranger = Client::start(&node, &strange);
    is_in(&mut stranger, &strange);
    let lines = node.checked();
    assert_eq!(
        (lines[0][1].as_str(), lines[0][2].as_str()),
        ("held", "lifted"),
        "{lines:?}"
    );
    assert!(lines[0][3].contains("uses the GPU without a claim"), "{lines:?}");
    assert_eq!(node.limit_if_any(&pod_cgroup()), None);
    let record = fs::read_to_string(node.at(&format!("records/{POD}.pod"))).expect("a record");
    let pid = stranger.child.id();
    let lifted = format!(
        "lifted {} process {pid} in cgroup /{strange} uses the GPU",
        node.gpus[0]
    );
    assert!(record.contains(&lifted), "{record}");
    drop(stranger);
    assert_eq!(node.checked()[0][2], "lifted", "it stays so");
    assert_eq!(
        node.limit(&one),
        10 * GIB + TOLERANCE,
        "the container's own limit holds"
    );
}

/// The driver may list a process for a moment after its container has ended.
#[test]
fn a_container_that_has_ended_lifts_nothing() {
    if !is_root("a_container_that_has_ended_lifts_nothing") {
        return;
    }
    let node = Node::new("dmem");
    node.claim("claim-a", &[("s", 0, 10 * GIB)]);
    let [one, two] = ["c1", "c2"].map(container_cgroup);
    node.starts("claim-a", "c1", &one);
    node.starts("claim-a", "c2", &two);
    let mut ending = Client::start(&node, &two);
    ending.is_in(&node, &two);
    fs::remove_dir_all(node.at(&format!("cgroups/{two}"))).expect("removed");
    let held = ["claim-a", "held", "held", ""].map(str::to_owned);
    for when in ["the record has it", "the record is without it"] {
        assert_eq!(node.checked(), std::slice::from_ref(&held), "{when}");
    }
}

#[test]
fn a_container_without_a_hook_is_not_bound_by_one_that_starts_later() {
    if !is_root("a_container_without_a_hook_is_not_bound_by_one_that_starts_later") {
        return;
    }
    let node = Node::new("dmem");
    node.claim("claim-a", &[("s", 0, 10 * GIB), ("t", 1, GIB)]);
    let [one, strange] = ["c1", "strange"].map(container_cgroup);
    node.cgroup(&strange);
    let mut stranger = Client::start(&node, &strange);
    stranger.is_in(&node, &strange);
    node.starts("claim-a", "c1", &one);
    assert_eq!(stranger.allocate(20 * GIB), DONE);
    assert_eq!(node.limit(&one), 10 * GIB + TOLERANCE);
    assert_eq!(node.limit_if_any(&pod_cgroup()), None);
    let record = fs::read_to_string(node.at(&format!("records/{POD}.pod"))).expect("a record");
    assert_eq!(record.matches("lifted ").count(), 1, "of this GPU alone: {record}");
}

#[test]
fn the_longest_id_of_a_container_is_no_file_name() {
    if !is_root("the_longest_id_of_a_container_is_no_file_name") {
        return;
    }
    let node = Node::new("dmem");
    node.claim("claim-a", &[("s", 0, GIB)]);
    for last in ["a", "b"] {
        let id = "c".repeat(1023) + last;
        node.starts("claim-a", &id, &format!("machine.slice/{last}"));
    }
    assert_eq!(node.checked().len(), 2);
}

#[test]
fn what_is_wrong_on_the_node_is_named_and_changes_nothing() {
    let node = Node::new("dmem");
    node.claim("claim-a", &[("s", 0, GIB)]);
    let cgroup = container_cgroup("c1");
    let enabled = || fs::read_to_string(node.at("cgroups/cgroup.subtree_control")).expect("a file");
    let before = enabled();
    assert!(
        node.refusal("claim-b", &cgroup)
            .contains("claims/claim-b: has no share")
    );
    node.put("claims/claim-c/s/limits", "vgpu-limits 2\n");
    assert!(
        node.refusal("claim-c", &cgroup)
            .contains("library and plugin differ in version")
    );
    for (text, expected) in [
        ("0::/\n", "root cgroup"),
        ("0::/../pod/c1\n", "outside of what is mounted"),
        ("0::/system.slice/containerd.service\n", "the container runtime's own"),
        ("4:memory:/a\n0::/a\n", "hybrid"),
        ("0::/kubepods/gone\n", "it is gone"),
    ] {
        node.put("proc/77/cgroup", text);
        let output = with_stdin(node.command("claim-a").arg("--required"), r#"{"id": "c1", "pid": 77}"#);
        assert!(
            !output.status.success() && said(&output).contains(expected),
            "{text}: {}",
            said(&output)
        );
    }
    let output = with_stdin(node.command("claim-a").arg("--required"), r#"{"id": "c1", "pid": 0}"#);
    assert!(said(&output).contains("standard input: pid is 0"), "{}", said(&output));
    assert_eq!(enabled(), before);
    assert!(!node.at("records").exists());
}

#[test]
fn a_driver_of_before_r615_and_none_are_named_with_their_path() {
    let node = Node::new("dmem");
    node.claim("claim-a", &[("s", 0, GIB)]);
    let cgroup = container_cgroup("c1");
    node.cgroup(&cgroup);
    node.put("proc/77/cgroup", &format!("0::/{cgroup}\n"));
    node.put("not-elf.so", "text");
    // The software GPU's libcuda stands for a library that loads and lacks the functions.
    for (file, expected) in [
        (node.at("gone.so"), "gone.so: cannot be loaded"),
        (node.at("not-elf.so"), "not-elf.so: cannot be loaded"),
        (
            libraries().join("libcuda.so.1"),
            "libcuda.so.1: has no nvmlInit_v2; the driver is older than r615",
        ),
    ] {
        let mut command = Command::new(HOOK);
        command
            .args(["set", "--required", "--claim"])
            .arg(node.at("claims/claim-a"));
        command
            .arg("--records")
            .arg(node.at("records"))
            .arg("--cgroups")
            .arg(node.at("cgroups"));
        command.arg("--proc").arg(node.at("proc")).arg("--nvml").arg(file);
        let output = with_stdin(&mut command, r#"{"id": "c1", "pid": 77}"#);
        assert!(
            !output.status.success() && said(&output).contains(expected),
            "{}",
            said(&output)
        );
    }
}

#[test]
fn a_probe_says_who_keeps_limits_and_leaves_nothing() {
    if !is_root("a_probe_says_who_keeps_limits_and_leaves_nothing") {
        return;
    }
    for (way, controllers, expected) in [
        ("dmem", "cpu memory dmem misc\n", DriverLimit::Dmem),
        ("misc", "cpu memory misc\n", DriverLimit::Misc),
        // A driver that was told not to use the controller.
        ("misc", "cpu memory dmem misc\n", DriverLimit::Misc),
    ] {
        let node = Node::new(way);
        node.put("cgroups/cgroup.controllers", controllers);
        // What a killed probe leaves, and the cgroup of one that runs.
        fs::create_dir(node.at("cgroups/vgpu-probe-4194305")).expect("a folder");
        node.put("proc/4711/comm", "vgpu-driver-limit");
        fs::create_dir(node.at("cgroups/vgpu-probe-4711")).expect("a folder");
        let found = node.probed(&[&node.gpus[1], &node.gpus[0]]);
        assert_eq!(found, [expected.clone(), expected], "{way}");
        let entries = fs::read_dir(node.at("cgroups")).expect("listed");
        let folders = entries
            .map(|entry| entry.expect("an entry"))
            .filter(|entry| entry.path().is_dir());
        let folders: Vec<_> = folders.map(|entry| entry.file_name()).collect();
        assert_eq!(folders, ["vgpu-probe-4711"], "{way}");
    }
}

#[test]
fn a_probe_that_fails_says_why_of_each_gpu_and_leaves_nothing() {
    let why = Node::new("none").refuses();
    assert!(
        why.contains("NVML_ERROR_NOT_SUPPORTED; the driver limits no cgroups here"),
        "{why}"
    );
    if is_root("a_probe_that_fails_says_why_of_each_gpu_and_leaves_nothing") {
        let node = Node::new("dmem\nfail.nvmlDeviceSetMemoryLimits_v1 = 17");
        let reasons = [(); 2].map(|()| node.refuses());
        assert!(
            reasons[0].contains("vgpu-probe: NVML_ERROR_OPERATING_SYSTEM"),
            "{reasons:?}"
        );
        assert_eq!(reasons[0], reasons[1], "the plugin logs a reason when it changes");
        // One GPU's trouble is not that of the others.
        let node = Node::new("dmem");
        node.put("state/control", "lost 0\n");
        let [lost, unknown, well] = &node.probed(&[&node.gpus[0], "GPU-none", &node.gpus[1]])[..] else {
            panic!("three answers")
        };
        assert!(
            matches!(lost, DriverLimit::Unknown(why) if why.contains("NVML_ERROR_GPU_IS_LOST")),
            "{lost:?}"
        );
        let expected = "GPU GPU-none: NVML_ERROR_NOT_FOUND";
        assert!(
            matches!(unknown, DriverLimit::None(why) if why.contains(expected)),
            "{unknown:?}"
        );
        assert_eq!(well, &DriverLimit::Dmem);
        let mut left = fs::read_dir(node.at("cgroups")).expect("listed");
        assert!(left.all(|entry| entry.expect("an entry").path().is_file()));
    }
    let node = Node::new("dmem");
    node.put("proc/self/cgroup", "4:memory:/a\n0::/a\n");
    let output = node.probe(&[&node.gpus[0]]);
    assert_eq!(output.status.code(), Some(REFUSED.into()), "{output:?}");
    assert!(
        said(&output).contains("hybrid") && output.stdout.is_empty(),
        "{output:?}"
    );
}

/// The plugin takes this exit status for a refusal (`vgpu_node::driver_limit`), whose reason is what the loader prints.
#[test]
fn an_older_glibc_than_the_programs_is_a_refusal_that_names_the_version() {
    let mut program = fs::read(HOOK).expect("the program");
    let version = b"GLIBC_2.34";
    let place = program.windows(version.len()).position(|bytes| bytes == version);
    let Some(place) = place else {
        vgpu_skip::skip(
            "an_older_glibc_than_the_programs_is_a_refusal_that_names_the_version",
            "the program needs no version of glibc that could be missing",
        );
        return;
    };
    program[place..place + version.len()].copy_from_slice(b"GLIBC_9.99");
    let folder = tempfile::tempdir().expect("a folder");
    let newer = folder.path().join("vgpu-driver-limit");
    fs::write(&newer, program).expect("written");
    fs::set_permissions(&newer, fs::Permissions::from_mode(0o755)).expect("executable");
    let output = Command::new(&newer)
        .args(["probe", "--gpu", "GPU-1"])
        .output()
        .expect("run");
    assert_eq!(output.status.code(), Some(REFUSED.into()));
    assert!(
        said(&output).contains("version `GLIBC_9.99' not found"),
        "{}",
        said(&output)
    );
}

#[test]
fn a_program_runs_in_the_namespaces_of_another_process() {
    let enter = |pid: &str, program: &str| {
        let mut command = Command::new(HOOK);
        command
            .args(["enter", pid, program, "said", "there"])
            .output()
            .expect("the program starts")
    };
    let line = said(&enter("4194305", "/bin/echo"));
    let expected = "/proc/4194305/ns/cgroup: cannot be entered: No such file";
    assert!(line.contains(expected) && line.contains("hostPID"), "{line}");
    let own = std::process::id().to_string();
    let line = said(&enter(&own, "/bin/echo"));
    assert!(
        line.contains("is in this program's own namespace of mounts") && line.contains("hostPID"),
        "{line}"
    );
    // There, a program has a loader that does not exist, and a folder is mounted noexec.
    let folder = tempfile::tempdir().expect("a folder");
    let script = "cd \"$0\" && echo '#!/nowhere/loader' > loaderless && chmod +x loaderless && mkdir mounted &&
        mount -t tmpfs -o noexec none mounted && cp /bin/echo mounted && echo; read end";
    let mut other = Command::new("unshare");
    let other = other.args(["--mount", "sh", "-c", script]).arg(folder.path());
    let other = other.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut other = other.spawn().expect("unshare starts");
    let mut line = String::new();
    let mut from = BufReader::new(other.stdout.take().expect("its stdout"));
    from.read_line(&mut line).expect("its output");
    if line.is_empty() {
        other.wait().expect("it has ended");
        vgpu_skip::skip(
            "a_program_runs_in_the_namespaces_of_another_process",
            "needs root that may make and enter namespaces",
        );
        return;
    }
    let pid = other.id().to_string();
    let output = enter(&pid, "/bin/echo");
    let below = |name: &str| folder.path().join(name).display().to_string();
    let refused = [
        "/nowhere/program".to_owned(),
        below("mounted/echo"),
        below("loaderless"),
    ]
    .map(|program| {
        let output = enter(&pid, &program);
        (program, output.status.code(), said(&output))
    });
    drop(other.stdin.take());
    other.wait().expect("it ends");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "said there\n",
        "{}",
        said(&output)
    );
    // As the runtime would find it: the answer is no, and no CDI spec has the hook.
    for ((program, status, line), why) in refused
        .iter()
        .zip(["No such file", "Permission denied", "No such file"])
    {
        let expected = format!("{program}: cannot be run in the namespaces of process {pid}: {why}");
        assert!(*status == Some(REFUSED.into()) && line.contains(&expected), "{line}");
    }
}

/// The build machines have hybrid cgroups: there the whole program refuses. On a machine with version 2 alone, it
/// refuses because the process is in the hook's own cgroup.
#[test]
fn this_machine_is_refused() {
    let node = Node::new("dmem");
    node.claim("claim-a", &[("s", 0, GIB)]);
    let mut command = Command::new(HOOK);
    command
        .args(["set", "--required", "--claim"])
        .arg(node.at("claims/claim-a"));
    command.arg("--records").arg(node.at("records"));
    command
        .arg("--nvml")
        .arg(libraries().join("libnvidia-ml.so.1"))
        .arg("--soft-gpu")
        .arg(node.at("state"));
    let state = format!(r#"{{"id": "c1", "pid": {}}}"#, std::process::id());
    let output = with_stdin(&mut command, &state);
    let line = said(&output);
    let reasons = [
        "hybrid",
        "cgroup v1 is mounted",
        "root cgroup",
        "the container runtime's own",
        "outside of what is",
        "of the hierarchy is mounted",
    ];
    assert!(
        !output.status.success() && reasons.iter().any(|reason| line.contains(reason)),
        "{line}"
    );
}

#[test]
fn arguments_and_help() {
    let said_of = |arguments: &[&str]| with_stdin(Command::new(HOOK).args(arguments), "");
    let output = said_of(&["--help"]);
    assert!(
        output.status.success() && String::from_utf8_lossy(&output.stdout).contains("usage: vgpu-driver-limit set")
    );
    let output = said_of(&["set", "--required", "--claim", "relative"]);
    assert!(!output.status.success() && said(&output).contains("--claim \"relative\" is not an absolute path"));
    // The CDI spec is of another release than the program. Who does not require the limit starts.
    let claim = tempfile::tempdir().expect("a folder");
    let folder = claim.path().to_str().expect("a path");
    for command in ["set", "lift"] {
        let output = said_of(&[command, "--newer", "--claim", folder]);
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        let report = fs::read_to_string(claim.path().join("no-driver-limit")).expect("a report");
        assert!(report.contains("\"--newer\" is not an option"), "{report}");
        let output = said_of(&[command, "--newer"]);
        assert!(output.status.success() && said(&output).contains("\"--newer\" is not an option"));
    }
    for arguments in [["set", "--newer", "--required"], ["check", "--newer", "x"]] {
        assert!(!said_of(&arguments).status.success(), "{arguments:?}");
    }
}
