//! Real clients, unmodified, from their packages: cuda-bindings, nvidia-ml-py, gpustat, nvidia-smi.
//!
//! Packages are fetched once into ~/.cache/dra-driver-vgpu, keyed by their versions, and shared by all clones.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Client, Folder, on_gpus};

const PACKAGES: [&str; 3] = ["cuda-bindings==13.5.0", "nvidia-ml-py==13.615.71", "gpustat==1.1.1"];
const GIB: u64 = 1 << 30;

fn cache() -> PathBuf {
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let base = base
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))
        .expect("HOME is set");
    let cache = base.join("dra-driver-vgpu");
    fs::create_dir_all(&cache).unwrap();
    cache
}

/// Makes a folder of the cache, whole or not at all, whoever else does so at the same time.
fn once(name: &str, make: impl FnOnce(&Path) -> Result<(), String>) -> Result<PathBuf, String> {
    let done = cache().join(name);
    if !done.exists() {
        let aside = cache().join(format!("{name}.{}.new", std::process::id()));
        let _ = fs::remove_dir_all(&aside);
        fs::create_dir_all(&aside).unwrap();
        let made = make(&aside);
        if made.is_ok() {
            let _ = fs::rename(&aside, &done);
        }
        let _ = fs::remove_dir_all(&aside);
        made?;
    }
    Ok(done)
}

fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(format!(
            "{command:?}: {}\n{}{}",
            output.status,
            text(&output.stdout),
            text(&output.stderr)
        ))
    }
}

/// A Python with the packages.
fn python(state: &Folder) -> Command {
    let version = run(Command::new("python3").args(["-c", "import sys; print(*sys.version_info[:2], sep='.')"]));
    let version = version.expect("python3 is installed");
    let name = format!("clients-py{}-{}", version.trim(), PACKAGES.join("-").replace("==", "-"));
    let folder = once(&name, |folder| {
        let mut pip = Command::new("python3");
        pip.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--target",
        ])
        .arg(folder)
        .args(PACKAGES);
        run(&mut pip).map(|_| ())
    });
    let mut command = on_gpus("python3", &state.0);
    command.env("PYTHONPATH", folder.expect("pip installs the clients"));
    command
}

fn script(state: &Folder, name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name);
    run(python(state).arg(path)).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn cuda_bindings() {
    let state = Folder::new("bindings");
    assert_eq!(script(&state, "bindings.py").trim(), "ok");
}

#[test]
fn nvidia_ml_py() {
    let state = Folder::new("pynvml");
    let mut holder = Client::ready(&state.0);
    assert_eq!(holder.say(&format!("alloc {}", 5 * GIB)), "0");
    let out = script(&state, "pynvml_view.py");
    let expected = format!("2 {} {} {} {}:{}", 80 * GIB, 512 << 20, 5 * GIB, holder.pid(), 5 * GIB);
    assert_eq!(out.trim(), expected);
}

#[test]
fn gpustat() {
    let state = Folder::new("gpustat");
    let mut holder = Client::ready(&state.0);
    assert_eq!(holder.say(&format!("alloc {}", 5 * GIB)), "0");
    let out = run(python(&state).args(["-m", "gpustat", "--no-color", "--show-pid"])).unwrap_or_else(|e| panic!("{e}"));
    let gpu = out
        .lines()
        .find(|line| line.starts_with("[0]"))
        .unwrap_or_else(|| panic!("{out}"));
    assert!(gpu.contains("Software GPU") && gpu.contains("5120 / 82432 MB"), "{out}");
    assert!(gpu.contains(&format!("/{}(5120M)", holder.pid())), "{out}");
}

/// nvidia-smi lies in the distribution's non-free component: a private apt configuration fetches it, nothing is
/// installed. Err: why there is none.
fn nvidia_smi() -> Result<PathBuf, String> {
    let folder = once("nvidia-smi-deb", |folder| {
        let sources = fs::read_to_string("/etc/apt/sources.list.d/debian.sources");
        let sources = sources.map_err(|_| "this distribution has no debian.sources with a non-free component")?;
        let private = sources.lines().map(|line| match line.split_once(':') {
            Some(("Components", _)) => "Components: non-free",
            _ => line,
        });
        let list = folder.join("non-free.sources");
        fs::write(&list, private.map(|line| format!("{line}\n")).collect::<String>()).unwrap();
        let (lists, archives) = (folder.join("lists"), folder.join("cache"));
        fs::create_dir_all(lists.join("partial")).unwrap();
        fs::create_dir_all(archives.join("archives/partial")).unwrap();
        let apt = |arguments: &[&str]| {
            let mut command = Command::new("apt-get");
            command.arg("-qq").current_dir(folder);
            for (option, value) in [
                ("Dir::Etc::sourcelist", list.as_path()),
                ("Dir::Etc::sourceparts", Path::new("-")),
                ("Dir::State::Lists", &lists),
                ("Dir::Cache", &archives),
            ] {
                command.arg("-o").arg(format!("{option}={}", value.display()));
            }
            run(command.args(arguments))
        };
        apt(&["update"])?;
        apt(&["download", "nvidia-smi"])?;
        let mut package = fs::read_dir(folder)
            .unwrap()
            .filter_map(|entry| Some(entry.ok()?.path()));
        let package = package.find(|path| path.extension().is_some_and(|end| end == "deb"));
        run(Command::new("dpkg")
            .arg("-x")
            .arg(package.ok_or("no package came")?)
            .arg(folder.join("root")))?;
        Ok(())
    })?;
    let program = folder.join("root/usr/lib/nvidia/current/nvidia-smi");
    if program.exists() {
        Ok(program)
    } else {
        Err(format!("{} is missing", program.display()))
    }
}

#[test]
fn nvidia_smi_prints_its_tables() {
    let program = match nvidia_smi() {
        Ok(program) => program,
        Err(why) => {
            vgpu_skip::skip("nvidia_smi_prints_its_tables", &why);
            return;
        }
    };
    let state = Folder::new("smi");
    let mut holder = Client::ready(&state.0);
    assert_eq!(holder.say(&format!("alloc {}", 5 * GIB)), "0");
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
