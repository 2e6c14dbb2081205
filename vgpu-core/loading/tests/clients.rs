//! Tests real clients, unmodified, from their packages, under a share of the software GPU. Each sees the share and no
//! more, fails with its own out-of-memory error, and shows the figures of the ledger.
//!
//! Packages are downloaded once (`vgpu_cache`). A client that cannot be downloaded here is skipped by its name.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use vgpu_cache::apt::{self, Release, With};
use vgpu_cache::{Error, pip};
use vgpu_loading::place::{Form, Place, Running, possible};
use vgpu_loading::share::Share;
use vgpu_loading::{GIB, cc, example, python};
use vgpu_skip::skip;

const LIMIT: u64 = 2 * GIB;

/// The C client, in a folder that places see.
fn stage() -> tempfile::TempDir {
    let stage = tempfile::tempdir().expect("a folder");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(stage.path(), open).expect("a mode");
    let none: [&str; 0] = [];
    cc::build("client.c", &stage.path().join("client"), none);
    stage
}

/// A container over this machine's root file system if one can be made, else a place of an ordinary user.
fn place(stage: &Path, visible: &[&Path]) -> Place {
    let share = |form: Form| Share::new(LIMIT, &stage.join("client"), &form.driver());
    if possible().is_err() {
        return Place::user(share(Form::User));
    }
    let visible: Vec<&Path> = visible.iter().copied().chain([stage]).collect();
    Place::container(share(Form::Container), Path::new("/"), &visible).unwrap_or_else(|error| panic!("{error}"))
}

/// Folders of libraries that a package's installation script would link into the loader's own folders. These scripts
/// were not run.
const ALTERNATIVES: &str = concat!(
    "/usr/lib/",
    vgpu_abi::arch!(triplet),
    "/blas:/usr/lib/",
    vgpu_abi::arch!(triplet),
    "/lapack"
);

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(name)
}

/// Runs a client that may print other lines first, then prints `answer TOTAL ERROR USED` while it holds half of the
/// share, and waits.
fn allocates(place: &Place, mut command: Command, error: &str, shows_sizes: bool) {
    command.arg(LIMIT.to_string());
    let mut client = Running::start(command);
    let line = loop {
        let line = client.line();
        if line.is_empty() || line.starts_with("answer ") {
            break line;
        }
    };
    let charged = place.share.charged();
    let said = client.end();
    assert!(said.is_ok(), "{line}: {said:?}");
    assert!(line.contains(error), "{line}: not {error}; {said:?}");
    assert!((LIMIT / 2..=LIMIT).contains(&charged), "{line}: charged {charged}");
    if shows_sizes {
        assert!(line.starts_with(&format!("answer {LIMIT} ")), "{line}");
        assert!(line.ends_with(&format!(" {charged}")), "{line}: charged {charged}");
    }
}

/// Fetches a client's packages, all of which must be named. None: they cannot be fetched here, and the client is
/// skipped. Each client has its own folder, so that a package that cannot be fetched does not affect other clients.
fn fetched(name: &str, packages: &str) -> Option<PathBuf> {
    let arguments: Vec<&str> = ["--no-deps"].into_iter().chain(packages.split(' ')).collect();
    match pip::packages(&format!("client-{name}"), packages, &arguments) {
        Ok(folder) => Some(folder),
        Err(Error::Unavailable(why)) => {
            skip(name, &why);
            None
        }
        Err(Error::Failed(why)) => panic!("{why}"),
    }
}

fn python_client(name: &str, packages: &str, file: &str, error: &str, shows_sizes: bool) {
    let Some(packages) = fetched(name, packages) else {
        return;
    };
    let stage = stage();
    let (script, python) = (script(file), python());
    let place = place(stage.path(), &[&packages, script.parent().expect("a folder")]);
    let path = packages.display().to_string();
    let mut command = place.command(
        &python,
        &[("PYTHONPATH", &path), ("DEV", "CUDA"), ("PYTHONDONTWRITEBYTECODE", "1")],
    );
    command.arg(&script);
    allocates(&place, command, error, shows_sizes);
}

const BINDINGS: &str = "cuda-bindings==13.5.0 cuda-pathfinder==1.9.0";

