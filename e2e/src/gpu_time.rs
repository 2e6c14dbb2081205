//! Runs the example of GPU time shares, and measures each pod's percentage of its GPU's time. Each pod counts its own
//! kernels.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::Value;

use crate::kube::Kube;
use crate::wait::wait;
use crate::{patience, workload};

/// Tolerance in percentage points; the test machine is shared. docs/compute-accuracy.md has the limiter's errors.
const TOLERANCE: f64 = 12.0;

/// Replaces all pods by those of `text`; its pods `thirty` and `seventy` must share a GPU. The scheduler may still
/// see claims that the API server has just deleted, and then choose two GPUs, so this tries again.
pub fn on_one_gpu(kube: &Kube<'_>, text: &str, limit: Duration) -> Result<()> {
    const TRIES: u32 = 3;
    let mut devices = (None, None);
    for _ in 0..TRIES {
        kube.run(&["delete", "pods", "--all", &patience::timeout(limit)])?;
        // Kubernetes deletes their claims later. Until then the first GPU may have no room for both pods.
        wait(limit, "the claims of the pods to be deleted", || {
            let claims = kube.get(&["resourceclaims"])?;
            Ok(claims["items"].as_array().is_some_and(Vec::is_empty).then_some(()))
        })?;
        kube.apply(text)?;
        for pod in ["thirty", "seventy"] {
            kube.wait_running(pod, limit)?;
        }
        let shares = workload::shares(kube)?;
        let device = |pod| {
            let share = shares.iter().find(|share| share.pod == pod);
            share.and_then(|share| share.device.clone())
        };
        devices = (device("thirty"), device("seventy"));
        if devices.0.is_some() && devices.0 == devices.1 {
            return Ok(());
        }
    }
    bail!(
        "the pods of 30 and 70 cores are on {:?} and {:?} instead of on one GPU, {TRIES} times",
        devices.0,
        devices.1
    )
}

/// Keeps the GPU busy in these pods at once, and returns each pod's percentage of its time. Fails if one did not get
/// its cores.
pub fn divided(kube: &Kube<'_>, wanted: &[(&str, f64)], seconds: u32) -> Result<Vec<f64>> {
    let pods: Vec<&str> = wanted.iter().map(|(pod, _)| *pod).collect();
    let found = of_pods(kube, &pods, seconds)?;
    let mut both = found.iter().zip(wanted);
    ensure!(
        !both.any(|(percent, (_, cores))| (percent - cores).abs() > TOLERANCE),
        "pods with {wanted:?} cores had {found:?} percent of the GPU's time"
    );
    Ok(found)
}

/// The same for a single pod that is capped at its cores.
pub fn capped(kube: &Kube<'_>, pod: &str, cores: f64, seconds: u32) -> Result<f64> {
    Ok(divided(kube, &[(pod, cores)], seconds)?[0])
}

/// Keeps the GPU busy in these pods at once, and returns each pod's percentage of its time.
pub fn of_pods(kube: &Kube<'_>, pods: &[&str], seconds: u32) -> Result<Vec<f64>> {
    let seconds = seconds.to_string();
    let said: Vec<Result<String>> = thread::scope(|scope| {
        let runs: Vec<_> = pods
            .iter()
            .map(|pod| scope.spawn(|| kube.exec(pod, &["vgpu-client", "work", &seconds])))
            .collect();
        runs.into_iter()
            .map(|run| run.join().unwrap_or_else(|_| Err(anyhow!("a thread failed"))))
            .collect()
    });
    pods.iter().zip(said).map(|(pod, said)| percent(pod, &said?)).collect()
}

fn percent(pod: &str, said: &str) -> Result<f64> {
    let line: Value = serde_json::from_str(said).with_context(|| format!("{pod} said {said:?}"))?;
    line["percent"].as_f64().with_context(|| format!("{pod} said {said:?}"))
}
