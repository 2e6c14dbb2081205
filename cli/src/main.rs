//! The `vgpu` program; the library beside this file implements it.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    vgpu_cli::main(std::env::args_os())
}