#[test]
fn cuda_bindings() {
    python_client(
        "cuda-bindings",
        BINDINGS,
        "cuda_bindings.py",
        "CUDA_ERROR_OUT_OF_MEMORY",
        true,
    );
}

#[test]
fn cuda_core() {
    let packages = format!("{BINDINGS} cuda-core==1.2.2 numpy==2.4.6");
    python_client(
        "cuda-core",
        &packages,
        "cuda_core.py",
        "CUDAError CUDA_ERROR_OUT_OF_MEMORY",
        true,
    );
}

#[test]
fn numba_cuda() {
    let own = "numba-cuda==0.30.4 numba==0.68.1 llvmlite==0.50.0 numpy==2.4.6 cuda-core==1.2.2 packaging==26.3";
    let packages = format!("{BINDINGS} {own}");
    python_client("numba-cuda", &packages, "numba_cuda.py", "OUT_OF_MEMORY", true);
}

#[test]
fn tinygrad() {
    python_client("tinygrad", "tinygrad==0.14.0", "tinygrad_cuda.py", "MemoryError", true);
}

#[test]
fn taichi() {
    let packages = "taichi==1.7.4 numpy==2.4.6 colorama==0.4.6 dill==0.4.1 rich==15.0.0 \
                    markdown-it-py==4.3.0 mdurl==0.1.2 pygments==2.21.0";
    python_client("taichi", packages, "taichi_cuda.py", "CUDA_ERROR_OUT_OF_MEMORY", false);
}

#[test]
fn cudarc() {
    let stage = stage();
    let place = place(stage.path(), &[example("cudarc_client").parent().expect("a folder")]);
    allocates(
        &place,
        place.command(&example("cudarc_client"), &[]),
        "CUDA_ERROR_OUT_OF_MEMORY",
        true,
    );
}

/// Debian 12 has a built pycuda. Its package also depends on the CUDA toolkit, for a compiler that no allocation needs.
/// So the package's own files are in a folder beside an image with its other dependencies.
fn pycuda_packages() -> Result<(PathBuf, PathBuf), String> {
    let bookworm = |components| Release {
        codename: "bookworm",
        components,
    };
    let needed = [
        "python3-pytools",
        "python3-mako",
        "libboost-python1.74.0",
        "libboost-thread1.74.0",
        "dash",
    ];
    let image = apt::root(bookworm("main"), &needed, With::AllThatTheyNeed)?;
    let own = ["python3-pycuda", "libcurand10"];
    let own = apt::root(bookworm("contrib non-free"), &own, With::Nothing)?;
    Ok((image, own.join("usr/lib")))
}

#[test]
fn pycuda() {
    let (image, own) = match possible().and_then(|()| pycuda_packages()) {
        Ok(packages) => packages,
        Err(reason) => return skip("pycuda", reason.lines().last().unwrap_or_default()),
    };
    let stage = stage();
    let script = script("pycuda_client.py");
    let share = Share::new(LIMIT, &stage.path().join("client"), &Form::Container.driver());
    let visible = [stage.path(), &own, script.parent().expect("a folder")];
    let place = Place::container(share, &image, &visible).unwrap_or_else(|error| panic!("{error}"));
    let modules = own.join("python3/dist-packages").display().to_string();
    let libraries = format!("{}/{}:{ALTERNATIVES}", own.display(), vgpu_abi::arch!(triplet));
    let mut command = place.command(
        Path::new("/usr/bin/python3"),
        &[
            ("PYTHONPATH", &modules),
            ("LD_LIBRARY_PATH", &libraries),
            ("PYTHONDONTWRITEBYTECODE", "1"),
        ],
    );
    command.arg(&script);
    allocates(&place, command, "MemoryError cuMemAlloc failed: out of memory", true);
}

// === Those that look ===

/// Starts a process that holds half of the share. Returns it, its PID and the bytes charged.
fn with_holder(place: &Place, stage: &Path) -> (Running, u32, u64) {
    let mut command = place.command(&stage.join("client"), &[]);
    command.args([
        "dlopen",
        "cuda",
        &LIMIT.to_string(),
        "libcuda.so.1",
        "libnvidia-ml.so.1",
        "-",
        "-",
    ]);
    let mut holder = Running::start(command);
    assert!(holder.line().starts_with("cuda 0 "));
    let usage = place.share.usage();
    let [process] = &usage.processes[..] else {
        panic!("{usage:?}");
    };
    assert_eq!(usage.charged, LIMIT / 2);
    (holder, process.pid, usage.charged)
}

