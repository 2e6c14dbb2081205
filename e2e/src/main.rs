//! `vgpu-e2e`: see the library.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let done = vgpu_e2e::cli::run(vgpu_e2e::cli::Arguments::parse());
    vgpu_e2e::interrupt::wait_if_interrupted();
    match done {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("vgpu-e2e: {error:#}");
            ExitCode::from(vgpu_e2e::cli::status(&error))
        }
    }
}
