//! `vgpu-cache PACKAGE...`: prints the folder of a root file system with these packages of this machine's Debian
//! release, and with all their dependencies. For scripts; tests call the library.
//!
//! How it fails: one line on standard error and exit status 1, for example on a machine that is not Debian or has no
//! network.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use vgpu_cache::apt::{With, own_packages};

fn main() -> ExitCode {
    let packages: Vec<String> = std::env::args().skip(1).collect();
    let names: Vec<&str> = packages.iter().map(String::as_str).collect();
    match own_packages("main", &names, With::AllThatTheyNeed) {
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
