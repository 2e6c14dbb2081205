//! The plugin is killed while it makes or destroys an instance. The driver is slow, so that the kill comes between two steps.
//! Afterwards NVML lists the instances of claims, and no other ones.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use vgpu_e2e::kube::Kube;

use super::nvml::OfChart;
use super::pods::{claim, delete, whole_of};
use crate::shared::LIMIT;
use crate::{plugins, size};

/// The GPU of this scene, which no other scene uses at that time.
const GPU: u64 = 1;
const PROFILE: &str = "1g.20gb";
const POD: &str = "cut";

/// The step before which the plugin is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    Instance,
    ComputeInstance,
    /// The record with the ids.
    Ids,
    EndOfComputeInstance,
    EndOfInstance,
    EndOfRecord,
}

/// Those of a short run are the first ones.
const CUTS: [Cut; 6] = [
    Cut::ComputeInstance,
    Cut::EndOfInstance,
    Cut::Instance,
    Cut::Ids,
    Cut::EndOfComputeInstance,
    Cut::EndOfRecord,
];

impl Cut {
    /// `slow`: each act begins 4 s after its call. `late`: each call returns 4 s after its act.
    fn control(self) -> String {
        let word = match self {
            Self::Instance | Self::EndOfComputeInstance => "slow",
            _ => "late",
        };
        format!("{word} {GPU} 4000\n")
    }

    fn is_at_the_end(self) -> bool {
        matches!(
            self,
            Self::EndOfComputeInstance | Self::EndOfInstance | Self::EndOfRecord
        )
    }

    /// Returns true if the plugin is between the two steps. `record`: the text of the instance's record. `listed`: the instance
    /// as NVML lists it.
    fn is_now(self, record: Option<&str>, listed: Option<&str>) -> bool {
        let has_compute = listed.map(|one| one.contains('+'));
        let is_unused = record.is_some_and(|text| text.contains(r#""claims":[]"#));
        match self {
            Self::Instance => record.is_some() && listed.is_none(),
            Self::ComputeInstance => has_compute == Some(false),
            Self::Ids => has_compute == Some(true) && record.is_some_and(|text| text.contains("making")),
            Self::EndOfComputeInstance => has_compute == Some(true) && is_unused,
            Self::EndOfInstance => has_compute == Some(false) && is_unused,
            Self::EndOfRecord => listed.is_none() && is_unused,
        }
    }
}

/// Kills the plugin between some steps, or between all in a full run.
pub(super) fn between_steps(gpus: OfChart<'_>, kube: &Kube<'_>) -> Result<()> {
    let count = size::of(
        "kills of the plugin while it makes or destroys an instance:",
        2,
        CUTS.len(),
    );
    for cut in &CUTS[..count] {
        let done = killed(gpus, kube, *cut).and_then(|()| gpus.agrees(kube));
        done.with_context(|| format!("{cut:?}"))?;
    }
    Ok(())
}

fn killed(gpus: OfChart<'_>, kube: &Kube<'_>, cut: Cut) -> Result<()> {
    let wanted = claim(POD, &whole_of(PROFILE, GPU));
    let before = plugins::uids(gpus.cluster)?;
    if cut.is_at_the_end() {
        kube.apply(&wanted)?;
        kube.wait_running(POD, LIMIT)?;
        gpus.control(&cut.control())?;
        kube.run(&["delete", "pod", POD, "--wait=false"])?;
    } else {
        gpus.control(&cut.control())?;
        kube.apply(&wanted)?;
    }
    let reached = until_now(gpus, cut);
    plugins::kill(gpus.cluster)?;
    gpus.control("")?;
    reached?;
    // Kubelet would start the container of a plugin that is killed often only after a while.
    plugins::replace(gpus.cluster)?;
    plugins::settle(gpus.cluster, &before)?;
    // The claim of a Prepare that was cut is not prepared, and kubelet tries again only after a minute.
    delete(kube, &[POD])
}

/// Waits until the plugin is between the two steps. Looks more often than other waits, because it stays there for 4 s.
fn until_now(gpus: OfChart<'_>, cut: Cut) -> Result<()> {
    let deadline = Instant::now() + vgpu_e2e::patience::stretched(LIMIT);
    loop {
        let listed = gpus.instances()?;
        let listed = listed.iter().find(|one| one.starts_with(&format!("{GPU} ")));
        let records = gpus.records()?;
        let mut texts = records.iter().filter_map(|file| std::fs::read_to_string(file).ok());
        let record = texts.find(|text| text.contains(PROFILE));
        if cut.is_now(record.as_deref(), listed.map(String::as_str)) {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "NVML lists {listed:?}, and the record is {record:?}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}
