//! Parses the flags, builds the controller, runs it.

use std::process::ExitCode;

use clap::Parser as _;
use vgpu_controller::{Command, Config, Flags, check_uninstall, run};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let flags = Flags::parse();
    let ended = match &flags.command {
        Some(Command::CheckUninstall(flags)) => check_uninstall(flags).await,
        None => match Config::try_from(flags) {
            Ok(config) => run(config).await.map(|()| None),
            Err(error) => {
                eprintln!("vgpu-controller: {error}");
                return ExitCode::from(2);
            }
        },
    };
    let words = match ended {
        Ok(None) => return ExitCode::SUCCESS,
        Ok(Some(refusal)) => refusal,
        Err(error) => format!("{error:#}"),
    };
    eprintln!("vgpu-controller: {words}");
    ExitCode::FAILURE
}
