//! Instances on the software GPU, which `make dist` builds, through NVML as the plugin's child calls it.

use nvml_wrapper::Nvml;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use vgpu_mig::candidates::{Candidate, Place};
use vgpu_mig::instances::Known;
use vgpu_mig::nvml::Local;
use vgpu_mig::{Asked, Code, Folder, Instances, MigDriver as _, Pool, Settings};
use vgpu_node::gpus::Placement;

/// The software GPU's state, by which it is found: a variable of the process, so each test runs in a child of its own.
const STATE: &str = "SOFT_GPU_STATE";

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

/// Returns the state folder in a child; None in the process that has run a child for each profile.
fn in_children(test: &str, profiles: &[&str]) -> Option<PathBuf> {
    if let Some(state) = std::env::var_os(STATE) {
        return Some(state.into());
    }
    for profile in profiles {
        let state = tempfile::tempdir().expect("a folder");
        std::fs::write(state.path().join("profile"), profile).expect("written");
        let mut child = Command::new(std::env::current_exe().expect("this program"));
        child.args(["--exact", test]).env(STATE, state.path());
        assert!(child.status().expect("a child").success(), "{profile}");
    }
    None
}

fn nvml() -> Nvml {
    let library = libraries().join("libnvidia-ml.so.1");
    Nvml::builder().lib_path(library.as_os_str()).init().expect("NVML")
}

fn first_gpu(nvml: &Nvml) -> String {
    nvml.device_by_index(0).and_then(|gpu| gpu.uuid()).expect("a GPU")
}

fn control(state: &Path, text: &str) {
    std::fs::write(state.join("control.new"), text).expect("written");
    std::fs::rename(state.join("control.new"), state.join("control")).expect("in place");
}

fn plugin<'a>(nvml: &'a Nvml, state: &Path) -> Instances<Local<'a>, Folder> {
    let settings = Settings {
        boot: "b1".into(),
        switches_mode: true,
    };
    Instances::new(Local(nvml), Folder::new(state.join("records")), settings)
}

fn asked<'a>(claim: &'a str, gpu: &'a str, candidate: &'a Candidate) -> Asked<'a> {
    Asked {
        claim,
        gpu,
        profile: candidate.profile.id,
        profile_name: &candidate.profile.name,
        placement: candidate.placement,
        whole: None,
    }
}

fn known(are_prepared: &dyn Fn(&str) -> bool) -> Known<'_> {
    Known {
        is_prepared: are_prepared,
        is_gpu_held: &|_| false,
    }
}

/// A program with a context in an instance.
struct Program(Child);

