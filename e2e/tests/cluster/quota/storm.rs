//! A storm: many pods in namespaces with quotas, while leaders are killed and stopped. A watch adds up every version
//! of every claim: the sum never exceeds a ceiling, and pods that fit run.

use std::collections::BTreeMap;
use std::io::Read;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Value, json};
use vgpu_e2e::kube::Kube;
use vgpu_e2e::outcome::after;
use vgpu_e2e::wait::wait;
use vgpu_e2e::{hand_made, install};

use super::namespace::set_quota;
use crate::controller::leader;
use crate::fleet::{ALL_BOUND, Fleet, Mode, QUARTER, ROOM, bound, clear, create, delete};
use crate::manifests::template;
use crate::processes::{Stopped, controller_in};
use crate::shared::{self, Installed, LIMIT};
use crate::size;
use crate::storm::end_one;

pub(super) fn on_kube_scheduler() -> Result<()> {
    storm(shared::installed()?, "quota-storm-s", Mode::Scheduler)
}

pub(super) fn in_controller_mode() -> Result<()> {
    storm(shared::controlled()?, "quota-storm-c", Mode::Settled)
}

/// The size of a storm.
#[derive(Debug, Clone, Copy)]
struct Size {
    pods: usize,
    namespaces: usize,
    /// The number of times a leader is killed or stopped.
    ends: usize,
}

const FULL: Size = Size {
    pods: 500,
    namespaces: 5,
    ends: 6,
};
const SHORT: Size = Size {
    pods: 60,
    namespaces: 3,
    ends: 2,
};

fn size() -> Size {
    Size {
        pods: size::of("pods", SHORT.pods, FULL.pods),
        namespaces: size::of("namespaces", SHORT.namespaces, FULL.namespaces),
        ends: size::of("ends of a leader", SHORT.ends, FULL.ends),
    }
}

const GI: u64 = 1 << 30;
/// Five quarters of a GPU.
const CEILING: u64 = 100 * GI;

/// Adds up each namespace's claims at every version of every claim.
struct Sums {
    child: Child,
    reader: JoinHandle<()>,
    seen: Arc<Mutex<(usize, Vec<String>)>>,
}

impl Sums {
    fn begin(kube: &Kube<'_>, of: &'static str) -> Result<Self> {
        let watch = [
            "get",
            "resourceclaims",
            "-A",
            "--watch",
            "--output-watch-events",
            "-o",
            "json",
        ];
        let mut child = kube
            .command(watch)?
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run kubectl")?;
        let output = child.stdout.take().context("kubectl has no output")?;
        let seen: Arc<Mutex<(usize, Vec<String>)>> = Arc::default();
        let own = seen.clone();
        let reader = std::thread::spawn(move || {
            let mut held: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
            let output = Promptly(std::io::BufReader::new(output));
            let events = serde_json::Deserializer::from_reader(output).into_iter::<Value>();
            for event in events.map_while(Result::ok) {
                let claim = &event["object"];
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let namespace = text(&claim["metadata"]["namespace"]);
                if !namespace.starts_with(of) {
                    continue;
                }
                let results = claim["status"]["allocation"]["devices"]["results"].as_array();
                let memory = |result: &Value| install::bytes(&text(&result["consumedCapacity"]["memory"])).unwrap_or(0);
                let memory: u64 = results.into_iter().flatten().map(memory).sum();
                let memory = if event["type"] == "DELETED" { 0 } else { memory };
                let of_namespace = held.entry(namespace.clone()).or_default();
                of_namespace.insert(text(&claim["metadata"]["uid"]), memory);
                let sum: u64 = of_namespace.values().sum();
                let mut seen = own.lock().unwrap_or_else(PoisonError::into_inner);
                seen.0 += 1;
                if sum > CEILING {
                    seen.1.push(format!("{namespace} holds {} GiB", sum / GI));
                }
            }
        });
        Ok(Self { child, reader, seen })
    }

    /// Stops. Returns the number of versions, none of which exceeded a ceiling.
    fn end(mut self) -> Result<usize> {
        let ended = self.child.try_wait()?;
        self.child.kill().ok();
        self.child.wait()?;
        self.reader.join().map_err(|_| anyhow!("the sums could not be made"))?;
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        ensure!(ended.is_none(), "the watch ended by itself: {ended:?}");
        ensure!(seen.1.is_empty(), "above the ceiling of 100 GiB: {:?}", seen.1);
        Ok(seen.0)
    }
}

