//! A driver that limits the cgroup itself, behind the library: which of the two a program meets, and what it is told. The
//! cgroup is a plain folder, and its limit a line in a file of it, as the kernel's controller dmem has it.

mod support;

use std::path::PathBuf;
use support::serve::Serving;
use support::{Bench, GIB, MIB};
use vgpu_abi::ledger::refusal::Cause;
use vgpu_abi::limits::TOLERANCE;

const PROFILE: &str = "memory_limits = dmem\ncontext_cost = 100MiB\n";
/// The first GPU of a profile that names no addresses.
const REGION: &str = "nvidia/00000000:1b:00.0/vidmem";

/// A tree of cgroups with one container, whose limit of the first GPU is set.
struct Container {
    tree: tempfile::TempDir,
}

impl Container {
    fn with_limit(bytes: u64) -> Self {
        let container = Self {
            tree: tempfile::tempdir().expect("a folder"),
        };
        let root = container.tree.path();
        std::fs::create_dir(container.cgroup()).expect("a folder");
        std::fs::write(root.join("cgroup.procs"), "").expect("a file");
        std::fs::write(root.join("cgroup.subtree_control"), "dmem").expect("a file");
        std::fs::write(container.cgroup().join("dmem.max"), format!("{REGION} {bytes}\n")).expect("a limit");
        container
    }

    fn cgroup(&self) -> PathBuf {
        self.tree.path().join("container")
    }

    /// A cgroup that a program of the container makes below its own, without a limit.
    fn nested(&self) -> PathBuf {
        let nested = self.cgroup().join("nested");
        std::fs::create_dir(&nested).expect("a folder");
        std::fs::write(self.cgroup().join("cgroup.procs"), "").expect("a file");
        std::fs::write(self.cgroup().join("cgroup.subtree_control"), "dmem").expect("a file");
        std::fs::write(nested.join("dmem.max"), format!("{REGION} max\n")).expect("no limit");
        nested
    }

    /// A client under the shares, in the container.
    fn client(&self, bench: &Bench, steps: &[&str]) -> Serving {
        let mut command = bench.client(&[steps, &["serve"]].concat());
        command.env("SOFT_GPU_CGROUP", self.cgroup());
        let mut client = Serving::new(command);
        client.did(steps);
        client
    }

    /// The same without the library: a program that goes around it.
    fn stranger(&self, bench: &Bench, steps: &[&str]) -> Serving {
        let mut command = bench.bare(&[steps, &["serve"]].concat());
        command.env("SOFT_GPU_CGROUP", self.cgroup());
        let mut client = Serving::new(command);
        client.did(steps);
        client
    }
}

#[test]
fn an_honest_program_meets_the_librarys_limit_first() {
    let bench = Bench::of_share(PROFILE, 10 * GIB);
    let container = Container::with_limit(10 * GIB + TOLERANCE);
    let mut client = container.client(&bench, &["init"]);
    let free = 10 * GIB - 100 * MIB;
    assert_eq!(
        client.ask("info"),
        format!("0 {free} {}", 10 * GIB),
        "the share, not the driver's limit"
    );
    assert_eq!(client.ask("alloc:10GiB"), "2");
    let last = bench.usage("share").refusals.last.expect("written");
    assert_eq!(last.cause, Cause::Limit);
    assert_eq!(client.ask(&format!("alloc:{free}")), "0");
    assert_eq!(client.ask("info"), format!("0 0 {}", 10 * GIB));
    client.kill();
}

#[test]
fn the_drivers_out_of_memory_goes_through_and_nothing_stays_charged() {
    let bench = Bench::of_share(PROFILE, 10 * GIB);
    let container = Container::with_limit(5 * GIB);
    let mut client = container.client(&bench, &["init"]);
    for call in ["alloc", "async", "create", "array"] {
        assert_eq!(client.ask(&format!("{call}:5GiB")), "2", "{call}");
        let last = bench.usage("share").refusals.last.expect("written");
        assert_eq!(last.cause, Cause::Driver, "{call}");
        assert_eq!(bench.usage("share").charged, 100 * MIB, "{call}: the context alone");
    }
    assert_eq!(client.ask("alloc:4GiB"), "0");
    client.kill();
}

#[test]
fn a_program_without_the_library_ends_at_the_drivers_limit() {
    let bench = Bench::of_share(PROFILE, 10 * GIB);
    let container = Container::with_limit(10 * GIB + TOLERANCE);
    let mut stranger = container.stranger(&bench, &["init"]);
    for call in ["alloc", "async", "create", "array"] {
        assert_eq!(stranger.ask(&format!("{call}:10GiB")), "2", "{call}");
    }
    // The context is in the limit: 64 MiB more than the share, and 100 MiB of it are taken.
    assert_eq!(stranger.ask(&format!("alloc:{}", 10 * GIB - 34 * MIB)), "2");
    assert_eq!(stranger.ask(&format!("alloc:{}", 10 * GIB - 36 * MIB)), "0");
    assert_eq!(stranger.ask("alloc:1"), "2");
    // Beside it, an honest program of the container gets nothing more, and no other one is affected.
    let mut command = bench.client(&["cuinit", "serve"]);
    command.env("SOFT_GPU_CGROUP", container.cgroup());
    let mut honest = Serving::new(command);
    honest.did(&["cuinit"]);
    assert_eq!(honest.ask("ctx:0"), "2", "a context is charged, too");
    let mut outside = bench.serving(&["init", "alloc:9GiB"]);
    assert_eq!(outside.ask("alloc:512MiB"), "0");
    outside.kill();
    honest.kill();
    stranger.kill();
}

/// As in a container of a container: its own cgroups are below the one with the limit.
#[test]
fn a_cgroup_that_a_program_makes_for_itself_is_below_the_limit() {
    let bench = Bench::of_share(PROFILE, 10 * GIB);
    let container = Container::with_limit(10 * GIB + TOLERANCE);
    let mut command = bench.bare(&["init", "serve"]);
    command.env("SOFT_GPU_CGROUP", container.nested());
    let mut nested = Serving::new(command);
    nested.did(&["init"]);
    assert_eq!(nested.ask("alloc:10GiB"), "2");
    assert_eq!(nested.ask("alloc:6GiB"), "0");
    // What one has is missing to the other: they are in one container.
    let mut stranger = container.stranger(&bench, &["init"]);
    assert_eq!(stranger.ask("alloc:4GiB"), "2");
    assert_eq!(stranger.ask("alloc:3GiB"), "0");
    nested.kill();
    stranger.kill();
}