impl Program {
    fn start(uuid: &str) -> Self {
        let mut command = Command::new(vgpu_built_from::program("gpu-client"));
        command
            .arg("serve")
            .env("LD_LIBRARY_PATH", libraries())
            .env("CUDA_VISIBLE_DEVICES", uuid);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a client");
        writeln!(child.stdin.as_mut().expect("a pipe"), "init").expect("it lives");
        let mut answer = String::new();
        let from = child.stdout.as_mut().expect("a pipe");
        BufReader::new(from).read_line(&mut answer).expect("an answer");
        assert_eq!(answer.trim_end(), "init 0");
        Self(child)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_instance_comes_with_the_first_claim_and_goes_with_the_last() {
    let Some(state) = in_children("an_instance_comes_with_the_first_claim_and_goes_with_the_last", &[""]) else {
        return;
    };
    let nvml = nvml();
    let (gpu, driver, plugin) = (first_gpu(&nvml), Local(&nvml), plugin(&nvml, &state));
    let pool = Pool::new(&gpu, &driver.profiles(&gpu).expect("profiles"), &[], &[]).expect("a pool");
    let half = pool
        .candidates
        .iter()
        .find(|one| one.profile.name == "3g.40gb")
        .expect("a candidate");
    assert_eq!(
        (half.placement, half.profile.multiprocessors),
        (Placement { start: 4, size: 4 }, 60)
    );
    assert!(!driver.mode(&gpu).expect("a mode").is_on && driver.is_resetless(&gpu).expect("an answer"));
    let made = plugin.prepare(&asked("u1", &gpu, half), false).expect("made");
    assert_eq!(plugin.prepare(&asked("u2", &gpu, half), false).expect("there"), made);
    let listed = driver.instances(&gpu).expect("a list");
    assert_eq!(
        (listed.len(), listed[0].id, listed[0].placement),
        (1, made.gpu_instance, half.placement)
    );
    assert_eq!((listed[0].profile, listed[0].compute.len()), (half.profile.id, 1));
    let uuid = made.uuid.expect("a UUID");
    assert!(uuid.starts_with("MIG-"), "{uuid}");
    assert_eq!(listed[0].compute[0].uuid.as_ref(), Some(&uuid));
    // An administrator's instance without a compute instance.
    let small = Placement { start: 0, size: 1 };
    let theirs = driver.create(&gpu, 19, small).expect("made");
    let found = plugin.administrators(&gpu).expect("a list");
    assert_eq!(
        found.iter().map(|one| (one.id, one.compute.len())).collect::<Vec<_>>(),
        [(theirs, 0)]
    );

    let program = Program::start(&uuid);
    assert!(plugin.unprepare("u1").expect("listed").problems.is_empty());
    let report = plugin.unprepare("u2").expect("listed");
    let problem = report.problems[0].to_string();
    assert!(problem.contains("while a process uses it"), "{problem}");
    drop(program);
    assert_eq!(plugin.recover(known(&|_| false)).expect("listed").destroyed.len(), 1);
    assert!(
        driver.mode(&gpu).expect("a mode").is_on,
        "for the administrator's instance"
    );
    driver.destroy(&gpu, theirs).expect("destroyed");
    plugin.recover(known(&|_| false)).expect("listed");
    assert!(!driver.mode(&gpu).expect("a mode").is_on, "as before");
    assert_eq!(std::fs::read_dir(state.join("records")).expect("a folder").count(), 0);
}

#[test]
fn refusals_have_nvmls_codes_and_a_reload_is_survived() {
    let Some(state) = in_children("refusals_have_nvmls_codes_and_a_reload_is_survived", &["mig = 0:\n"]) else {
        return;
    };
    let nvml = nvml();
    let (gpu, driver, plugin) = (first_gpu(&nvml), Local(&nvml), plugin(&nvml, &state));
    let pool = Pool::new(&gpu, &driver.profiles(&gpu).expect("profiles"), &[], &[]).expect("a pool");
    let half = pool
        .candidates
        .iter()
        .find(|one| one.profile.name == "3g.40gb")
        .expect("a candidate");
    for (number, code) in [
        (19, "IN_USE"),
        (23, "INSUFFICIENT_RESOURCES"),
        (4, "NO_PERMISSION"),
        (999, "code 999"),
    ] {
        control(&state, &format!("refuse 0 create {number}\n"));
        let error = plugin
            .prepare(&asked("u1", &gpu, half), false)
            .expect_err("refused")
            .to_string();
        assert!(
            error.starts_with("3g.40gb at memory slices 4..8") && error.contains(code),
            "{error}"
        );
        assert!(driver.instances(&gpu).expect("a list").is_empty());
    }
    control(&state, "");
    plugin.prepare(&asked("u1", &gpu, half), false).expect("made");
    control(&state, "reload 1\n");
    assert!(driver.instances(&gpu).expect("a list").is_empty() && !driver.mode(&gpu).expect("a mode").is_on);
    let report = plugin.recover(known(&|_| true)).expect("listed");
    assert_eq!((report.made.len(), report.problems.len()), (1, 0), "{report:?}");
    assert_eq!(driver.instances(&gpu).expect("a list").len(), 1);
    let unknown = driver
        .mode("GPU-00000000-0000-0000-0000-000000000000")
        .expect_err("no such GPU");
    assert_eq!(unknown.code, Code::NotFound);
    assert_eq!(
        driver.destroy(&gpu, 99).expect_err("no such instance").code,
        Code::NotFound
    );
}

/// Set for a plugin that is killed while the driver works.
const VICTIM: &str = "VGPU_MIG_VICTIM";

#[test]
fn a_plugin_that_is_killed_in_the_middle_finds_its_instance_again() {
    const TEST: &str = "a_plugin_that_is_killed_in_the_middle_finds_its_instance_again";
    let Some(state) = in_children(TEST, &["mig = 0:\n"]) else {
        return;
    };
    let nvml = nvml();
    let (gpu, driver, plugin) = (first_gpu(&nvml), Local(&nvml), plugin(&nvml, &state));
    let pool = Pool::new(&gpu, &driver.profiles(&gpu).expect("profiles"), &[], &[]).expect("a pool");
    let asked = asked("u1", &gpu, &pool.candidates[0]);
    if std::env::var_os(VICTIM).is_some() {
        let _ = plugin.prepare(&asked, false);
        panic!("it was not killed");
    }
    for is_prepared_again in [false, true] {
        // The instance is there long before the call returns.
        control(&state, "late 0 600000\n");
        let mut victim = Command::new(std::env::current_exe().expect("this program"));
        victim.args(["--exact", TEST]).env(VICTIM, "1").stdout(Stdio::null());
        let mut victim = victim.spawn().expect("a process");
        while driver.instances(&gpu).expect("a list").is_empty() {
            assert!(victim.try_wait().expect("a child").is_none(), "it ended by itself");
            std::thread::yield_now();
        }
        victim.kill().expect("killed");
        victim.wait().expect("ended");
        control(&state, "");
        assert_eq!(driver.instances(&gpu).expect("a list")[0].compute, []);
        assert!(
            plugin.administrators(&gpu).expect("a list").is_empty(),
            "the record says whose it is"
        );
        if is_prepared_again {
            plugin.prepare(&asked, false).expect("completed");
            assert_eq!(driver.instances(&gpu).expect("a list")[0].compute.len(), 1);
        }
        let report = plugin.recover(known(&|_| false)).expect("listed");
        assert_eq!((report.destroyed.len(), report.problems.len()), (1, 0), "{report:?}");
        assert!(driver.instances(&gpu).expect("a list").is_empty());
    }
}

/// The values of the counters.
fn counters(pool: &Pool) -> BTreeMap<String, u64> {
    let named = pool
        .counters
        .iter()
        .map(|counter| (counter.name.clone(), counter.value));
    named.collect()
}

fn take(left: &mut BTreeMap<String, u64>, candidate: &Candidate) -> bool {
    let fits = candidate.consumes.iter().all(|one| left[&one.name] >= one.value);
    for one in candidate.consumes.iter().filter(|_| fits) {
        *left.get_mut(&one.name).expect("a counter") -= one.value;
    }
    fits
}

/// The software GPU checks places, engines and slices by itself, from NVIDIA's tables.
#[test]
fn the_driver_makes_what_the_counters_allow_and_nothing_else() {
    let products = [
        "a30-24gb",
        "a100-40gb",
        "a100-80gb",
        "h100-80gb",
        "h100-80gb-pcie",
        "h200-141gb",
        "b200-180gb",
        "rtx-pro-6000-96gb",
    ];
    let profiles = products.map(|product| format!("mig_product = {product}\nmig = 0:\n"));
    let profiles = profiles.each_ref().map(String::as_str);
    let Some(_) = in_children("the_driver_makes_what_the_counters_allow_and_nothing_else", &profiles) else {
        return;
    };
    let nvml = nvml();
    let (gpu, driver) = (first_gpu(&nvml), Local(&nvml));
    let profiles = driver.profiles(&gpu).expect("profiles");
    let pool = Pool::new(&gpu, &profiles, &[], &[]).expect("a pool");
    // Each candidate first, and then all others in order, forwards and backwards.
    for first in 0..pool.candidates.len() {
        for is_backwards in [false, true] {
            let mut order: Vec<&Candidate> = pool.candidates.iter().collect();
            if is_backwards {
                order.reverse();
            }
            order.insert(0, &pool.candidates[first]);
            let mut left = counters(&pool);
            for candidate in order {
                let made = driver.create(&gpu, candidate.profile.id, candidate.placement);
                let name = &candidate.name;
                match take(&mut left, candidate) {
                    true => drop(made.unwrap_or_else(|refused| panic!("{name}: {refused}"))),
                    false => assert_eq!(made.expect_err(name).code, Code::InsufficientResources, "{name}"),
                }
            }
            let listed = driver.instances(&gpu).expect("a list");
            // An administrator who has all of these leaves nothing that the counters would allow.
            let theirs: Vec<Place> = listed
                .iter()
                .map(|one| Place {
                    profile: one.profile,
                    placement: one.placement,
                })
                .collect();
            let full = Pool::new(&gpu, &profiles, &theirs, &[]).expect("a pool");
            assert!(full.candidates.is_empty(), "{:?}", full.candidates);
            for instance in listed {
                driver.create_compute(&gpu, instance.id).expect("all of it");
                driver.destroy_compute(&gpu, instance.id, 0).expect("destroyed");
                driver.destroy(&gpu, instance.id).expect("destroyed");
            }
        }
    }
}
