//! Adds up each GPU of hand-made nodes at every version of every claim, by one uninterrupted watch: a watch that ends,
//! or that the server cannot continue, fails the test. At the end a last claim is created; when the watch delivers it,
//! all previous versions have been added up.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Value, json};
use vgpu_e2e::kube::Kube;
use vgpu_e2e::{install, patience, shell};

const CLAIMS: &str = "/apis/resource.k8s.io/v1/resourceclaims";
const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
/// The claim that is created after everything else.
const LAST: &str = "the-checker-ends";
/// Time for the watch to deliver it.
const LIMIT: Duration = Duration::from_secs(60);

/// A claim's share of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    device: (String, String),
    /// `None`: the whole device.
    share: Option<(u64, u64)>,
    by_controller: bool,
}

/// A device that was allocated to a claim.
#[derive(Debug, Clone)]
pub(crate) struct Given {
    /// The time at which the watch delivered it.
    pub(crate) at: Instant,
    pub(crate) pool: String,
    pub(crate) claim: String,
    /// According to its toleration in the result.
    pub(crate) by_controller: bool,
    /// The term in the claim's mark.
    pub(crate) epoch: String,
}

/// What a checker saw; no device was allocated twice.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) versions: usize,
    pub(crate) given: Vec<Given>,
}

impl Seen {
    /// Checks that this number of claims got a device, each only once: no hold expired on a node that its pod could
    /// not use.
    pub(crate) fn each_once(&self, claims: usize) -> Result<()> {
        let names: BTreeSet<&str> = self.given.iter().map(|given| given.claim.as_str()).collect();
        ensure!(
            (names.len(), self.given.len()) == (claims, claims),
            "{claims} claims were to be given a device once each: {:?}",
            self.given
        );
        Ok(())
    }
}

/// State shared by a checker and its users.
#[derive(Debug, Default)]
struct Shared {
    given: Mutex<Vec<Given>>,
    /// The watch has delivered the last claim.
    is_through: AtomicBool,
    /// The watch is about to be stopped.
    ends: AtomicBool,
}

/// What a checker has seen so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct SoFar(Arc<Shared>);

