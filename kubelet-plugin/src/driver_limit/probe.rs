//! On which GPUs the driver limits cgroups: found out once for each version of the driver, before a GPU is published.
//!
//! ```text
//!  GPUs ─► those that are due ─► one run of `probe` ─► an answer for each ─► known
//! ```
//!
//! How it fails: a probe that fails gives the reason for which a claim that requires the driver's limit is refused. It is
//! tried again [`SCANS_BETWEEN`] scans later, without an answer [`SCANS_AFTER_NONE`], and at once if the driver may have been replaced: its version is another one,
//! or a list of the GPUs failed meanwhile ([`Prober::ask_again`]). A driver that is known to limit cgroups and only does not
//! answer, because it hangs or the program cannot run now, keeps that answer: hooks of containers verify each limit that
//! they set. A refusal, or another version of the driver, replaces it. A GPU that hangs has no answer; the others have theirs.

use crate::driver_limit::command::{Error, Program};
use crate::publish::inventory::Gpu;
use crate::text::printable;
use std::collections::BTreeMap;
use std::time::Duration;
use vgpu_node::driver_limit::{DriverLimit, Probed};

/// Scans of the GPUs between two attempts after a refusal: ten minutes.
const SCANS_BETWEEN: u32 = 60;
/// The same after no answer: two minutes, because a claim that requires the driver's limit waits for one.
const SCANS_AFTER_NONE: u32 = 12;
/// The longest run, for all GPUs. The program ends itself within 26 s; a driver without persistence mode takes seconds to start.
const PATIENCE: Duration = Duration::from_secs(30);
const LONGEST_REASON: usize = 600;

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

    /// Returns who limits cgroups on these GPUs, by UUID. May block for [`PATIENCE`].
    pub(crate) fn of(&mut self, gpus: &[Gpu]) -> BTreeMap<String, DriverLimit> {
        let due: Vec<&Gpu> = gpus.iter().filter(|gpu| self.is_due(gpu)).collect();
        if !due.is_empty() {
            let mut answers = self.ask(&due);
            for gpu in due {
                let silent = || DriverLimit::Unknown("vgpu-driver-limit probe said nothing of it".into());
                let answer = answers.remove(&gpu.uuid).unwrap_or_else(silent);
                self.note(gpu, answer);
            }
        }
        let answer = |gpu: &Gpu| Some((gpu.uuid.clone(), self.known.get(&gpu.uuid)?.answer.clone()));
        gpus.iter().filter_map(answer).collect()
    }

    /// Has every GPU asked again: the driver may have been replaced.
    pub(crate) fn ask_again(&mut self) {
        for known in self.known.values_mut() {
            known.due = Some(0);
        }
    }

    /// Returns true if the GPU is to be asked in this scan.
    fn is_due(&mut self, gpu: &Gpu) -> bool {
        let known = self.known.get_mut(&gpu.uuid);
        let Some(known) = known.filter(|known| known.driver_version == gpu.driver_version) else {
            return true;
        };
        known.due = known.due.map(|due| due.saturating_sub(1));
        known.due == Some(0)
    }

    fn note(&mut self, gpu: &Gpu, mut answer: DriverLimit) {
        let due = match answer {
            DriverLimit::Dmem | DriverLimit::Misc => None,
            DriverLimit::None(_) => Some(SCANS_BETWEEN),
            DriverLimit::Unknown(_) => Some(SCANS_AFTER_NONE),
        };
        let before = self.known.remove(&gpu.uuid);
        let same_driver = before
            .as_ref()
            .filter(|known| known.driver_version == gpu.driver_version);
        if let DriverLimit::Unknown(why) = &answer
            && let Some(kept) = same_driver.filter(|known| known.answer.is_kept())
        {
            tracing::warn!(
                gpu = gpu.uuid,
                "whether the driver still limits cgroups is not known, so it counts as before: {why}"
            );
            answer = kept.answer.clone();
        }
        if before.is_none_or(|before| before.answer != answer) {
            match &answer {
                DriverLimit::Dmem | DriverLimit::Misc => {
                    tracing::info!(gpu = gpu.uuid, by = answer.name(), "the driver limits cgroups here");
                }
                DriverLimit::None(why) => {
                    tracing::info!(
                        gpu = gpu.uuid,
                        "the driver limits no cgroups here, so the library limits alone: {why}"
                    );
                }
                DriverLimit::Unknown(why) => {
                    tracing::warn!(
                        gpu = gpu.uuid,
                        "whether the driver limits cgroups here is not known, so the library limits alone: {why}"
                    );
                }
            }
        }
        let driver_version = gpu.driver_version.clone();
        self.known.insert(
            gpu.uuid.clone(),
            Known {
                driver_version,
                answer,
                due,
            },
        );
    }

    /// Asks once, and returns the answers by UUID.
    fn ask(&self, gpus: &[&Gpu]) -> BTreeMap<String, DriverLimit> {
        let for_all = |answer: &DriverLimit| gpus.iter().map(|gpu| (gpu.uuid.clone(), answer.clone())).collect();
        let program = match (self.program)() {
            Ok(program) => program,
            Err(why) => return for_all(&DriverLimit::Unknown(why)),
        };
        let arguments = program.driver().probe(gpus.iter().map(|gpu| gpu.uuid.as_str()));
        match program.run(&arguments, PATIENCE) {
            Ok(said) => said.lines().filter_map(answer).collect(),
            Err(error) => {
                let why = printable(
                    error.to_string().trim_start_matches("vgpu-driver-limit: "),
                    LONGEST_REASON,
                );
                for_all(&match error {
                    Error::Refused(_) => DriverLimit::None(why),
                    Error::Unanswered(_) | Error::NoAnswer { .. } | Error::Blind(_) => DriverLimit::Unknown(why),
                })
            }
        }
    }
}

