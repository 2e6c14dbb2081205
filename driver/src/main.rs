//! Parses the flags, builds the controller, runs it.

use clap::Parser as _;
use vgpu_controller::{Config, Flags, run};

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::process::ExitCode {
    let config = match Config::try_from(Flags::parse()) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("vgpu-controller: {error}");
            return std::process::ExitCode::from(2);
        }
    };
    match run(config).await {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vgpu-controller: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
