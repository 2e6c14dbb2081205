//! On which GPUs the driver limits cgroups: found out once for each version of the driver, before a GPU is published.
//!
//! How it fails: a probe that fails gives the reason for which a claim that requires the driver's limit is refused. It is
//! tried again [`SCANS_BETWEEN`] scans later, and at once if the driver may have been replaced: its version is another one,
//! or a list of the GPUs failed meanwhile ([`Prober::ask_again`]). A driver that is known to limit cgroups and only does not
//! answer, because it hangs or the program cannot run now, keeps that answer: hooks of containers verify each limit that
//! they set. A refusal, or another version of the driver, replaces it.

use crate::driver_limit::command::{Error, Program};
use crate::publish::inventory::Gpu;
use std::collections::BTreeMap;
use std::time::Duration;
use vgpu_node::gpus::DriverLimit;

/// Scans of the GPUs between two attempts: ten minutes.
const SCANS_BETWEEN: u32 = 60;
/// A driver without persistence mode takes seconds to start.
const PATIENCE: Duration = Duration::from_secs(20);
/// The program's words for a driver that hangs or ends its process (driver-limit/src/code.rs).
const NO_ANSWER: [&str; 2] = ["NVML does not answer", "the process that called NVML has ended"];

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
    /// In how many scans the GPU is asked again. None: not before the driver may have been replaced.
    due: Option<u32>,
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
    pub(crate) fn ask_again(&mut self) {
        for known in self.known.values_mut() {
            known.due = Some(0);
        }
    }

    fn one(&mut self, gpu: &Gpu) -> DriverLimit {
        let mut kept = None;
        if let Some(known) = self.known.get_mut(&gpu.uuid)
            && known.driver_version == gpu.driver_version
        {
            known.due = known.due.map(|due| due.saturating_sub(1));
            if known.due != Some(0) {
                return known.answer.clone();
            }
            kept = Some(known.answer.clone()).filter(DriverLimit::is_kept);
        }
        let asked = self.ask(gpu);
        let due = match &asked {
            Ok(answer) if answer.is_kept() => None,
            _ => Some(SCANS_BETWEEN),
        };
        let answer = match (asked, kept) {
            (Ok(answer), _) => answer,
            (Err(why), None) => DriverLimit::None(why),
            (Err(why), Some(kept)) => {
                tracing::warn!(
                    gpu = gpu.uuid,
                    "whether the driver still limits cgroups is not known, so it counts as before: {why}"
                );
                kept
            }
        };
        let before = self.known.insert(
            gpu.uuid.clone(),
            Known {
                driver_version: gpu.driver_version.clone(),
                answer: answer.clone(),
                due,
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

    /// Asks once.
    ///
    /// # Errors
    /// Why there is no answer.
    fn ask(&self, gpu: &Gpu) -> Result<DriverLimit, String> {
        let program = (self.program)()?;
        match program.run(&program.driver().probe(&gpu.uuid), PATIENCE) {
            Ok(said) => match said.trim() {
                "dmem" => Ok(DriverLimit::Dmem),
                "misc" => Ok(DriverLimit::Misc),
                other => Err(format!("vgpu-driver-limit probe said {other:?}, not dmem or misc")),
            },
            Err(Error::Refused(why)) => {
                let why = why.trim_start_matches("vgpu-driver-limit: ").to_owned();
                // The program gives up on a driver that hangs, and ends by itself.
                match NO_ANSWER.iter().any(|words| why.contains(words)) {
                    true => Err(why),
                    false => Ok(DriverLimit::None(why)),
                }
            }
            Err(error) => Err(error.to_string()),
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
        prober.ask_again();
        assert_eq!(prober.of(&[gpu(1)])[&gpu(1).uuid], DriverLimit::Misc);
    }

    #[test]
    fn a_limit_that_is_known_outlives_a_probe_without_answer_and_no_refusal() {
        let (dir, mut prober) = prober();
        let said = dir.path().join("said");
        let say = |text: &str| std::fs::write(&said, format!("{text}\n")).expect("written");
        let ask = |prober: &mut Prober| {
            prober.ask_again();
            prober.of(&[gpu(0)])[&gpu(0).uuid].clone()
        };
        say("dmem");
        assert_eq!(ask(&mut prober), DriverLimit::Dmem);
        for silent in ["no limit set: NVML does not answer", "perhaps"] {
            say(silent);
            assert_eq!(ask(&mut prober), DriverLimit::Dmem, "{silent}");
        }
        // Another driver has to answer for itself.
        let replaced = Gpu {
            driver_version: "999.1".into(),
            ..gpu(0)
        };
        assert!(matches!(prober.of(&[replaced])[&gpu(0).uuid], DriverLimit::None(_)));
        say("dmem");
        assert_eq!(ask(&mut prober), DriverLimit::Dmem);
        say("no cgroup v2");
        assert_eq!(ask(&mut prober), DriverLimit::None("no cgroup v2".into()));
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
        let DriverLimit::None(why) = prober.of(&[gpu(1)])[&gpu(1).uuid].clone() else {
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
