//! On which GPUs the driver limits cgroups: found out once for each version of the driver, before a GPU is published.
//!
//! How it fails: a probe that fails gives the reason for which a claim that requires the driver's limit is refused. It is
//! tried again [`SCANS_BETWEEN`] scans later, and at once after the driver has been replaced: its version is another one,
//! or a list of the GPUs failed meanwhile ([`Prober::forget`]). Until a new answer is there, the old one holds
//! (`publish::gpus::published`): hooks of containers verify each limit that they set.

use crate::driver_limit::command::{Error, Program};
use crate::publish::inventory::Gpu;
use std::collections::BTreeMap;
use std::time::Duration;
use vgpu_node::gpus::DriverLimit;

/// Scans of the GPUs between two attempts: ten minutes.
const SCANS_BETWEEN: u32 = 60;
/// A driver without persistence mode takes seconds to start.
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns the program of the current release, or why it cannot be run where hooks run.
pub(crate) type GetProgram = Box<dyn Fn() -> Result<Program, String> + Send>;

/// Asks the driver, and keeps its answers.
pub(crate) struct Prober {
    program: GetProgram,
    /// By UUID.
    known: BTreeMap<String, Known>,
}

struct Known {
    driver_version: String,
    answer: DriverLimit,
    /// In how many scans a GPU whose probe failed is asked again.
    due: u32,
}

// === impl Prober ===

impl Prober {
    pub(crate) fn new(program: GetProgram) -> Self {
        Self {
            program,
            known: BTreeMap::new(),
        }
    }

    /// Finds nothing out: for tests of other things.
    #[cfg(test)]
    pub(crate) fn unknown() -> Self {
        Self::new(Box::new(|| Err("not asked".into())))
    }

    /// Returns who limits cgroups on these GPUs, by UUID. May block for [`PATIENCE`] each.
    pub(crate) fn of(&mut self, gpus: &[Gpu]) -> BTreeMap<String, DriverLimit> {
        let answers = gpus.iter().map(|gpu| (gpu.uuid.clone(), self.one(gpu)));
        answers.collect()
    }

    /// Has every GPU asked again: the driver may have been replaced.
    pub(crate) fn forget(&mut self) {
        self.known.clear();
    }

    fn one(&mut self, gpu: &Gpu) -> DriverLimit {
        if let Some(known) = self.known.get_mut(&gpu.uuid)
            && known.driver_version == gpu.driver_version
        {
            known.due = known.due.saturating_sub(1);
            if known.answer.is_kept() || known.due > 0 {
                return known.answer.clone();
            }
        }
        let answer = self.ask(gpu);
        let before = self.known.insert(
            gpu.uuid.clone(),
            Known {
                driver_version: gpu.driver_version.clone(),
                answer: answer.clone(),
                due: SCANS_BETWEEN,
            },
        );
        if before.is_none_or(|before| before.answer != answer) {
            match &answer {
                DriverLimit::None(why) => {
                    tracing::info!(
                        gpu = gpu.uuid,
                        "the driver limits no cgroups here, so the library limits alone: {why}"
                    );
                }
                kept => tracing::info!(gpu = gpu.uuid, by = kept.name(), "the driver limits cgroups here"),
            }
        }
        answer
    }

    fn ask(&self, gpu: &Gpu) -> DriverLimit {
        let program = match (self.program)() {
            Ok(program) => program,
            Err(why) => return DriverLimit::None(why),
        };
        match program.run(&program.driver().probe(&gpu.uuid), PATIENCE) {
            Ok(said) => match said.trim() {
                "dmem" => DriverLimit::Dmem,
                "misc" => DriverLimit::Misc,
                other => DriverLimit::None(format!("vgpu-driver-limit probe said {other:?}, not dmem or misc")),
            },
            Err(Error::Refused(why)) => DriverLimit::None(why.trim_start_matches("vgpu-driver-limit: ").to_owned()),
            Err(error) => DriverLimit::None(error.to_string()),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::driver_limit::command::tests::script;
    use crate::publish::inventory::tests::gpu;

    /// A prober whose program answers what the file says, or refuses with that line if it begins with "no ".
    fn prober() -> (tempfile::TempDir, Prober) {
        let (dir, program) = script(
            "cd \"$(dirname \"$0\")\"; echo >> asked; read -r said < said\n\
             case $said in no*) echo \"vgpu-driver-limit: $said\" >&2; exit 1;; esac; echo \"$said\"",
        );
        (dir, Prober::new(Box::new(move || Ok(program.clone()))))
    }

    #[test]
    fn a_gpu_is_asked_once_and_again_after_the_driver_was_replaced() {
        let (dir, mut prober) = prober();
        let say = |text: &str| std::fs::write(dir.path().join("said"), format!("{text}\n")).expect("written");
        let asked = || std::fs::read(dir.path().join("asked")).map_or(0, |lines| lines.len());
        say("dmem");
        for _ in 0..3 {
            assert_eq!(prober.of(&[gpu(0), gpu(1)])[&gpu(1).uuid], DriverLimit::Dmem);
        }
        assert_eq!(asked(), 2);
        say("misc");
        let replaced = Gpu {
            driver_version: "999.1".into(),
            ..gpu(0)
        };
        let answers = prober.of(&[replaced, gpu(1)]);
        assert_eq!(answers[&gpu(0).uuid], DriverLimit::Misc);
        assert_eq!(answers[&gpu(1).uuid], DriverLimit::Dmem);
        prober.forget();
        assert_eq!(prober.of(&[gpu(1)])[&gpu(1).uuid], DriverLimit::Misc);
    }

    #[test]
    fn a_refusal_is_kept_with_its_reason_and_tried_again_later() {
        let (dir, mut prober) = prober();
        let said = dir.path().join("said");
        std::fs::write(&said, "no cgroup v2\n").expect("written");
        let refused = DriverLimit::None("no cgroup v2".into());
        assert_eq!(prober.of(&[gpu(0)])[&gpu(0).uuid], refused);
        std::fs::write(&said, "dmem\n").expect("written");
        for _ in 1..SCANS_BETWEEN {
            assert_eq!(prober.of(&[gpu(0)])[&gpu(0).uuid], refused);
        }
        assert_eq!(prober.of(&[gpu(0)])[&gpu(0).uuid], DriverLimit::Dmem);
        std::fs::write(&said, "perhaps\n").expect("written");
        prober.forget();
        let DriverLimit::None(why) = prober.of(&[gpu(0)])[&gpu(0).uuid].clone() else {
            panic!("a word that is not known");
        };
        assert!(why.contains("\"perhaps\""), "{why}");
        let mut nowhere = Prober::new(Box::new(|| Err("no hostPID".into())));
        assert_eq!(
            nowhere.of(&[gpu(0)])[&gpu(0).uuid],
            DriverLimit::None("no hostPID".into())
        );
    }
}
