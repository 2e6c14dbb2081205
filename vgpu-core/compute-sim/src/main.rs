//! Prints docs/compute-accuracy.md, or one section of it: `vgpu-compute-sim [SECTION [LAWS]] [--fresh SEED]`.

mod tables;

use std::process::ExitCode;

const USAGE: &str = "\
usage: vgpu-compute-sim [SECTION [LAW,LAW...]] [--fresh SEED]
--fresh draws other pairs for `drawn` and `variants`: a set that nobody has looked at says what a changed law is worth.";

fn main() -> ExitCode {
    match tables::Output::parse(std::env::args().skip(1)) {
        Ok(output) => {
            output.print();
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("vgpu-compute-sim: {error}\n{USAGE}\n{}", tables::names());
            ExitCode::FAILURE
        }
    }
}
