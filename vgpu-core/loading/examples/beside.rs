//! beside DRIVER PROGRAM [ARGUMENT]...: runs the program twice with the driver's files in the folder DRIVER, without a
//! share and under a share of 1 GiB, and prints whether both runs did the same. For frameworks that are too large for a
//! test: see docs/loading.md.
//!
//! Needs `make dist`. Exit status 1 if output, standard error or exit status differ, or if the library was not in use.
//! Numbers in standard error are not compared: log lines begin with the time and the process ID.

use std::path::Path;
use std::process::{Command, ExitCode, Output};
use std::time::Instant;
use vgpu_loading::place::Place;
use vgpu_loading::share::Share;
use vgpu_loading::{GIB, cc};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [driver, program, arguments @ ..] = &arguments[..] else {
        eprintln!("usage: beside DRIVER PROGRAM [ARGUMENT]...");
        return ExitCode::from(2);
    };
    let libcuda = Path::new(driver).join("libcuda.so.1");
    if !libcuda.is_absolute() || !libcuda.exists() {
        eprintln!("beside: DRIVER {driver}: not the absolute path of a folder with libcuda.so.1");
        return ExitCode::from(2);
    }
    let stage = tempfile::tempdir().expect("a folder");
    let probe = stage.path().join("client");
    cc::build("client.c", &probe, std::iter::empty::<&str>());
    let place = Place::user(Share::new(GIB, &probe, Path::new(driver)));
    let logs = stage.path().join("logs");
    std::fs::create_dir(&logs).expect("a folder");
    let log = logs.join("log");
    let mut bare = Command::new(program);
    bare.env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("HOME", "/tmp")
        .env("LD_LIBRARY_PATH", driver);
    // The first run fills the page cache for both.
    run(bare.args(arguments));
    let (alone, seconds) = run(&mut bare);
    let (shared, seconds_shared) = run(place
        .command(Path::new(program), &[("VGPU_LOG", &log.display().to_string())])
        .args(arguments));
    print!("{}", String::from_utf8_lossy(&alone.stdout));
    eprint!("{}", String::from_utf8_lossy(&alone.stderr));
    let mut same = alone.status.code() == shared.status.code();
    // Without logs, the library was not in use: both runs used the driver alone, and their equality proves nothing.
    if std::fs::read_dir(&logs).expect("a folder").next().is_none() {
        println!("the library was not in use under the share: it wrote no log");
        same = false;
    }
    println!("status {}, under a share {}", alone.status, shared.status);
    println!("{seconds:.1} s, under a share {seconds_shared:.1} s");
    for (what, is_same, shared) in [
        ("output", alone.stdout == shared.stdout, &shared.stdout),
        (
            "standard error",
            without_numbers(&alone.stderr) == without_numbers(&shared.stderr),
            &shared.stderr,
        ),
    ] {
        println!("{what}: {}", if is_same { "the same" } else { "DIFFERS" });
        if !is_same {
            print!("{}", String::from_utf8_lossy(shared));
        }
        same &= is_same;
    }
    if same { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn without_numbers(text: &[u8]) -> Vec<u8> {
    text.iter().filter(|byte| !byte.is_ascii_digit()).copied().collect()
}

fn run(command: &mut Command) -> (Output, f64) {
    let began = Instant::now();
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    (output, began.elapsed().as_secs_f64())
}
