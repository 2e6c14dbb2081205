//! `vgpu doctor --probe`: creates a pod with a small claim, and reports the step that fails.
//!
//! ```text
//!  objects (pure) ─► template, pod ─► wait ─► step (pure): pod and events ─► it ran, or a Finding
//!                                       └─ always ─► both are deleted, and the pod has ended
//! ```
//!
//! How it fails: after a signal or an error the probe deletes what it created, and a second signal does not stop that.
//! A killed probe's objects have a label; the next probe in the namespace deletes them once they are too old to belong
//! to a running probe. The pod ends by itself anyway. The claim belongs to the pod, so Kubernetes deletes it.
#![forbid(unsafe_code)]

mod objects;
mod share;
mod step;

use std::io::Write as _;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::finding::Finding;
use super::seen::{Seen, list, text};
use crate::cluster::{self, Cluster, Kind, List, ReadError};
use crate::flags::ProbeFlags;
use objects::Plan;
pub(crate) use share::main as probe_share;

const POLL: Duration = Duration::from_millis(500);
/// How long to wait for the deleted pod to end.
const ENDS: Duration = Duration::from_secs(60);
/// Older objects of a probe are abandoned. More than the longest timeout plus the pod's end.
const LEFT_AFTER: i64 = 900;

#[derive(Debug, thiserror::Error)]
pub(super) enum ProbeError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("--image: which image has /usr/bin/vgpu? {0}")]
    Image(String),
    #[error("signals cannot be received: {0}")]
    Signals(std::io::Error),
    #[error("interrupted; the probe's pod and template are deleted")]
    Interrupted,
    #[error("{error}; delete what the probe left: kubectl -n {namespace} delete pod,resourceclaimtemplate -l {label}", label = objects::LABEL)]
    Left { namespace: String, error: ReadError },
}

pub(super) enum Outcome {
    /// The output of the probe's pod.
    Ran(String),
    Stopped(Finding),
}

pub(super) fn run(cluster: &Cluster, flags: &ProbeFlags, seen: &Seen) -> Result<Outcome, ProbeError> {
    let mut signals = cluster.wait(async { Signals::new() }).map_err(ProbeError::Signals)?;
    let plan = Plan::new(flags, cluster.namespace(), controller(cluster, flags, seen)?);
    delete_left(cluster, &plan, seen.now)?;
    // If standard error is closed, somebody may still read the answer.
    let _ = writeln!(
        std::io::stderr(),
        "vgpu doctor: waits for pod {}/{}, at most {} s",
        plan.namespace,
        plan.name,
        flags.timeout
    );
    let outcome = attempt(cluster, &plan, &mut signals);
    let deleted = [cluster::PODS, cluster::TEMPLATES].map(|kind| cluster.delete(kind, &plan.namespace, &plan.name));
    if let Some(error) = deleted.into_iter().find_map(Result::err) {
        let namespace = plan.namespace.clone();
        let left = ProbeError::Left { namespace, error };
        if matches!(outcome, Ok(Outcome::Ran(_)) | Err(ProbeError::Interrupted)) {
            return Err(left);
        }
        // The reason why the probe stopped is more important, and there may be no pod.
        let _ = writeln!(std::io::stderr(), "vgpu doctor: the probe: {left}");
    }
    match outcome? {
        Outcome::Ran(said) => Ok(ended(cluster, &plan, &mut signals)?.map_or(Outcome::Ran(said), Outcome::Stopped)),
        stopped => Ok(stopped),
    }
}

/// The controller's Deployment; its image contains the program. A Deployment that somebody else labelled like the
/// chart's is ignored: `seen` has only the chart's own; if those are not known, only the user's namespace is read.
fn controller(cluster: &Cluster, flags: &ProbeFlags, seen: &Seen) -> Result<Option<Value>, ProbeError> {
    if flags.image.is_some() {
        return Ok(None);
    }
    let own = match seen.deployments.known() {
        Some(all) => all.to_vec(),
        None => items(cluster, cluster::DEPLOYMENTS, cluster.namespace(), super::seen::OURS)?,
    };
    match &own[..] {
        [one] => Ok(Some(one.clone())),
        [] => Err(ProbeError::Image("no Deployment of the chart can be read".to_owned())),
        many => Err(ProbeError::Image(format!(
            "there are {} Deployments of the chart",
            many.len()
        ))),
    }
}

