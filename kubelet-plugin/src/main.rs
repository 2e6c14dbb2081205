use clap::Parser as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    match vgpu_kubelet_plugin::run::run(vgpu_kubelet_plugin::config::Flags::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vgpu-kubelet-plugin: {error:#}");
            ExitCode::FAILURE
        }
    }
}
