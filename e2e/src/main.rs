//! `vgpu-e2e`: see the library.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match vgpu_e2e::cli::run(vgpu_e2e::cli::Arguments::parse()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("vgpu-e2e: {error:#}");
            ExitCode::from(vgpu_e2e::cli::status(&error))
        }
    }
}
