//! Measures when pods are bound, by one watch of the API server.
//!
//! ```text
//!  kubectl get --raw ...?watch=true ─► a line an event, with the time of its arrival ─► Bound
//! ```
//! The clock of one process measures both the creation of the first pod and the binding of the last one.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use vgpu_e2e::kube::Kube;
use vgpu_e2e::patience;

/// The pods that are not yet bound.
#[derive(Debug)]
pub(super) struct Bound {
    waiting: BTreeSet<String>,
    /// The creation of the first pod, and the latest binding.
    first: Option<Instant>,
    last: Option<Instant>,
}

impl Bound {
    pub(super) fn of(pods: impl IntoIterator<Item = String>) -> Self {
        Self {
            waiting: pods.into_iter().collect(),
            first: None,
            last: None,
        }
    }

    fn take(&mut self, line: &str, at: Instant) -> Result<()> {
        let event: Value = serde_json::from_str(line).context("the watch of pods brought no JSON")?;
        let pod = &event["object"];
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        match event["type"].as_str() {
            Some("ADDED" | "MODIFIED") => {}
            Some("DELETED") if !self.waiting.contains(name) => return Ok(()),
            Some("DELETED") => bail!("pod {name} was deleted before it was bound"),
            _ => bail!("the watch of pods broke: {line}"),
        }
        if self.waiting.contains(name) {
            self.first.get_or_insert(at);
            if pod["spec"]["nodeName"].is_string() {
                self.waiting.remove(name);
                self.last = Some(at);
            }
        }
        Ok(())
    }

    /// Returns the time from the first pod's creation to the last binding, once all are bound.
    fn took(&self) -> Option<Duration> {
        let (first, last) = (self.first?, self.last?);
        self.waiting.is_empty().then(|| last.duration_since(first))
    }
}

/// A watch of the namespace's pods.
pub(super) struct Watch {
    child: Child,
    lines: Receiver<(String, Instant)>,
}

impl Watch {
    pub(super) fn begin(kube: &Kube<'_>, namespace: &str) -> Result<Self> {
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        let list: Value = serde_json::from_str(&kube.run(&["get", "--raw", &format!("{path}?limit=1")])?)
            .context("no list of pods")?;
        let version = list["metadata"]["resourceVersion"]
            .as_str()
            .context("a list without version")?;
        let watch = format!("{path}?watch=true&resourceVersion={version}");
        let mut child = kube
            .command(["get", "--raw", &watch])?
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run kubectl")?;
        let output = child.stdout.take().context("kubectl has no standard output")?;
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send((line, Instant::now())).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, lines })
    }

    /// Waits until all pods are bound. Returns the time since the creation of the first one.
    pub(super) fn wait(&self, mut bound: Bound, limit: Duration) -> Result<Duration> {
        let limit = patience::stretched(limit);
        let deadline = Instant::now() + limit;
        loop {
            if let Some(took) = bound.took() {
                return Ok(took);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok((line, at)) => bound.take(&line, at)?,
                Err(RecvTimeoutError::Timeout) => return Err(Missing::of(&bound, limit).into()),
                Err(RecvTimeoutError::Disconnected) => bail!("the watch of pods ended by itself"),
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // kubectl's watch runs until it is killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Pods that were not bound in time.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Missing {
    pub(super) first: String,
    count: usize,
    limit: Duration,
}

impl Missing {
    fn of(bound: &Bound, limit: Duration) -> Self {
        Self {
            first: bound.waiting.first().cloned().unwrap_or_default(),
            count: bound.waiting.len(),
            limit,
        }
    }
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = self.limit.as_secs();
        match self.count {
            1 => write!(f, "pod {} is not bound after {seconds} s", self.first),
            count => write!(
                f,
                "pod {} and {} others are not bound after {seconds} s",
                self.first,
                count - 1
            ),
        }
    }
}

impl std::error::Error for Missing {}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(kind: &str, name: &str, node: Option<&str>) -> String {
        json!({"type": kind, "object": {"metadata": {"name": name}, "spec": {"nodeName": node}}}).to_string()
    }

    #[test]
    fn time_runs_from_the_first_pod_to_the_last_binding() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut bound = Bound::of(["a".to_owned(), "b".to_owned()]);
        for (line, seconds) in [
            (event("ADDED", "warm", None), 1),
            (event("ADDED", "a", None), 2),
            (event("ADDED", "b", None), 3),
            (event("MODIFIED", "b", None), 4),
            (event("MODIFIED", "b", Some("n")), 5),
            (event("MODIFIED", "a", Some("n")), 7),
            // Changes after the binding are ignored.
            (event("MODIFIED", "a", Some("n")), 9),
            (event("DELETED", "a", Some("n")), 10),
        ] {
            assert_eq!(bound.took().is_some(), seconds > 7, "{line}");
            bound.take(&line, at(seconds)).unwrap();
        }
        assert_eq!(bound.took(), Some(Duration::from_secs(5)));
    }

    #[test]
    fn what_goes_or_breaks_before_it_is_bound_is_an_error() {
        let mut bound = Bound::of(["a".to_owned()]);
        let mut says = |line: &str| bound.take(line, Instant::now()).unwrap_err().to_string();
        assert_eq!(
            says(&event("DELETED", "a", None)),
            "pod a was deleted before it was bound"
        );
        assert!(says(&event("ERROR", "", None)).starts_with("the watch of pods broke: "));
        assert_eq!(says("no"), "the watch of pods brought no JSON");
    }

    #[test]
    fn who_is_missing_is_named() {
        let limit = Duration::from_secs(9);
        let says = |pods: &[&str]| Missing::of(&Bound::of(pods.iter().map(ToString::to_string)), limit).to_string();
        assert_eq!(says(&["b"]), "pod b is not bound after 9 s");
        assert_eq!(says(&["b", "c", "a"]), "pod a and 2 others are not bound after 9 s");
    }
}