/// Runs a Python client while another process holds half of the share. `programs`: folders of programs that it starts.
fn looks_by(programs: &[&Path], name: &str, packages: &str, arguments: &[&str], check: impl FnOnce(&str, u32, u64)) {
    let Some(packages) = fetched(name, packages) else {
        return;
    };
    let stage = stage();
    let scripts = script("");
    let visible = [&[packages.as_path(), &scripts], programs].concat();
    let place = place(stage.path(), &visible);
    let (holder, pid, bytes) = with_holder(&place, stage.path());
    let modules = packages.display().to_string();
    let folders = programs.iter().map(|folder| format!("{}:", folder.display()));
    let path = format!("{}/usr/local/bin:/usr/bin:/bin", folders.collect::<String>());
    let shown = place.run(
        &python(),
        &[
            ("PYTHONPATH", &modules),
            ("PATH", &path),
            ("PYTHONDONTWRITEBYTECODE", "1"),
        ],
        arguments,
    );
    check(&shown.unwrap_or_else(|error| panic!("{error}")), pid, bytes);
    drop(holder);
}

fn looks(name: &str, packages: &str, arguments: &[&str], check: fn(&str, u32, u64)) {
    looks_by(&[], name, packages, arguments, check);
}

fn is_one_gpu_with_its_process(shown: &str, pid: u32, bytes: u64) {
    assert_eq!(shown.trim(), format!("1 {LIMIT} {bytes} {pid}:{bytes}"));
}

const NVML: &str = "nvidia-ml-py==13.615.71";

#[test]
fn pynvml() {
    let file = script("pynvml_view.py").display().to_string();
    looks("pynvml", NVML, &[&file], is_one_gpu_with_its_process);
}

#[test]
fn py3nvml() {
    let file = script("py3nvml_view.py").display().to_string();
    let packages = "py3nvml==0.2.7 xmltodict==1.0.4";
    looks("py3nvml", packages, &[&file], is_one_gpu_with_its_process);
}

#[test]
fn nvml_wrapper() {
    let stage = stage();
    let program = example("nvml_wrapper_client");
    let place = place(stage.path(), &[program.parent().expect("a folder")]);
    let (holder, pid, bytes) = with_holder(&place, stage.path());
    let shown = place.run(&program, &[], &[]).unwrap_or_else(|error| panic!("{error}"));
    is_one_gpu_with_its_process(&shown, pid, bytes);
    drop(holder);
}

#[test]
fn gputil() {
    let smi = match apt::nvidia_smi() {
        Ok(program) => program,
        Err(reason) => return skip("gputil", reason.lines().last().unwrap_or_default()),
    };
    let file = script("gputil_view.py").display().to_string();
    let packages = "GPUtil==1.4.0 setuptools==80.10.2";
    let folder = smi.parent().expect("a folder");
    looks_by(&[folder], "gputil", packages, &[&file], |shown, _, bytes| {
        let [total, used] = [LIMIT, bytes].map(|bytes| bytes >> 20);
        assert_eq!(shown.trim(), format!("1 {total} {used} {}", total - used));
    });
}

#[test]
fn nvitop() {
    let file = script("nvitop_view.py").display().to_string();
    let packages = format!("nvitop==1.7.2 {NVML} psutil==7.2.2");
    looks("nvitop", &packages, &[&file], is_one_gpu_with_its_process);
    looks("nvitop", &packages, &["-m", "nvitop", "--once"], |shown, pid, _| {
        assert!(
            shown.contains("1024MiB / 2048MiB")
                || shown.contains("1.00GiB / 2.00GiB")
                || shown.contains("1024.0MiB / 2048MiB"),
            "{shown}"
        );
        assert!(shown.contains(&pid.to_string()), "{shown}");
    });
}

