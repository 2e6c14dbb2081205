//! The documented examples, as their README tells a user to run them.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use vgpu_e2e::{install, node, workload};

use crate::shared::{self, LIMIT, Test};

pub(crate) const TESTS: &[Test] = &[
    ("example_fraction_four_a_gpu_and_the_ninth_waits", fraction),
    ("example_fraction_has_a_readme_that_names_its_manifests", readme),
];

fn fraction() -> Result<()> {
    shared::in_namespace("example-fraction", |installed, kube| {
        kube.apply(&workload::manifests(&install::example("fraction"))?)?;
        let room = installed.gpus.len() * 4;
        let (running, pending) = workload::settle(kube, room, 1, LIMIT)?;
        let shares = workload::shares(kube)?;
        for (device, pods) in workload::by_device(&shares) {
            if pods.len() != 4 {
                bail!("{device} has {} pods instead of four", pods.len());
            }
        }
        for pod in &running {
            let line: Value = serde_json::from_str(&kube.exec(pod, &["vgpu-client", "check"])?)?;
            if line["total"].as_u64() != install::bytes("20Gi") {
                bail!("{pod} sees {} instead of 20Gi", line["total"]);
            }
        }
        for share in shares.iter().filter(|share| share.device.is_some()) {
            let claim = kube.get(&["resourceclaim", &share.claim])?;
            let result = &claim["status"]["allocation"]["devices"]["results"][0];
            let share_id = result["shareID"].as_str().context("an allocation without shareID")?;
            let (path, text) = node::cdi_spec(&installed.cluster, &share.claim_uid)?;
            if !text.contains(share_id) {
                bail!("{path} does not name the share {share_id}");
            }
        }
        kube.run(&["delete", "pod", &running[0], "--wait=false"])?;
        kube.wait_running(&pending[0], LIMIT)
    })
}

fn readme() -> Result<()> {
    let folder = install::example("fraction");
    let text =
        std::fs::read_to_string(folder.join("README.md")).context("deploy/examples/fraction has no README.md")?;
    for entry in std::fs::read_dir(&folder)?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".yaml") && !text.contains(&name) && !text.contains("deploy/examples/fraction") {
            bail!("README.md does not say what to do with {name}");
        }
    }
    Ok(())
}
