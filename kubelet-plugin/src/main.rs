use clap::Parser as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    if arguments
        .next()
        .is_some_and(|first| first == vgpu_context_size::ARGUMENT)
    {
        return vgpu_context_size::helper(&arguments.collect::<Vec<_>>());
    }
    match vgpu_kubelet_plugin::run::run(vgpu_kubelet_plugin::config::Flags::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vgpu-kubelet-plugin: {error:#}");
            ExitCode::FAILURE
        }
    }
}