fn items(cluster: &Cluster, kind: Kind, namespace: &str, labels: &str) -> Result<Vec<Value>, ReadError> {
    let [answer] = cluster.read([List::labelled_within(kind, namespace, labels)]);
    Ok(list(&answer?, "/items").to_vec())
}

fn delete_left(cluster: &Cluster, plan: &Plan, now: i64) -> Result<(), ReadError> {
    for kind in [cluster::PODS, cluster::TEMPLATES] {
        for object in items(cluster, kind, &plan.namespace, objects::LABEL)? {
            let made = text(&object, "/metadata/creationTimestamp").parse::<jiff::Timestamp>();
            if made.is_ok_and(|made| now - made.as_second() > LEFT_AFTER) {
                cluster.delete(kind, &plan.namespace, text(&object, "/metadata/name"))?;
            }
        }
    }
    Ok(())
}

fn attempt(cluster: &Cluster, plan: &Plan, signals: &mut Signals) -> Result<Outcome, ProbeError> {
    for (kind, object) in [(cluster::TEMPLATES, plan.template()), (cluster::PODS, plan.pod())] {
        match cluster.create(kind, Some(&plan.namespace), &[object]).pop() {
            Some(Err(ReadError::Refused { what, why })) => {
                return Ok(Outcome::Stopped(step::refused(plan, &format!("{what}: {why}"))));
            }
            Some(Err(error)) => return Err(error.into()),
            _ => {}
        }
    }
    let until = Instant::now() + plan.timeout;
    loop {
        signals.pause(cluster)?;
        let pods = items(cluster, cluster::PODS, &plan.namespace, objects::LABEL)?;
        let pod = pods.iter().find(|pod| text(pod, "/metadata/name") == plan.name);
        let Some(pod) = pod else {
            return Ok(Outcome::Stopped(step::deleted(plan)));
        };
        let is_over = matches!(text(pod, "/status/phase"), "Succeeded" | "Failed");
        if is_over || Instant::now() > until {
            // If the user may not read events, only the pod's own status is used.
            let [events] = cluster.read([List::of(cluster::EVENTS, Some(&plan.namespace))]);
            let events = events.unwrap_or_default();
            return Ok(match step::of(pod, list(&events, "/items")) {
                Ok(said) => Outcome::Ran(format!("on node {}: {said}", text(pod, "/spec/nodeName"))),
                Err(stopped) => Outcome::Stopped(stopped.finding(plan, pod)),
            });
        }
    }
}

/// Waits until the deleted pod is gone, which means that its share was unprepared. Returns a finding if it stays.
fn ended(cluster: &Cluster, plan: &Plan, signals: &mut Signals) -> Result<Option<Finding>, ProbeError> {
    let until = Instant::now() + ENDS;
    while Instant::now() < until {
        let pods = items(cluster, cluster::PODS, &plan.namespace, objects::LABEL)?;
        if pods.iter().all(|pod| text(pod, "/metadata/name") != plan.name) {
            return Ok(None);
        }
        signals.pause(cluster)?;
    }
    Ok(Some(step::stays(plan)))
}

struct Signals([Signal; 3]);

impl Signals {
    fn new() -> std::io::Result<Self> {
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let [int, term, hup] = kinds.map(signal);
        Ok(Self([int?, term?, hup?]))
    }

    /// Waits until the pod should be checked again.
    fn pause(&mut self, cluster: &Cluster) -> Result<(), ProbeError> {
        let [int, term, hup] = &mut self.0;
        cluster.wait(async {
            tokio::select! {
                () = tokio::time::sleep(POLL) => Ok(()),
                _ = int.recv() => Err(ProbeError::Interrupted),
                _ = term.recv() => Err(ProbeError::Interrupted),
                _ = hup.recv() => Err(ProbeError::Interrupted),
            }
        })
    }
}