/// The answer in a line for one GPU. None, and a line in the log: it is no answer.
fn answer(line: &str) -> Option<(String, DriverLimit)> {
    let Probed { gpu, driver_limit } = match serde_json::from_str(line) {
        Ok(probed) => probed,
        Err(error) => {
            tracing::warn!(
                "vgpu-driver-limit probe said {:?}: {error}",
                printable(line, LONGEST_REASON)
            );
            return None;
        }
    };
    let said = |why: String| printable(&why, LONGEST_REASON);
    let answer = match driver_limit {
        DriverLimit::None(why) => DriverLimit::None(said(why)),
        DriverLimit::Unknown(why) => DriverLimit::Unknown(said(why)),
        kept => kept,
    };
    Some((gpu, answer))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::driver_limit::command::tests::script;
    use crate::publish::inventory::tests::gpu;

    /// A prober whose program writes a line `asked` for each run, and answers for each GPU with the JSON in the file `said`, or
    /// else in the file with the GPU's UUID. `exit N: why`: the run ends so.
    struct Asked {
        dir: tempfile::TempDir,
        prober: Prober,
    }

    impl Asked {
        fn new() -> Self {
            let (dir, program) = script(
                "cd \"$(dirname \"$0\")\"; echo \"$*\" >> asked; while [ $# -gt 0 ]; do\n\
                 [ \"$1\" = --gpu ] && { f=said; [ -e \"$2\" ] && f=$2; read -r said < $f; case $said in\n\
                 exit*) echo \"vgpu-driver-limit: ${said#*: }\" >&2; n=${said#exit }; exit ${n%%:*};;\n\
                 text*) echo \"$said\";; *) echo \"{\\\"gpu\\\":\\\"$2\\\",\\\"driverLimit\\\":$said}\";; esac; }; shift; done",
            );
            Self {
                dir,
                prober: Prober::new(Box::new(move || Ok(program.clone()))),
            }
        }

        fn say(&self, text: &str) {
            self.say_of("said", text);
        }

        fn say_of(&self, file: &str, text: &str) {
            std::fs::write(self.dir.path().join(file), format!("{text}\n")).expect("written");
        }

        /// How many GPUs each run so far was asked about.
        fn runs(&self) -> Vec<usize> {
            let text = std::fs::read_to_string(self.dir.path().join("asked")).unwrap_or_default();
            text.lines().map(|line| line.matches("--gpu").count()).collect()
        }

        /// Has the driver asked again, and returns the answer for the first GPU.
        fn again(&mut self) -> DriverLimit {
            self.prober.ask_again();
            self.first()
        }

        fn first(&mut self) -> DriverLimit {
            self.prober.of(&[gpu(0)])[&gpu(0).uuid].clone()
        }
    }

    #[test]
    fn all_gpus_are_asked_in_one_run_and_again_after_the_driver_was_replaced() {
        let mut asked = Asked::new();
        asked.say("\"dmem\"");
        for _ in 0..3 {
            assert_eq!(asked.prober.of(&[gpu(0), gpu(1)])[&gpu(1).uuid], DriverLimit::Dmem);
        }
        assert_eq!(asked.runs(), [2]);
        asked.say("\"misc\"");
        let replaced = Gpu {
            driver_version: "999.1".into(),
            ..gpu(0)
        };
        let answers = asked.prober.of(&[replaced, gpu(1)]);
        assert_eq!(answers[&gpu(0).uuid], DriverLimit::Misc);
        assert_eq!(answers[&gpu(1).uuid], DriverLimit::Dmem);
        assert_eq!(asked.runs(), [2, 1]);
        asked.prober.ask_again();
        assert_eq!(asked.prober.of(&[gpu(1)])[&gpu(1).uuid], DriverLimit::Misc);
    }

    #[test]
    fn a_gpu_without_an_answer_takes_nothing_from_the_others() {
        let mut asked = Asked::new();
        asked.say("\"dmem\"");
        for (said, why) in [
            ("{\"unknown\":\"NVML does not answer\"}", "NVML does not answer"),
            ("{\"unknown\":\"a\\u001b[31m\"}", "a [31m"),
            ("text", "said nothing of it"),
            ("\"perhaps\"", "said nothing of it"),
            ("{\"none\":7}", "said nothing of it"),
        ] {
            asked.prober.known.clear();
            asked.say_of(&gpu(1).uuid, said);
            let answers = asked.prober.of(&[gpu(0), gpu(1)]);
            assert_eq!(answers[&gpu(0).uuid], DriverLimit::Dmem, "{said}");
            let DriverLimit::Unknown(found) = &answers[&gpu(1).uuid] else {
                panic!("{said}: {answers:?}")
            };
            assert!(found.contains(why), "{said}: {found}");
        }
    }

    #[test]
    fn a_limit_that_is_known_outlives_a_probe_without_answer_and_no_refusal() {
        let mut asked = Asked::new();
        asked.say("\"dmem\"");
        assert_eq!(asked.first(), DriverLimit::Dmem);
        for silent in [
            "{\"unknown\":\"it hangs\"}",
            "exit 3: it hangs",
            "exit 127: no loader",
            "text",
        ] {
            asked.say(silent);
            assert_eq!(asked.again(), DriverLimit::Dmem, "{silent}");
        }
        // Another driver has to answer for itself.
        let replaced = Gpu {
            driver_version: "999.1".into(),
            ..gpu(0)
        };
        assert!(matches!(
            asked.prober.of(&[replaced])[&gpu(0).uuid],
            DriverLimit::Unknown(_)
        ));
        for refusal in ["{\"none\":\"no cgroup v2\"}", "exit 1: no cgroup v2"] {
            asked.say("\"dmem\"");
            assert_eq!(asked.again(), DriverLimit::Dmem);
            asked.say(refusal);
            assert_eq!(asked.again(), DriverLimit::None("no cgroup v2".into()));
        }
    }

    #[test]
    fn a_refusal_is_kept_with_its_reason_and_tried_again_later() {
        let mut asked = Asked::new();
        asked.say("exit 1: no cgroup v2");
        let refused = DriverLimit::None("no cgroup v2".into());
        assert_eq!(asked.first(), refused);
        asked.say("\"dmem\"");
        for _ in 1..SCANS_BETWEEN {
            assert_eq!(asked.first(), refused);
        }
        assert_eq!(asked.first(), DriverLimit::Dmem);
        let mut nowhere = Prober::new(Box::new(|| Err("no hostPID".into())));
        assert_eq!(
            nowhere.of(&[gpu(0)])[&gpu(0).uuid],
            DriverLimit::Unknown("no hostPID".into())
        );
    }
}
