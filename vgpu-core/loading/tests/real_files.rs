//! Tests beside NVIDIA's real files, from the distribution's packages. They need no GPU: without one cuInit answers 100,
//! and cuGetProcAddress works. The packages are downloaded by the test and never committed.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use vgpu_abi::paths::{LIBCUDA, LIBNVIDIA_ML, SHIM_FILE};
use vgpu_cache::apt::{self, Distribution, Release, With};
use vgpu_cache::run;
use vgpu_loading::place::Place;
use vgpu_loading::share::Share;
use vgpu_loading::{GIB, cc, dist};
use vgpu_skip::skip;

/// Releases and the families of drivers in them: the packages of libcuda and of NVML.
const FAMILIES: [(&str, [&str; 2]); 4] = [
    ("bookworm", ["libcuda1", "libnvidia-ml1"]),
    ("bookworm", ["libnvidia-tesla-470-cuda1", "libnvidia-tesla-470-ml1"]),
    ("trixie", ["libcuda1", "libnvidia-ml1"]),
    ("sid", ["libcuda1", "libnvidia-ml1"]),
];

/// Not functions of NVML: 470 exports one of its own by mistake.
const INTERNAL: [&str; 1] = ["nvmlRetry_NvRmControl"];

/// The files of a family: libcuda, NVML.
fn files(codename: &str, packages: [&str; 2]) -> Result<[PathBuf; 2], String> {
    let release = Release {
        distribution: Distribution::Debian,
        codename,
        components: "non-free",
        merged: true,
    };
    let root = apt::root(release, &packages, With::Nothing)?;
    let find = |name: &str| {
        let mut list = Vec::new();
        walk(&root, &mut list);
        let starts = format!("{name}.");
        let file = list.into_iter().find(|path| {
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            file.starts_with(starts.trim_end_matches("1.")) && !path.is_symlink() && path.is_file()
        });
        file.ok_or(format!("{name} is missing in {packages:?}"))
    };
    Ok([find(LIBCUDA)?, find(LIBNVIDIA_ML)?])
}

fn walk(folder: &Path, list: &mut Vec<PathBuf>) {
    for entry in folder.read_dir().into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.is_symlink() {
            walk(&path, list);
        } else {
            list.push(path);
        }
    }
}

/// The public functions of libcuda or NVML that a file exports.
fn exports(file: &Path) -> Vec<String> {
    let symbols = run(Command::new("readelf").args(["--dyn-syms", "-W"]).arg(file));
    let symbols = symbols.unwrap_or_else(|error| panic!("{error}"));
    let rows = symbols.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut names: Vec<String> = rows
        .filter(|row| row.len() >= 8 && row[6] != "UND" && ["GLOBAL", "WEAK"].contains(&row[4]))
        .map(|row| row[7].split('@').next().unwrap_or_default().to_owned())
        .filter(|name| name.starts_with("cu") || name.starts_with("nvml"))
        .collect();
    names.sort();
    names
}

#[test]
fn every_export_of_every_version_is_in_the_library() {
    let ours = exports(&dist(SHIM_FILE));
    let mut missing = Vec::new();
    for (codename, packages) in FAMILIES {
        let files = match files(codename, packages) {
            Ok(files) => files,
            Err(reason) => {
                let name = format!(
                    "every_export_of_every_version_is_in_the_library, {codename}, {}",
                    packages[0]
                );
                skip(&name, reason.lines().last().unwrap_or_default());
                continue;
            }
        };
        for file in files {
            let theirs = exports(&file);
            assert!(theirs.len() > 200, "{}: {} exports", file.display(), theirs.len());
            println!("{}: {} exports", file.display(), theirs.len());
            let known = |name: &&String| ours.binary_search(name).is_ok() || INTERNAL.contains(&name.as_str());
            let lost = theirs.iter().filter(|name| !known(name));
            missing.extend(lost.map(|name| format!("{name} of {}", file.display())));
        }
    }
    assert!(missing.is_empty(), "libvgpu.so lacks {missing:#?}");
}

/// The version of the driver of [`FAMILIES`]' first row, of which the look-ups are compared.
const VERSION: i64 = 12020;

