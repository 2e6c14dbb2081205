//! Real clients, unmodified, from their packages: cuda-bindings, nvidia-ml-py, gpustat, nvidia-smi.
//!
//! Packages are downloaded once (`vgpu_cache`). If that is not possible, the tests are skipped by name.

mod common;

use std::path::Path;
use std::process::Command;
use vgpu_cache::{Error, apt, pip, run};

use common::{Client, Folder, on_gpus};

const PACKAGES: [&str; 3] = ["cuda-bindings==13.5.0", "nvidia-ml-py==13.615.71", "gpustat==1.1.1"];
const GIB: u64 = 1 << 30;

/// Returns a Python with the packages. None: they cannot be installed here, and `test` is skipped.
fn python(test: &str, state: &Folder) -> Option<Command> {
    let folder = match pip::packages("clients", &PACKAGES.join(" "), &PACKAGES) {
        Ok(folder) => folder,
        Err(Error::Unavailable(why)) => {
            vgpu_skip::skip(test, &why);
            return None;
        }
        Err(Error::Failed(why)) => panic!("{why}"),
    };
    let mut command = on_gpus("python3", &state.0);
    command.env("PYTHONPATH", folder);
    Some(command)
}

fn script(mut python: Command, name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name);
    run(python.arg(path)).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn cuda_bindings() {
    let state = Folder::new("bindings");
    let Some(python) = python("cuda_bindings", &state) else {
        return;
    };
    assert_eq!(script(python, "bindings.py").trim(), "ok");
}

#[test]
fn nvidia_ml_py() {
    let state = Folder::new("pynvml");
    let Some(python) = python("nvidia_ml_py", &state) else {
        return;
    };
    let mut holder = Client::ready(&state.0);
    assert_eq!(holder.say(&format!("alloc:{}", 5 * GIB)), "0");
    let out = script(python, "pynvml_view.py");
    let expected = format!("2 {} {} {} {}:{}", 80 * GIB, 512 << 20, 5 * GIB, holder.pid(), 5 * GIB);
    assert_eq!(out.trim(), expected);
}

#[test]
fn gpustat() {
    let state = Folder::new("gpustat");
    let Some(mut python) = python("gpustat", &state) else {
        return;
    };
    let mut holder = Client::ready(&state.0);
    assert_eq!(holder.say(&format!("alloc:{}", 5 * GIB)), "0");
    let out = run(python.args(["-m", "gpustat", "--no-color", "--show-pid"])).unwrap_or_else(|e| panic!("{e}"));
    let gpu = out
        .lines()
        .find(|line| line.starts_with("[0]"))
        .unwrap_or_else(|| panic!("{out}"));
    assert!(gpu.contains("Software GPU") && gpu.contains("5120 / 82432 MB"), "{out}");
    assert!(gpu.contains(&format!("/{}(5120M)", holder.pid())), "{out}");
}

#[test]
fn nvidia_smi_prints_its_tables() {
    let program = match apt::nvidia_smi() {
        Ok(program) => program,
        Err(why) => {
            vgpu_skip::skip("nvidia_smi_prints_its_tables", &why);
            return;
        }
    };
    let state = Folder::new("smi");
    let mut holder = Client::ready(&state.0);
    assert_eq!(holder.say(&format!("alloc:{}", 5 * GIB)), "0");
    let smi =
        |arguments: &[&str]| run(on_gpus(&program, &state.0).args(arguments)).unwrap_or_else(|error| panic!("{error}"));
    let list = smi(&["-L"]);
    assert_eq!(list.lines().count(), 2, "{list}");
    assert!(list.starts_with("GPU 0: Software GPU H100-80GB (UUID: GPU-"), "{list}");
    let table = smi(&[]);
    assert!(
        table.contains("5120MiB / 82432MiB") && table.contains(&holder.pid().to_string()),
        "{table}"
    );
    let query = smi(&[
        "--query-gpu=index,memory.total,memory.reserved,memory.used",
        "--format=csv,noheader,nounits",
    ]);
    assert_eq!(query, "0, 82432, 512, 5120\n1, 82432, 512, 0\n");
    let apps = smi(&["--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]);
    assert_eq!(apps, format!("{}, 5120\n", holder.pid()));
    let all = smi(&["-q"]);
    assert!(all.contains("Attached GPUs                             : 2"), "{all}");
}

/// The functions and structures of MIG are those that NVIDIA's own program uses.
#[test]
fn nvidia_smi_makes_and_ends_instances() {
    let program = match apt::nvidia_smi() {
        Ok(program) => program,
        Err(why) => {
            vgpu_skip::skip("nvidia_smi_makes_and_ends_instances", &why);
            return;
        }
    };
    let state = Folder::new("smi-mig");
    let smi =
        |arguments: &[&str]| run(on_gpus(&program, &state.0).args(arguments)).unwrap_or_else(|error| panic!("{error}"));
    smi(&["-i", "0", "-mig", "1"]);
    let places = smi(&["mig", "-lgipp"]);
    assert!(places.contains("Profile ID 14 Placements: {0,2,4}:2"), "{places}");
    let profiles = smi(&["mig", "-lgip"]);
    assert!(
        profiles.contains("MIG 3g.40gb        9     2/2        39.50"),
        "{profiles}"
    );
    let made = smi(&["mig", "-i", "0", "-cgi", "3g.40gb:4,19", "-C"]);
    for part in [
        "GPU instance ID  2 on GPU  0 using profile MIG 3g.40gb (ID  9)",
        "compute instance ID  0 on GPU  0 GPU instance ID  7 using profile MIG 1g.10gb (ID  0)",
    ] {
        assert!(made.contains(part), "{made}");
    }
    let list = smi(&["-L"]);
    assert!(list.contains("MIG 3g.40gb     Device  0: (UUID: MIG-"), "{list}");
    let mut command = common::client(&state.0);
    let uuid = list.split("UUID: ").nth(2).and_then(|rest| rest.split(')').next());
    command.env("CUDA_VISIBLE_DEVICES", uuid.expect("a UUID"));
    let mut holder = Client::spawn(command).with_context();
    assert_eq!(holder.say(&format!("alloc:{}", 5 * GIB)), "0");
    let table = smi(&[]);
    // Its list of processes stays empty: in MIG mode it takes that from a private function that is not modelled.
    assert!(table.contains("5120MiB / 40448MiB"), "{table}");
    drop(holder);
    smi(&["mig", "-i", "0", "-dci"]);
    smi(&["mig", "-i", "0", "-dgi"]);
    assert_eq!(smi(&["-L"]).lines().count(), 2);
}
