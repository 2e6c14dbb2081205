//! `vgpu-cache [--release CODENAME] [--alone] PACKAGE...`: prints the folder of a root file system with these packages of
//! a Debian release, by default this machine's, and with all their dependencies, or `--alone`. For scripts; tests call the
//! library.
//!
//! How it fails: one line on standard error and exit status 1, for example on a machine that is not Debian or has no
//! network.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use vgpu_cache::apt::{Release, With, own_packages, root};

fn main() -> ExitCode {
    let (mut codename, mut with, mut packages) = (None, With::AllThatTheyNeed, Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--release" => codename = arguments.next(),
            "--alone" => with = With::Nothing,
            _ => packages.push(argument),
        }
    }
    let names: Vec<&str> = packages.iter().map(String::as_str).collect();
    let found = match &codename {
        Some(codename) => root(
            Release {
                codename,
                components: "main",
            },
            &names,
            with,
        ),
        None => own_packages("main", &names, with),
    };
    match found {
        Ok(root) => {
            println!("{}", root.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("vgpu-cache: {}", error.lines().last().unwrap_or_default());
            ExitCode::FAILURE
        }
    }
}