/// Reads one byte at a time, so that a document is passed on when it is complete, not with the next one.
struct Promptly<R>(R);

impl<R: Read> Read for Promptly<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let one = buffer.len().min(1);
        self.0.read(&mut buffer[..one])
    }
}

fn storm(installed: &Installed, name: &'static str, mode: Mode) -> Result<()> {
    let size = size();
    let names: Vec<String> = (0..size.namespaces).map(|number| format!("{name}-{number}")).collect();
    shared::in_namespace_of(installed, name, |_, home| {
        let teams: Vec<Kube<'_>> = names.iter().map(|name| Kube::new(&installed.cluster, name)).collect();
        teams.iter().try_for_each(Kube::create_namespace)?;
        // Room for all of them, so that only the quota limits them.
        let fleet = Fleet::new(*home, name, size.pods.div_ceil(ROOM) + 1)?;
        if mode != Mode::Settled {
            fleet.turn(&fleet.nodes().collect::<Vec<_>>(), mode)?;
        }
        let outcome = storm_in(installed, &teams, &fleet, size, name);
        let cleared: Result<()> = teams.iter().try_for_each(clear);
        let deleted = teams.iter().try_for_each(Kube::delete_namespace);
        after(outcome, after(cleared, deleted))
    })
}

fn storm_in(
    installed: &Installed,
    teams: &[Kube<'_>],
    fleet: &Fleet<'_>,
    size: Size,
    name: &'static str,
) -> Result<()> {
    let project = Kube::new(&installed.cluster, install::NAME);
    for team in teams {
        team.wait_service_account(LIMIT)?;
        team.apply(&template(QUARTER, "vgpu", hand_made::quarter(), &[]))?;
        set_quota(team, &json!({"hard": {"memory": "100Gi"}}))?;
    }
    let sums = Sums::begin(&project, name)?;
    let share = size.pods / teams.len();
    let mut left: Vec<Vec<String>> = Vec::new();
    for team in teams {
        let names: Vec<String> = (0..share).map(|number| format!("p{number:04}")).collect();
        create(team, &fleet.pods(names.iter().map(String::as_str)))?;
        left.push(names);
    }
    let outcome = rounds(installed, &project, teams, &mut left, size);
    let summed = sums.end();
    outcome?;
    println!("{size:?}; {} versions of claims, none above a ceiling", summed?);
    Ok(())
}

/// As many pods as fit are bound, and no more. Then they end, and while the next ones start, a leader is killed or
/// stopped alternately. A stopped one continues when the next leader has completed a round.
fn rounds(
    installed: &Installed,
    project: &Kube<'_>,
    teams: &[Kube<'_>],
    left: &mut [Vec<String>],
    size: Size,
) -> Result<()> {
    let room = usize::try_from(CEILING / (20 * GI))?;
    let mut ended = 0;
    let mut asleep: Option<Stopped<'_>> = None;
    while left.iter().any(|names| !names.is_empty()) {
        for (team, names) in teams.iter().zip(&mut *left) {
            let expected = room.min(names.len());
            let bound = wait(ALL_BOUND, "as many pods to be bound as the quota allows", || {
                let bound = bound(team)?;
                match bound.len() {
                    many if many == expected => Ok(Some(bound)),
                    many if many > expected => bail!("{many} are bound, and {expected} fit"),
                    many => Err(anyhow!(
                        "{many} of {expected} are bound\n{}",
                        team.run(&["get", "vgpuquota", "vgpu", "-o", "yaml"])?
                    )),
                }
            })?;
            delete(team, bound.iter().map(String::as_str))?;
            names.retain(|name| !bound.contains(name));
        }
        if let Some(asleep) = asleep.take() {
            // Its liveness probe may have ended it.
            let _ = asleep.wake();
        }
        if ended == size.ends {
            continue;
        }
        match ended % 2 {
            0 => {
                let leader = wait(LIMIT, "a leader", || leader(project))?;
                asleep = Some(Stopped::stop(&installed.cluster, controller_in(installed, &leader)?)?);
                ended += 1;
            }
            // Cycles through all ways to kill it.
            _ => ended += usize::from(end_one(installed, project, ended / 2)?),
        }
    }
    ensure!(ended == size.ends, "leaders ended only {ended} times");
    Ok(())
}
