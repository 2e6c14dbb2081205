//! `make demo`: shows step by step how a clone becomes a limit that is enforced.

mod steps;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::cluster::{self, Cluster};
use crate::interrupt;
use crate::kube::Kube;
use crate::prepared::Prepared;
use crate::progress::Progress;
use crate::snapshot::Snapshot;
use crate::toolchain::Versions;
use crate::{install, layout, patience, preflight, progress};
use steps::Demo;

const STEPS: u32 = 14;

/// Runs the demo. If a step fails its check, the cluster is removed and the error returned. `extra`: a file with a pod
/// of that name, which becomes an additional step.
pub fn run(name: &str, keep: bool, extra: Option<&Path>) -> Result<()> {
    let steps = STEPS + u32::from(extra.is_some());
    let prepared = match Prepared::inherited()? {
        Some(prepared) => {
            interrupt::handle()?;
            prepared
        }
        None => first_half(steps)?.as_root()?,
    };
    second_half(name, keep, extra, &prepared)
}

/// Runs as the calling user: shows a local share, then builds everything that the cluster needs.
fn first_half(steps: u32) -> Result<Prepared> {
    interrupt::handle()?;
    Versions::chosen()?;
    let mut progress = Progress::new(steps);
    let factor = patience::start()?;
    progress.step("a share of a GPU on this machine, without Kubernetes: `vgpu run --memory 20Gi`");
    steps::local_share(&layout::local()?, &progress)?;
    let program = std::env::current_exe().context("this program has no path")?;
    preflight::check(&program, true)?;
    if factor > 1.0 {
        progress.note(&format!(
            "waits may take {factor} times as long as on a quiet machine with two cores ({} sets the factor)",
            patience::VARIABLE
        ));
    }
    progress.step("etcd, Kubernetes, containerd, runc, CNI and Helm from their sources, and our images");
    let mut prepared = Prepared::make(program, &mut |text| progress.note(text))?;
    progress.note(&format!(
        "ready: Kubernetes {}, containerd {}",
        prepared.toolchain.kubernetes, prepared.toolchain.containerd
    ));
    progress.why("everything around the GPU is what a production cluster runs");
    prepared.so_far = progress.so_far();
    Ok(prepared)
}

/// Runs as root: starts the cluster and shows its steps.
fn second_half(name: &str, keep: bool, extra: Option<&Path>, prepared: &Prepared) -> Result<()> {
    let (taken, elapsed) = prepared.so_far;
    let mut progress = Progress::resume(STEPS + u32::from(extra.is_some()), taken, elapsed);
    cluster::sweep()?;
    let before = Snapshot::take();

    progress.step(&format!(
        "a one-node Kubernetes {} in namespaces of its own",
        prepared.toolchain.kubernetes
    ));
    let cluster = Cluster::up(prepared.config(name))?;
    progress.note(&format!(
        "the node is Ready; KUBECONFIG={}; {}",
        cluster.kubeconfig().display(),
        prepared.gpu.describe()
    ));
    progress.why("it has processes, mounts and a network of its own, so a kubelet of this machine would not notice");
    if let Err(error) = show(&cluster, prepared, extra, &mut progress) {
        // With `keep`, the cluster stays after a failure too, so that the cause can be found.
        let (ended, fate) = if keep {
            let config = cluster.kubeconfig();
            let fate = format!(
                "the cluster stays up; `make down` ends it; KUBECONFIG={}",
                config.display()
            );
            (cluster.keep(), fate)
        } else {
            (cluster.down(), "the cluster was taken down".to_owned())
        };
        return Err(error.context(ended.err().map_or(fate, |error| format!("{error:#}"))));
    }
    if keep {
        println!(
            "\nthe cluster stays up; `make down` ends it\nexport KUBECONFIG={}",
            cluster.kubeconfig().display()
        );
        return cluster.keep();
    }
    progress.step("the cluster goes, and the machine is as it was");
    cluster.down()?;
    let left = before.left_by(name, &Snapshot::take());
    ensure!(
        left.is_empty(),
        "something of the cluster is left:\n{}",
        left.join("\n")
    );
    progress.note("no process, mount, cgroup, sysctl or file of it is left");
    progress.why("the demo may run on a machine that is in use");
    println!(
        "all of it was shown in {:.0} s; {}=1 prints the documents in full",
        progress.so_far().1.as_secs_f64(),
        progress::VARIABLE
    );
    Ok(())
}

fn show(cluster: &Cluster, prepared: &Prepared, extra: Option<&Path>, progress: &mut Progress) -> Result<()> {
    progress.step("this project, installed by Helm");
    let gpus = install::install(cluster, prepared, &install::TRANSLATES)?;
    let published: Vec<String> = gpus
        .iter()
        .map(|gpu| format!("{}: {}, {} MiB to share", gpu.device, gpu.product, gpu.memory >> 20))
        .collect();
    progress.note(&published.join("; "));
    progress.why("each GPU is a device with consumable capacity in a ResourceSlice: several claims may share it");
    let demo = Demo {
        cluster,
        kube: Kube::new(cluster, steps::NAMESPACE),
        gpus,
    };
    let pods = demo.gpus.len() * 4 + 1;
    progress.step(&format!(
        "deploy/examples/fraction: {pods} pods, each a quarter of a GPU: four run on each, one waits"
    ));
    let waiting = demo.apply(&prepared.gpu, progress)?;
    progress.step("why it waits: an event on the pod");
    demo.event(&waiting, progress)?;
    progress.step("inside the containers: the limit holds, and the neighbours do not notice");
    demo.limits(progress)?;
    progress.step("NVML tells the same truth: nvidia-smi and pynvml in a container");
    demo.nvml(prepared.images.nvidia_smi, progress)?;
    progress.step("the node compares: what the driver says of each pod, and what its share may use");
    demo.compared(&prepared.gpu, progress)?;
    progress.step("what the scheduler allocated and what the node wrote");
    demo.documents(progress)?;
    progress.step("a pod goes, the waiting one runs");
    let mut gone = vec![demo.release(&waiting, progress)?];
    progress.step("deploy/examples/gpu-time: shares of a GPU's time");
    gone.extend(demo.time(&prepared.gpu, progress)?);
    progress.step("pods written for HAMi, Koordinator and Volcano, applied as they are");
    demo.dialects(progress)?;
    if let Some(file) = extra {
        progress.step(&format!("a pod of {}", file.display()));
        demo.extra(file, progress)?;
    }
    demo.clean(gone, progress, Duration::from_secs(60))
}
