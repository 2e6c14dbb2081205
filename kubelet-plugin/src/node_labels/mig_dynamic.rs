//! Chooses the value of `mig.dynamic` for this node: that of its label `dra.vgpu/mig-dynamic`, else the chart's.
//!
//! The value is chosen at the start, because pools and records depend on it. If another one holds later, the plugin ends in order,
//! and kubelet starts it again.
//!
//! Failure modes:
//! - The label has another word than the chart's values, or the node's name is too long for the pools of such GPUs: the chart's
//!   value holds, with a remark in the log and in the VgpuNode.
//! - Claims made instances on this node or switched a GPU's mode, by their records, and a value is to hold that allows less: the
//!   plugin goes on serving them, also after a restart, and ends once the last such record is gone. Otherwise these instances would
//!   be published as an administrator's, nobody would destroy them, and the mode would stay on. New claims get instances meanwhile,
//!   so the remark says to drain the node. A damaged record counts as one.
//! - A former plugin makes an instance while this one has started with a value that does not serve it, as in a rolling update: the
//!   records say so within [`CHECKED_EVERY`], and this one starts again.
//! - The API server cannot be reached at the start: the chart's value holds, or what the records need, until the labels are listed. Nothing is published before, and no claim can be read, so nothing that depends on the value is promised; faults
//!   and health of the devices of the label's value are not reported to kubelet meanwhile.
//! - The records cannot be listed: a start takes it that there are none, and a plugin that serves instances goes on.
//! - Connections stay open at the end: `run` ends the process all the same.

use super::{LISTED_WITHIN, Labels, MIG_DYNAMIC as LABEL, Seen};
use crate::config::{self, Config, MigDynamic};
use clap::ValueEnum as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::watch;
use vgpu_mig::Folder;
use vgpu_mig::records::{Records, Switched};
use vgpu_quantity::quoted;

/// How often the records are read.
const CHECKED_EVERY: Duration = Duration::from_secs(10);

/// The flags on which the choice depends.
#[derive(Clone, Debug)]
struct Setting {
    node: String,
    chart: MigDynamic,
    /// The folder of the records of instances that claims made.
    records: PathBuf,
}

/// The value that holds on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Choice {
    value: MigDynamic,
    /// Why another value than the one asked for applies, or what is wrong with the label.
    remark: Option<String>,
}

/// The records of instances that claims made and of modes that they switched.
#[derive(Debug, Default)]
struct Made {
    /// The least value that serves them.
    needs: MigDynamic,
    /// A name for each instance and each switched mode.
    names: Vec<String>,
}

/// Follows the label while the plugin runs.
pub(crate) struct Follower {
    setting: Setting,
    /// The value with which the plugin started.
    running: MigDynamic,
    seen: Seen,
    remark: watch::Sender<Option<String>>,
    is_decided: watch::Sender<bool>,
}

/// The results of a [`Follower`], for other tasks.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    /// Why another value than the one asked for applies, or what is wrong with the label.
    pub(crate) remark: watch::Receiver<Option<String>>,
    /// Becomes true once the labels are listed and the plugin goes on with its value.
    pub(crate) is_decided: watch::Receiver<bool>,
}

// === impl Setting ===

impl Setting {
    fn new(config: &Config) -> Self {
        Self {
            node: config.node_name.clone(),
            chart: config.mig_dynamic,
            records: config.mig_records.clone(),
        }
    }

    /// Chooses the value at the start. `labels`: None if they are not known.
    fn at_start(&self, labels: Option<&Labels>) -> Choice {
        let made = made(&self.records).unwrap_or_else(|error| {
            tracing::warn!("cannot read the records of claims' instances: {error}; starting as if there were none; check the node's disks");
            Made::default()
        });
        self.choose(labels, &made)
    }

