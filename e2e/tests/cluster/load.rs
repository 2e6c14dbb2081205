//! Pods that are created and deleted while something happens to the node. Each proves its limit from the inside and
//! ends.
//!
//! Every third pod is deleted about a second after its creation, in any state: before its claim is allocated, while it
//! is prepared, while it runs, or after it ended. The others must succeed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};
use vgpu_e2e::kube::Kube;
use vgpu_e2e::patience;
use vgpu_e2e::wait::wait;

use crate::fleet::{create, many};
use crate::manifests::{pod_object, template};

/// The memory of each share in these tests.
pub(crate) const MEMORY: &str = "2Gi";
pub(crate) const BYTES: u64 = 2 << 30;
/// Exits with 0 if the share's limit is enforced exactly: all free memory can be allocated, and not one granule more.
pub(crate) const PROVES: &str = r#"case $(vgpu-client check) in *'"total":2147483648,'*) ;; *) exit 1;; esac"#;
/// Minimum age at which a pod is deleted early.
const CUT_AFTER: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(500);

/// The template of the load's claims.
pub(crate) fn share() -> String {
    template("load", "vgpu", json!({"memory": MEMORY, "cores": "1"}), &[])
}

pub(crate) struct Load<'a> {
    kube: Kube<'a>,
    /// The number of pods at a time, not counting Terminating ones.
    pub(crate) at_once: usize,
    /// The age at which any pod is deleted; None: never.
    oldest: Option<Duration>,
    /// Creation times.
    born: BTreeMap<String, Instant>,
    pub(crate) made: usize,
    pub(crate) proved: usize,
    pub(crate) cut: usize,
}

impl<'a> Load<'a> {
    /// Uses a namespace in which nothing else has pods with the label `load`.
    pub(crate) fn new(kube: &Kube<'a>, at_once: usize) -> Result<Self> {
        kube.apply(&share())?;
        Ok(Self {
            kube: *kube,
            at_once,
            oldest: None,
            born: BTreeMap::new(),
            made: 0,
            proved: 0,
            cut: 0,
        })
    }

    /// Deletes every pod of this age, in any state.
    pub(crate) fn cut_at(mut self, age: Duration) -> Self {
        self.oldest = Some(age);
        self
    }

    /// Deletes pods that have proved their limit or are to be deleted early, and creates others in their place, at
    /// most `more`. Returns the number of current pods.
    ///
    /// # Errors
    /// A pod has failed: it has another limit, or the limit is not enforced.
    pub(crate) fn tick(&mut self, more: usize) -> Result<usize> {
        std::thread::sleep(TICK);
        let pods = self.kube.get(&["pods", "-l", "load"])?;
        let pods = pods["items"].as_array().context("no list of pods")?;
        let mut over = Vec::new();
        let mut alive = 0;
        for pod in pods.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()) {
            alive += 1;
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            let age = self.born.get(name).map_or(Duration::ZERO, Instant::elapsed);
            match pod["status"]["phase"].as_str() {
                Some("Failed") => bail!("{name} has failed: {}", self.why(name)),
                Some("Succeeded") => self.proved += 1,
                _ if is_cut(name) && age > CUT_AFTER => self.cut += 1,
                _ if self.oldest.is_some_and(|oldest| age > oldest) => self.cut += 1,
                _ => continue,
            }
            over.push(name);
        }
        if !over.is_empty() {
            self.kube
                .run(&[&["delete", "pod", "--wait=false", "--ignore-not-found"], &over[..]].concat())?;
        }
        let count = more.min(self.at_once.saturating_sub(alive - over.len()));
        if count > 0 {
            let numbers = self.made..self.made + count;
            let pods = numbers
                .map(|number| manifest(&name_of(number)))
                .collect::<Result<Vec<_>>>()?;
            create(&self.kube, &many(pods))?;
            let now = Instant::now();
            self.born
                .extend((self.made..self.made + count).map(|number| (name_of(number), now)));
            self.made += count;
        }
        Ok(alive - over.len() + count)
    }

    /// Waits for the current pods. `nudge`: changes them, so that the kubelet tries them again at once. By itself it
    /// retries a pod whose Prepare failed only after 60 to 90 s.
    pub(crate) fn finish(&mut self, limit: Duration, nudge: bool) -> Result<()> {
        self.oldest = None;
        let limit = patience::stretched(limit);
        let (begun, mut nudged) = (Instant::now(), 0);
        while self.tick(0)? > 0 {
            if begun.elapsed() > limit {
                let pods = self.kube.run(&["describe", "pods", "-l", "load"])?;
                bail!("waited {} s for the last pods of the load:\n{pods}", limit.as_secs());
            }
            if nudge && begun.elapsed().as_secs() / 5 > nudged {
                nudged += 1;
                let label = format!("nudged={nudged}");
                self.kube
                    .try_run(&["label", "pods", "-l", "load", "--overwrite", &label])?;
            }
        }
        wait(limit, "the pods of the load to be gone", || {
            let left = self.kube.get(&["pods", "-l", "load"])?;
            match left["items"].as_array().map_or(0, Vec::len) {
                0 => Ok(Some(())),
                left => Err(anyhow!("{left} are left")),
            }
        })
    }

    fn why(&self, name: &str) -> String {
        let logs = self.kube.logs(name, None).unwrap_or_else(|error| format!("{error:#}"));
        format!("{logs}\n{}", self.kube.describe(name))
    }
}

fn name_of(number: usize) -> String {
    format!("load-{number:04}")
}

fn is_cut(name: &str) -> bool {
    name.rsplit('-')
        .next()
        .and_then(|number| number.parse::<usize>().ok())
        .is_some_and(|number| number % 3 == 2)
}

fn manifest(name: &str) -> Result<Value> {
    let mut pod = pod_object(name, &["sh", "-c", PROVES], "load")?;
    pod["metadata"]["labels"] = json!({"load": ""});
    Ok(pod)
}

/// Messages of the namespace's events about failed Prepares.
pub(crate) fn failed_prepares(kube: &Kube<'_>) -> Result<Vec<String>> {
    let events = kube.get(&["events", "--field-selector=reason=FailedPrepareDynamicResources"])?;
    let items = events["items"].as_array().cloned().unwrap_or_default();
    let told = |event: &Value| format!("{}: {}", event["involvedObject"]["name"], event["message"]);
    Ok(items.iter().map(told).collect())
}
