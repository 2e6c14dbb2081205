//! The example of shares of a GPU's time while it runs: what part of its GPU's time a pod has, by its own count.

use std::thread;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use crate::kube::Kube;

/// By how many points a pod's part may be wrong here: the machine has other things to do. docs/compute-accuracy.md has the
/// errors.
const TOLERANCE: f64 = 12.0;

/// Keeps the GPU busy in these pods at once, and returns the percent of its time that each had. An error if one did not
/// have its cores.
pub fn divided(kube: &Kube<'_>, wanted: &[(&str, f64)], seconds: u32) -> Result<Vec<f64>> {
    let pods: Vec<&str> = wanted.iter().map(|(pod, _)| *pod).collect();
    let found = of_pods(kube, &pods, seconds)?;
    let mut both = found.iter().zip(wanted);
    if both.any(|(percent, (_, cores))| (percent - cores).abs() > TOLERANCE) {
        bail!("pods with {wanted:?} cores had {found:?} percent of the GPU's time");
    }
    Ok(found)
}

/// The same for a pod that is capped at its cores, alone.
pub fn capped(kube: &Kube<'_>, pod: &str, cores: f64, seconds: u32) -> Result<f64> {
    Ok(divided(kube, &[(pod, cores)], seconds)?[0])
}

/// Keeps the GPU busy in these pods at once, and returns the percent of its time that each had.
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
