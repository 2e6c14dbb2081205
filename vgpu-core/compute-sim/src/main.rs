//! Prints docs/compute-accuracy.md, or one section of it: `vgpu-compute-sim [SECTION]`.

mod tables;

use std::process::ExitCode;

fn main() -> ExitCode {
    match tables::print(std::env::args().nth(1).as_deref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vgpu-compute-sim: {error}");
            ExitCode::FAILURE
        }
    }
}