/// The client, the names to look up, and a folder with the real libraries under their usual names. None: skipped.
fn stage(test: &str) -> Option<(tempfile::TempDir, PathBuf)> {
    let (codename, packages) = FAMILIES[0];
    let files = match files(codename, packages) {
        Ok(files) => files,
        Err(reason) => {
            skip(test, reason.lines().last().unwrap_or_default());
            return None;
        }
    };
    let stage = tempfile::tempdir().expect("a folder");
    let none: [&str; 0] = [];
    cc::build("lookups.c", &stage.path().join("lookups"), none);
    cc::build("client.c", &stage.path().join("client"), none);
    let mut names = BTreeSet::from([String::new(), "cuNoSuchFunction".into()]);
    names.extend(exports(&files[0]).into_iter().map(|name| {
        let plain = name.trim_end_matches("_ptsz").trim_end_matches("_ptds");
        plain.split("_v").next().unwrap_or(plain).to_owned()
    }));
    let names: Vec<String> = names.into_iter().filter(|name| !name.starts_with("cudbg")).collect();
    fs::write(stage.path().join("names"), names.join("\n") + "\n").expect("a file");
    let real = stage.path().join("real");
    fs::create_dir(&real).expect("a folder");
    for (file, name) in files.iter().zip([LIBCUDA, LIBNVIDIA_ML]) {
        symlink(file, real.join(name)).expect("a link");
    }
    Some((stage, real))
}

/// The lines of the client.
fn answers(mut command: Command, stage: &Path) -> Vec<String> {
    let names = File::open(stage.join("names")).expect("a file");
    let output = command
        .arg("all")
        .stdin(Stdio::from(names))
        .output()
        .expect("a program");
    assert!(
        output.status.success(),
        "{}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().map(str::to_owned).collect()
}

fn bare(stage: &Path, libraries: &Path) -> Vec<String> {
    let mut command = Command::new(stage.join("lookups"));
    command
        .env("LD_LIBRARY_PATH", libraries)
        .env("SOFT_GPU_STATE", stage.join("state"));
    answers(command, stage)
}

fn differences(left: &[String], right: &[String]) -> String {
    assert_eq!(left.len(), right.len());
    let pairs = left.iter().zip(right).filter(|(left, right)| left != right);
    let text: Vec<String> = pairs.map(|(left, right)| format!("{left}   |   {right}")).collect();
    let first: Vec<&str> = text.iter().take(40).map(String::as_str).collect();
    match text.len() {
        0 => String::new(),
        count => format!("{count} of {}:\n{}", left.len(), first.join("\n")),
    }
}

/// The software GPU knows functions and errors that are newer than this driver; of all others it answers the same.
#[test]
fn the_software_gpu_answers_look_ups_as_the_real_driver() {
    let Some((stage, real)) = stage("the_software_gpu_answers_look_ups_as_the_real_driver") else {
        return;
    };
    let known = |line: &String| {
        let version = line.split(' ').nth(1).and_then(|word| word.parse::<i64>().ok());
        let about_names = ["init", "error", "before", "nvml "]
            .iter()
            .all(|other| !line.starts_with(other));
        about_names && version.is_some_and(|version| (0..=VERSION).contains(&version))
    };
    let (theirs, ours) = (bare(stage.path(), &real), bare(stage.path(), &dist("soft-gpu")));
    let [names, own_names] = [&theirs, &ours].map(|lines| {
        let lines: Vec<String> = lines.iter().filter(|line| known(line)).cloned().collect();
        lines
    });
    assert!(names.len() > 30_000, "{}", names.len());
    assert_eq!(
        differences(&names, &own_names),
        "",
        "the real driver   |   the software GPU"
    );
    for line in theirs
        .iter()
        .filter(|line| line.starts_with("error") || line.starts_with("before"))
    {
        assert!(ours.contains(line), "{line}");
    }
}

/// A machine with the driver's files and no GPU: what the driver says, a share's process is told. And each function that
/// the driver answers is passed, or is the hook of that very variant.
#[test]
fn under_a_share_the_real_driver_answers_as_bare() {
    let Some((stage, real)) = stage("under_a_share_the_real_driver_answers_as_bare") else {
        return;
    };
    let share = Share::new(GIB, &stage.path().join("client"), &real);
    let place = Place::user(share);
    let shared = answers(place.command(&stage.path().join("lookups"), &[]), stage.path());
    let theirs = bare(stage.path(), &real);
    assert!(
        theirs.contains(&"init 100".into()),
        "this machine has a GPU: compare there by hand"
    );
    assert_eq!(differences(&theirs, &shared), "", "the real driver   |   under a share");
}