    fn choose(&self, labels: Option<&Labels>, made: &Made) -> Choice {
        let (wanted, said_by, remark) = self.wanted(labels);
        let Some(first) = made.names.first().filter(|_| wanted < made.needs) else {
            return Choice { value: wanted, remark };
        };
        let (count, wanted, needs) = (made.names.len(), name(wanted), name(made.needs));
        let held = format!(
            "mig.dynamic is {wanted} by {said_by}, and stays {needs} while claims have instances on this node or leave some to be \
             destroyed ({count}, such as {first}); drain the node to end that"
        );
        Choice {
            value: made.needs,
            remark: Some(remark.into_iter().chain([held]).collect::<Vec<_>>().join("; ")),
        }
    }

    /// The value, who says it, and what is wrong with the label.
    fn wanted(&self, labels: Option<&Labels>) -> (MigDynamic, String, Option<String>) {
        let chart = |remark| (self.chart, "the chart".to_owned(), remark);
        let holds = format!("the chart's mig.dynamic {} holds", name(self.chart));
        let Some(labels) = labels else {
            let silent = format!(
                "the API server has not listed this node within {} s, so its label {LABEL} is not known: {holds} until then, and \
                 nothing is published",
                LISTED_WITHIN.as_secs()
            );
            return chart(Some(silent));
        };
        let Some(text) = &labels.mig_dynamic else {
            return chart(None);
        };
        let label = format!("the node's label {LABEL}");
        let Ok(value) = MigDynamic::from_str(text, false) else {
            let values: Vec<String> = MigDynamic::value_variants().iter().map(|value| name(*value)).collect();
            let (text, values) = (quoted(text), values.join(", "));
            return chart(Some(format!(
                "{label} is {text}, which is none of {values}; correct or remove it; until then {holds}"
            )));
        };
        match config::check_pool_names(&self.node, value) {
            Ok(()) => (value, label, None),
            Err(error) => chart(Some(format!(
                "{label} is {text}, which this node cannot use: {error}; remove it; until then {holds}"
            ))),
        }
    }
}

// === impl Follower ===

impl Follower {
    /// Chooses the value at the start, and sets it in `config`.
    pub(crate) async fn start(config: &mut Config, seen: Seen) -> Self {
        let setting = Setting::new(config);
        let choice = setting.at_start(super::first(&seen).await.as_ref());
        config.mig_dynamic = choice.value;
        let remark = watch::Sender::new(None);
        note(&remark, choice.remark);
        Self {
            setting,
            running: choice.value,
            seen,
            remark,
            is_decided: watch::Sender::new(false),
        }
    }

    pub(crate) fn said(&self) -> Said {
        Said {
            remark: self.remark.subscribe(),
            is_decided: self.is_decided.subscribe(),
        }
    }

    /// Returns the reason once the plugin must start again.
    pub(crate) async fn run(mut self) -> String {
        loop {
            let Ok(labels) = self.seen.wait_for(Option::is_some).await.map(|labels| labels.clone()) else {
                return std::future::pending().await;
            };
            // Also without a change: a former plugin that still works may make an instance after this one has started.
            let made = self.made().await;
            let choice = self.setting.choose(labels.as_ref(), &made);
            if choice.value != self.running {
                let (_, said_by, _) = self.setting.wanted(labels.as_ref());
                let why = || format!("mig.dynamic is {} by {said_by}", name(choice.value));
                let why = choice.remark.unwrap_or_else(why);
                return format!("{why}; this plugin started with {}", name(self.running));
            }
            note(&self.remark, choice.remark);
            self.is_decided.send_replace(true);
            tokio::select! {
                changed = self.seen.changed() => if changed.is_err() { return std::future::pending().await },
                () = tokio::time::sleep(CHECKED_EVERY) => {}
            }
        }
    }

    /// Reads the records on another thread: a disk that hangs stops nothing else.
    async fn made(&self) -> Made {
        let folder = self.setting.records.clone();
        let read = tokio::task::spawn_blocking(move || made(&folder)).await;
        let read = read.unwrap_or_else(|error| Err(error.to_string()));
        read.unwrap_or_else(|error| Made {
            needs: self.running,
            names: vec![format!("records that cannot be read: {error}; check the node's disks")],
        })
    }
}

/// Sets the remark, and logs it if it is new.
fn note(to: &watch::Sender<Option<String>>, remark: Option<String>) {
    to.send_if_modified(|known| {
        let is_new = *known != remark;
        if let Some(remark) = remark.as_ref().filter(|_| is_new) {
            tracing::warn!("{remark}");
        }
        *known = remark;
        is_new
    });
}

