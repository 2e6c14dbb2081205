//! Runs only the child process: `measure measure-context LIBCUDA LIBNVIDIA_ML UUID`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(2).collect();
    vgpu_context_size::helper(&arguments)
}
