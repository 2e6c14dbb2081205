//! The hook's program: passes standard input and arguments to the library, and returns the exit status.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    match vgpu_cdi_hook::run(std::env::args_os().skip(1), std::io::stdin().lock()) {
        Ok(output) => {
            print!("{output}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            // One line, because runc copies it into the pod's event.
            eprintln!("vgpu-cdi-hook: {error}");
            ExitCode::FAILURE
        }
    }
}