/// Reads the records of what claims did.
fn made(folder: &Path) -> Result<Made, String> {
    let records = Records::read(&Folder::new(folder.to_owned())).map_err(|error| error.to_string())?;
    let damaged = records.damaged.iter().map(|(file, _)| file);
    let is_mode = |file: &&String| Switched::gpu_of_file(file).is_some();
    let needs = if !records.switched.is_empty() || damaged.clone().any(|file| is_mode(&file)) {
        MigDynamic::Modes
    } else if !records.instances.is_empty() || !records.damaged.is_empty() {
        MigDynamic::Instances
    } else {
        MigDynamic::Off
    };
    let switched = records.switched.iter();
    let switched = switched.map(|switched| format!("the MIG mode of GPU {}", switched.gpu));
    let damaged = damaged.map(|file| format!("the damaged record {file}"));
    let names = records.instances.values().map(ToString::to_string);
    let names = names.chain(switched).chain(damaged);
    Ok(Made {
        needs,
        names: names.collect(),
    })
}

/// The value as the chart and the label have it.
fn name(value: MigDynamic) -> String {
    let known = value.to_possible_value();
    known.map_or_else(String::new, |value| value.get_name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Events, node};
    use super::*;
    use kube::runtime::watcher::Event;
    use std::collections::BTreeSet;
    use vgpu_mig::Record;
    use vgpu_mig::records::Stage;
    use vgpu_node::gpus::Placement;

    /// A folder of records.
    struct Rig(tempfile::TempDir);

    impl Rig {
        fn new() -> Self {
            Self(tempfile::tempdir().expect("a folder"))
        }

        fn setting(&self, chart: MigDynamic) -> Setting {
            Setting {
                node: "n1".into(),
                chart,
                records: self.0.path().join("mig"),
            }
        }

        /// Records an instance of a claim. Returns its record.
        fn make(&self) -> Record {
            let record = Record {
                boot: "b".into(),
                gpu: "GPU-3f8a1c20-0000-0000-0000-000000000000".into(),
                profile: 9,
                profile_name: "3g.40gb".into(),
                placement: Placement { start: 4, size: 4 },
                claims: BTreeSet::from(["u1".into()]),
                stage: Stage::Absent,
            };
            record.save(&self.folder(), false).expect("written");
            record
        }

        fn folder(&self) -> Folder {
            Folder::new(self.0.path().join("mig"))
        }

        fn destroy(&self, record: &Record) {
            use vgpu_mig::Store as _;
            self.folder().remove(&record.key().file()).expect("removed");
        }
    }

    fn labels(value: Option<&str>) -> Labels {
        let label = value.map(|value| (LABEL, value));
        Labels::of(&node(label.as_slice()))
    }

    const OFF: MigDynamic = MigDynamic::Off;
    const INSTANCES: MigDynamic = MigDynamic::Instances;

    #[test]
    fn the_label_overrides_the_chart_and_without_it_nothing_changes() {
        let rig = Rig::new();
        for chart in [OFF, INSTANCES] {
            for (value, expected) in [(None, chart), (Some("off"), OFF), (Some("instances"), INSTANCES)] {
                let choice = rig.setting(chart).at_start(Some(&labels(value)));
                assert_eq!((choice.value, choice.remark), (expected, None), "{value:?}");
            }
        }
    }

    #[test]
    fn a_label_that_cannot_hold_leaves_the_charts_value_and_says_why() {
        let rig = Rig::new();
        for wrong in ["on", "Instances", "", "instances "] {
            let choice = rig.setting(INSTANCES).at_start(Some(&labels(Some(wrong))));
            assert_eq!(choice.value, INSTANCES);
            let said = choice.remark.expect("a remark");
            for part in [
                LABEL,
                &format!("{wrong:?}"),
                "off, instances, modes",
                "chart's mig.dynamic instances holds",
            ] {
                assert!(said.contains(part), "{said}");
            }
        }
        let mut setting = rig.setting(OFF);
        setting.node = "n".repeat(238);
        let choice = setting.at_start(Some(&labels(Some("instances"))));
        assert_eq!(choice.value, OFF);
        let said = choice.remark.expect("a remark");
        assert!(
            said.contains("has 238 characters") && said.contains("mig.dynamic off holds"),
            "{said}"
        );
    }

    #[test]
    fn an_api_server_that_is_silent_at_the_start_leaves_the_charts_value_unless_claims_have_instances() {
        let rig = Rig::new();
        for chart in [OFF, INSTANCES] {
            let choice = rig.setting(chart).at_start(None);
            assert_eq!(choice.value, chart);
            let said = choice.remark.expect("a remark");
            assert!(
                said.contains("within 10 s") && said.contains("nothing is published"),
                "{said}"
            );
        }
        rig.make();
        let choice = rig.setting(OFF).at_start(None);
        assert_eq!(choice.value, INSTANCES, "the last one that was known");
        let said = choice.remark.expect("a remark");
        assert!(
            said.contains("within 10 s") && said.contains("3g.40gb at memory slices"),
            "{said}"
        );
    }

    #[test]
    fn off_waits_for_the_instances_of_claims_also_over_a_restart() {
        let rig = Rig::new();
        let record = rig.make();
        for (chart, value) in [(OFF, None), (INSTANCES, Some("off"))] {
            let choice = rig.setting(chart).at_start(Some(&labels(value)));
            assert_eq!(choice.value, INSTANCES);
            let said = choice.remark.expect("a remark");
            let by = value.map_or("the chart", |_| LABEL);
            assert!(
                said.contains(by) && said.contains("3g.40gb") && said.contains("drain"),
                "{said}"
            );
        }
        rig.destroy(&record);
        assert_eq!(rig.setting(OFF).at_start(Some(&labels(None))).value, OFF);
        // A start that cannot read the records takes it that there are none.
        std::fs::remove_dir_all(rig.0.path().join("mig")).expect("removed");
        std::fs::write(rig.0.path().join("mig"), "no folder").expect("written");
        assert_eq!(rig.setting(OFF).at_start(Some(&labels(None))).value, OFF);
    }

    /// A follower with a task of its own.
    struct Running {
        events: Events,
        said: Said,
        ended: tokio::task::JoinHandle<String>,
    }

    fn run(rig: &Rig, chart: MigDynamic, running: MigDynamic) -> Running {
        let events = Events::new();
        let follower = Follower {
            setting: rig.setting(chart),
            running,
            seen: events.seen.clone(),
            remark: watch::Sender::new(None),
            is_decided: watch::Sender::new(false),
        };
        Running {
            events,
            said: follower.said(),
            ended: tokio::spawn(follower.run()),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_plugin_ends_once_the_label_says_another_value() {
        let rig = Rig::new();
        let mut running = run(&rig, OFF, OFF);
        tokio::time::sleep(CHECKED_EVERY).await;
        assert!(
            !*running.said.is_decided.borrow(),
            "nothing is published before the labels are listed"
        );
        running.events.send(Ok(Event::InitApply(node(&[]))));
        running
            .said
            .is_decided
            .wait_for(|decided| *decided)
            .await
            .expect("it runs");
        running.events.send(Ok(Event::Apply(node(&[(LABEL, "wrong")]))));
        let said = running
            .said
            .remark
            .wait_for(Option::is_some)
            .await
            .expect("it runs")
            .clone();
        assert!(said.is_some_and(|said| said.contains("\"wrong\"")));
        running.events.send(Ok(Event::Apply(node(&[("another", "x")]))));
        running.said.remark.wait_for(Option::is_none).await.expect("it runs");
        running.events.send(Ok(Event::Apply(node(&[(LABEL, "instances")]))));
        let said = running.ended.await.expect("ended");
        for part in [LABEL, "is instances", "started with off"] {
            assert!(said.contains(part), "{said}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_plugin_that_started_without_the_labels_ends_before_it_publishes() {
        let rig = Rig::new();
        for (chart, value) in [(OFF, "instances"), (INSTANCES, "off")] {
            let running = run(&rig, chart, chart);
            running.events.send(Ok(Event::InitApply(node(&[(LABEL, value)]))));
            let said = running.ended.await.expect("ended");
            assert!(said.contains(&format!("is {value}")), "{said}");
            assert!(!*running.said.is_decided.borrow());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_waits_until_the_last_instance_of_a_claim_is_gone() {
        let rig = Rig::new();
        let record = rig.make();
        let mut running = run(&rig, INSTANCES, INSTANCES);
        running.events.send(Ok(Event::InitApply(node(&[(LABEL, "off")]))));
        let said = running
            .said
            .remark
            .wait_for(Option::is_some)
            .await
            .expect("it runs")
            .clone();
        assert!(said.is_some_and(|said| said.contains("stays instances") && said.contains("3g.40gb")));
        assert!(*running.said.is_decided.borrow_and_update(), "it serves them meanwhile");
        tokio::time::sleep(3 * CHECKED_EVERY).await;
        assert!(!running.ended.is_finished());
        rig.destroy(&record);
        let said = running.ended.await.expect("ended");
        assert!(said.contains("is off by the node's label"), "{said}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_instance_that_a_former_plugin_makes_later_has_the_plugin_start_again() {
        let rig = Rig::new();
        let mut running = run(&rig, OFF, OFF);
        running.events.send(Ok(Event::InitApply(node(&[]))));
        let decided = running.said.is_decided.wait_for(|decided| *decided).await;
        drop(decided.expect("it runs"));
        std::fs::create_dir_all(rig.0.path().join("mig")).expect("a folder");
        std::fs::write(rig.0.path().join("mig/GPU-a.9.4.json"), "{").expect("written");
        let said = running.ended.await.expect("ended");
        assert!(
            said.contains("stays instances")
                && said.contains("damaged record GPU-a.9.4.json")
                && said.contains("with off"),
            "{said}"
        );
        std::fs::write(rig.0.path().join("mig/GPU-a.mode.json"), "{").expect("written");
        let choice = rig.setting(OFF).at_start(Some(&labels(None)));
        assert_eq!(choice.value, MigDynamic::Modes);
    }

    #[tokio::test(start_paused = true)]
    async fn modes_hold_until_no_mode_is_switched_by_claims() {
        let rig = Rig::new();
        let record = rig.make();
        let switched = Switched {
            boot: "b".into(),
            gpu: record.gpu.clone(),
            whole: None,
        };
        switched.save(&rig.folder()).expect("written");
        for wanted in [OFF, INSTANCES] {
            assert_eq!(
                rig.setting(wanted).at_start(Some(&labels(None))).value,
                MigDynamic::Modes
            );
        }
        let mut running = run(&rig, INSTANCES, MigDynamic::Modes);
        running.events.send(Ok(Event::InitApply(node(&[]))));
        let remark = running.said.remark.wait_for(Option::is_some).await.expect("it runs");
        let said = remark.clone().expect("a remark");
        assert!(said.contains("is instances by the chart, and stays modes"), "{said}");
        drop(remark);
        std::fs::remove_file(rig.0.path().join("mig").join(switched.file())).expect("removed");
        let said = running.ended.await.expect("ended");
        assert!(said.contains("is instances by the chart"), "{said}");
        assert_eq!(rig.setting(OFF).at_start(Some(&labels(None))).value, INSTANCES);
    }

    #[tokio::test(start_paused = true)]
    async fn a_plugin_that_cannot_list_the_records_goes_on_serving() {
        let rig = Rig::new();
        std::fs::write(rig.0.path().join("mig"), "no folder").expect("written");
        let mut running = run(&rig, OFF, INSTANCES);
        running.events.send(Ok(Event::InitApply(node(&[]))));
        let said = running
            .said
            .remark
            .wait_for(Option::is_some)
            .await
            .expect("it runs")
            .clone();
        assert!(said.is_some_and(|said| said.contains("records that cannot be read")));
        std::fs::remove_file(rig.0.path().join("mig")).expect("removed");
        assert!(running.ended.await.expect("ended").contains("is off by the chart"));
    }
}