impl SoFar {
    pub(crate) fn given(&self) -> Vec<Given> {
        self.0.given.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn list<'a>(value: &'a Value, path: &str) -> &'a [Value] {
    value.pointer(path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn held(claim: &Value) -> Result<Vec<Held>> {
    let results = list(claim, "/status/allocation/devices/results").iter();
    let ours = results.filter(|result| result["driver"] == "dra.vgpu" && result["adminAccess"] != true);
    ours.map(|result| {
        let consumed = |name: &str| {
            let amount = result["consumedCapacity"][name].as_str();
            let amount = amount.and_then(install::bytes);
            amount.with_context(|| format!("no consumed {name} in {result}"))
        };
        let share = match result["shareID"].is_string() {
            true => Some((consumed("memory")?, consumed("cores")?)),
            false => None,
        };
        let mut tolerations = list(result, "/tolerations").iter();
        Ok(Held {
            device: (text(&result["pool"]), text(&result["device"])),
            share,
            by_controller: tolerations.any(|toleration| toleration["key"] == "dra.vgpu/allocator"),
        })
    })
    .collect()
}

/// The leader's term in the claim's mark.
pub(crate) fn epoch(claim: &Value) -> String {
    let mark = claim["metadata"]["annotations"]["dra.vgpu/epoch"]
        .as_str()
        .unwrap_or_default();
    mark.rsplit_once('#').map_or(mark, |(epoch, _)| epoch).to_owned()
}

fn key(claim: &Value) -> String {
    let meta = &claim["metadata"];
    format!("{}/{}", text(&meta["namespace"]), text(&meta["name"]))
}

/// All claims at one version.
#[derive(Debug, Default)]
struct Sums {
    claims: BTreeMap<String, Vec<Held>>,
    capacity: BTreeMap<(String, String), u64>,
}

impl Sums {
    /// Returns devices that the claim has now and did not have before.
    fn set(&mut self, claim: &Value) -> Result<Vec<Held>> {
        let key = key(claim);
        let held = held(claim)?;
        let devices: BTreeSet<_> = held.iter().map(|held| held.device.clone()).collect();
        let before = self.claims.insert(key.clone(), held.clone()).unwrap_or_default();
        for device in devices {
            self.check(&device).with_context(|| format!("after {key} changed"))?;
        }
        Ok(held.into_iter().filter(|held| !before.contains(held)).collect())
    }

    fn check(&self, device: &(String, String)) -> Result<()> {
        let of_device = self.claims.iter().flat_map(|(key, held)| {
            let held = held.iter().filter(|held| held.device == *device);
            held.map(move |held| (key, held))
        });
        let all: Vec<_> = of_device.collect();
        let total = self.capacity.get(device).copied();
        let total = total.with_context(|| format!("{device:?} was in no slice when this began"))?;
        let sum = |part: fn((u64, u64)) -> u64| all.iter().filter_map(|(_, held)| held.share).map(part).sum::<u64>();
        let (memory, cores) = (sum(|share| share.0), sum(|share| share.1));
        let is_whole = all.iter().any(|(_, held)| held.share.is_none());
        if memory > total || cores > 100 || is_whole && all.len() > 1 {
            bail!("{device:?} gives {memory} of {total} memory and {cores} cores: {all:?}");
        }
        Ok(())
    }
}

/// One uninterrupted watch of all claims. Allocations are added up at every version.
pub(crate) struct Checker {
    child: Child,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<usize>>>,
}

impl Checker {
    /// Watches through the API server that everybody uses.
    pub(crate) fn begin(kube: &Kube<'_>) -> Result<Self> {
        Self::begin_by(|path| kube.command(["get", "--raw", path]))
    }

    /// Watches with commands that print an API server's answer for a path.
    pub(crate) fn begin_by(raw: impl Fn(&str) -> Result<Command>) -> Result<Self> {
        let read = |path: &str| -> Result<Value> {
            serde_json::from_str(&shell::output(&mut raw(path)?)?).with_context(|| format!("{path} is no JSON"))
        };
        let mut sums = Sums::default();
        for slice in list(&read(SLICES)?, "/items") {
            for device in list(slice, "/spec/devices") {
                let memory = device["capacity"]["memory"]["value"].as_str().and_then(install::bytes);
                let key = (text(&slice["spec"]["pool"]["name"]), text(&device["name"]));
                sums.capacity.extend(memory.map(|memory| (key, memory)));
            }
        }
        let claims = read(CLAIMS)?;
        for claim in list(&claims, "/items") {
            sums.set(claim)?;
        }
        let version = claims["metadata"]["resourceVersion"]
            .as_str()
            .context("a list without version")?;
        let mut command = raw(&format!("{CLAIMS}?watch=true&resourceVersion={version}"))?;
        let mut child = command.stdout(Stdio::piped()).spawn().context("cannot run kubectl")?;
        let output = child.stdout.take().context("kubectl has no standard output")?;
        let shared = Arc::new(Shared::default());
        let told = shared.clone();
        let thread = std::thread::spawn(move || follow(sums, BufReader::new(output), &told));
        Ok(Self {
            child,
            shared,
            thread: Some(thread),
        })
    }

    pub(crate) fn so_far(&self) -> SoFar {
        SoFar(self.shared.clone())
    }

    /// Stops the watch and returns what it saw, or an error if anything was allocated twice. Call it before the
    /// namespace of `kube` is deleted.
    pub(crate) fn end(mut self, kube: &Kube<'_>) -> Result<Seen> {
        let through = self.wait_for_all(kube);
        self.stop();
        let thread = self.thread.take().context("it has ended")?;
        let versions = thread.join().map_err(|_| anyhow!("the checker panicked"))??;
        through?;
        let given = self.so_far().given();
        Ok(Seen { versions, given })
    }

    /// Waits until the watch has delivered everything, or has ended with an error.
    fn wait_for_all(&self, kube: &Kube<'_>) -> Result<()> {
        let last = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": LAST},
            "spec": {"devices": {"requests": [{"name": "none", "exactly": {"deviceClassName": "of-nobody"}}]}}});
        kube.apply(&last.to_string())
            .context("the claim after which the watch of claims may end")?;
        let (begun, limit) = (Instant::now(), patience::stretched(LIMIT));
        let is_over = || self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        while !self.shared.is_through.load(Ordering::SeqCst) && !is_over() {
            ensure!(
                begun.elapsed() < limit,
                "the watch of claims does not bring claim {LAST} within {} s",
                limit.as_secs()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn stop(&mut self) {
        self.shared.ends.store(true, Ordering::SeqCst);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Checker {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Reads until the watch is stopped. Returns the number of versions.
fn follow(mut sums: Sums, mut watch: impl BufRead, shared: &Shared) -> Result<usize> {
    let mut versions = 0;
    let mut line = Vec::new();
    loop {
        line.clear();
        // A pipe that cannot be read has also ended.
        let _ = watch.read_until(b'\n', &mut line);
        if line.last() != Some(&b'\n') {
            match shared.ends.load(Ordering::SeqCst) {
                // A killed process may have written half a line.
                true => return Ok(versions),
                false => bail!("the watch ended by itself after {versions} changes"),
            }
        }
        let event: Value = serde_json::from_slice(&line).context("the watch brought no JSON")?;
        let claim = &event["object"];
        match event["type"].as_str() {
            Some("ADDED" | "MODIFIED") => {
                let at = Instant::now();
                let new = sums.set(claim)?.into_iter().map(|held| Given {
                    at,
                    pool: held.device.0,
                    claim: key(claim),
                    by_controller: held.by_controller,
                    epoch: epoch(claim),
                });
                shared.given.lock().unwrap_or_else(PoisonError::into_inner).extend(new);
                if claim["metadata"]["name"] == LAST {
                    shared.is_through.store(true, Ordering::SeqCst);
                }
            }
            Some("DELETED") => {
                sums.claims.remove(&key(claim));
            }
            _ => bail!("the watch broke: {}", String::from_utf8_lossy(&line).trim_end()),
        }
        versions += 1;
    }
}

/// Proves that the checker notices mistakes.
pub(crate) fn the_checker_notices() -> Result<()> {
    let claim = |name: &str, share: Option<&str>, memory: &str, cores: &str| {
        json!({"metadata": {"namespace": "ns", "name": name}, "status": {"allocation": {"devices": {"results": [
            {"driver": "dra.vgpu", "pool": "p", "device": "d", "shareID": share,
                "consumedCapacity": {"memory": memory, "cores": cores}}]}}}})
    };
    let after = |claims: &[Value]| -> Result<()> {
        let mut sums = Sums::default();
        sums.capacity.insert(("p".into(), "d".into()), 80 << 30);
        claims.iter().try_for_each(|claim| sums.set(claim).map(drop))
    };
    let first = claim("a", Some("1"), "60Gi", "50");
    after(&[first.clone(), claim("b", Some("2"), "20Gi", "50")])?;
    after(&[first.clone(), claim("a", Some("3"), "80Gi", "50")])?;
    for (name, second) in [
        ("memory", claim("b", Some("2"), "21Gi", "0")),
        ("cores", claim("b", Some("2"), "1Gi", "51")),
        ("a whole device", claim("b", None, "1Gi", "0")),
    ] {
        ensure!(
            after(&[first.clone(), second]).is_err(),
            "too much of {name} goes unnoticed"
        );
    }
    let watched = |text: &str, ends: bool| {
        let shared = Shared::default();
        shared.ends.store(ends, Ordering::SeqCst);
        let versions = follow(Sums::default(), text.as_bytes(), &shared);
        versions.map(|versions| (versions, shared.is_through.load(Ordering::SeqCst)))
    };
    let gone = json!({"type": "ERROR", "object": {"code": 410, "reason": "Expired"}});
    ensure!(
        watched(&format!("{gone}\n"), true).is_err(),
        "a watch that cannot go on goes unnoticed"
    );
    let last = json!({"type": "ADDED", "object": {"metadata": {"namespace": "ns", "name": LAST}}});
    let cut = format!("{last}\n{{\"type\": \"MODI");
    ensure!(
        watched(&cut, false).is_err(),
        "a watch that ends by itself goes unnoticed"
    );
    match watched(&cut, true) {
        Ok((1, true)) => Ok(()),
        other => bail!("a watch that is ended in the middle of a line: {other:?} instead of one version, the last"),
    }
}
