use clap::Parser as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next().unwrap_or_default();
    if first == vgpu_context_size::ARGUMENT {
        return vgpu_context_size::helper(&arguments.collect::<Vec<_>>());
    }
    if first == vgpu_kubelet_plugin::nvml::ARGUMENT {
        return vgpu_kubelet_plugin::nvml::helper(&arguments.collect::<Vec<_>>());
    }
    if first == vgpu_kubelet_plugin::check::ARGUMENT {
        return vgpu_kubelet_plugin::check::main(&arguments.collect::<Vec<_>>());
    }
    if first == vgpu_kubelet_plugin::soft_gpu::ARGUMENT {
        return vgpu_kubelet_plugin::soft_gpu::main(&arguments.collect::<Vec<_>>());
    }
    match vgpu_kubelet_plugin::run::run(vgpu_kubelet_plugin::config::Flags::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vgpu-kubelet-plugin: {error:#}");
            ExitCode::FAILURE
        }
    }
}