/// Returns the words alone, because columns are padded.
fn unpadded(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn gpustat() {
    let packages = format!("gpustat==1.1.1 {NVML} psutil==7.2.2 blessed==1.52.0 wcwidth==0.9.4 jinxed==2.1.0");
    looks(
        "gpustat",
        &packages,
        &["-m", "gpustat", "--no-color", "--show-pid"],
        |shown, pid, bytes| {
            let gpus: Vec<String> = shown
                .lines()
                .filter(|line| line.starts_with('['))
                .map(unpadded)
                .collect();
            assert_eq!(gpus.len(), 1, "{shown}");
            let mib = bytes >> 20;
            assert!(gpus[0].contains(&format!("| {mib} / {} MB", LIMIT >> 20)), "{shown}");
            assert!(gpus[0].contains(&format!("/{pid}({mib}M)")), "{shown}");
        },
    );
}

#[test]
fn nvidia_smi() {
    let program = match apt::nvidia_smi() {
        Ok(program) => program,
        Err(reason) => return skip("nvidia_smi", reason.lines().last().unwrap_or_default()),
    };
    let stage = stage();
    let place = place(stage.path(), &[program.parent().expect("a folder")]);
    let (holder, pid, bytes) = with_holder(&place, stage.path());
    let smi = |arguments: &[&str]| {
        place
            .run(&program, &[], arguments)
            .unwrap_or_else(|error| panic!("{error}"))
    };
    let (mib, total) = (bytes >> 20, LIMIT >> 20);
    assert_eq!(smi(&["-L"]).lines().count(), 1);
    let table = unpadded(&smi(&[]));
    assert!(
        table.contains(&format!("{mib}MiB / {total}MiB")) && table.contains(&format!(" {pid} C ")),
        "{table}"
    );
    let query = smi(&[
        "--query-gpu=index,memory.total,memory.used,memory.free",
        "--format=csv,noheader,nounits",
    ]);
    assert_eq!(query.trim(), format!("0, {total}, {mib}, {}", total - mib));
    let apps = smi(&["--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]);
    assert_eq!(apps.trim(), format!("{pid}, {mib}"));
    let all = smi(&["-q"]);
    assert!(all.contains("Attached GPUs                             : 1"), "{all}");
    assert!(
        all.contains(&format!("Total                             : {total} MiB")),
        "{all}"
    );
    drop(holder);
}

// === ffmpeg ===

/// Sends frames of one colour through the GPU and back; returns the checksum of the result.
fn frames(place: &Place, size: &str, filters: &str) -> Result<String, String> {
    let source = format!("testsrc=size={size}:rate=3:duration=1");
    let gpu: &[&str] = match filters.is_empty() {
        true => &[],
        false => &["-init_hw_device", "cuda=gpu:0", "-filter_hw_device", "gpu"],
    };
    let chain = format!("format=nv12,{filters}format=nv12");
    let mut command = place.command(Path::new("/usr/bin/ffmpeg"), &[("LD_LIBRARY_PATH", ALTERNATIVES)]);
    command.args(["-hide_banner", "-loglevel", "error"]).args(gpu);
    command
        .args(["-f", "lavfi", "-i", &source, "-vf", &chain, "-f", "md5", "-"])
        .stdin(Stdio::null());
    vgpu_cache::run(&mut command)
}

/// ffmpeg and all its dependencies are in an image of their own: no file of this machine is used.
#[test]
fn ffmpeg() {
    let image = possible().and_then(|()| apt::own_packages("main", &["ffmpeg", "dash"], With::AllThatTheyNeed));
    let image = match image {
        Ok(image) => image,
        Err(reason) => return skip("ffmpeg", reason.lines().last().unwrap_or_default()),
    };
    let stage = stage();
    let small = 64 << 20;
    let of = |memory: u64| {
        let share = Share::new(memory, &stage.path().join("client"), &Form::Container.driver());
        Place::container(share, &image, &[stage.path()]).unwrap_or_else(|error| panic!("{error}"))
    };
    let place = of(LIMIT);
    let on_cpu = frames(&place, "640x360", "").unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(frames(&place, "640x360", "hwupload_cuda,hwdownload,"), Ok(on_cpu));
    let place = of(small);
    let said = frames(&place, "8192x8192", "hwupload_cuda,hwdownload,").expect_err("a frame of 96 MiB in 64 MiB");
    assert!(said.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{said}");
}
