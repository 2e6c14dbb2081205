//! Many pods at once on hand-made nodes, each with a claim for a quarter of a GPU: kube-scheduler alone, and with
//! vgpu-controller.
//!
//! ```text
//!  once a cluster: nodes ─► they become unreachable ─► nothing writes to them any more
//!  once a variant: GPUs published, with the taint or without ─► two replicas of vgpu-controller, or none
//!  once a run:     watch ─► one pod to warm up, deleted again ─► pause ─► all pods ─► the last is bound ─► deleted
//! ```
//! The two variants take turns, and each turn begins with the variant that ended the last one, so that a machine whose
//! speed changes affects both equally. kube-scheduler and kube-controller-manager have their default flags.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use serde_json::{Value, json};

use super::bound::{Bound, Missing, Watch};
use super::deployed::{self, Deployed};
use super::fleet::{self, Fleet, Owner};
use crate::common::{NAMESPACE, machine, make_namespace, median, on_cluster};
use vgpu_e2e::cluster::Cluster;
use vgpu_e2e::hand_made;
use vgpu_e2e::install;
use vgpu_e2e::kube::Kube;
use vgpu_e2e::prepared::Prepared;
use vgpu_e2e::wait::wait;

/// The chart's number of replicas.
const REPLICAS: usize = 2;
const GPUS: usize = 2;
/// Claims are created from templates at 20 per second, so 90 pods take at least 5 s.
const LIMIT: Duration = Duration::from_secs(180);
const CLEARED: Duration = Duration::from_secs(180);
/// Time until the rate limits of Kubernetes' clients allow a burst again.
const REST: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Size {
    /// Measurements of each variant.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Pods created at once.
    #[arg(long, default_value_t = 90)]
    pods: usize,
    /// Hand-made nodes, with two GPUs each.
    #[arg(long, default_value_t = 100)]
    nodes: usize,
}

/// The source of the claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Claims {
    Beforehand,
    OfTemplate,
}

/// The results of one run.
#[derive(Debug, Default)]
struct Run {
    seconds: f64,
    gpus: usize,
    cpu: BTreeMap<&'static str, f64>,
    /// Sums and counts of the controller's histograms.
    counts: BTreeMap<String, (f64, f64)>,
}

type Runs = BTreeMap<(Claims, bool), Vec<Run>>;

pub(crate) fn run(name: &str, prepared: &Prepared, size: &Size) -> Result<()> {
    ensure!(
        size.rounds != 0 && size.pods != 0 && size.nodes != 0,
        "--rounds, --pods and --nodes must be 1 or more"
    );
    println!("machine: {}", machine());
    let runs = on_cluster(name, prepared, |cluster| Bench::new(cluster, *size)?.all(prepared))?;
    print(size, &prepared.toolchain.kubernetes, &runs);
    Ok(())
}

struct Bench<'a> {
    cluster: &'a Cluster,
    kube: Kube<'a>,
    deployed: Deployed<'a>,
    fleet: Fleet,
    size: Size,
}

impl<'a> Bench<'a> {
    fn new(cluster: &'a Cluster, size: Size) -> Result<Self> {
        let kube = Kube::new(cluster, NAMESPACE);
        make_namespace(&kube)?;
        Ok(Self {
            cluster,
            kube,
            deployed: Deployed::new(cluster),
            fleet: Fleet {
                nodes: size.nodes,
                gpus: GPUS,
            },
            size,
        })
    }

    fn all(&self, prepared: &Prepared) -> Result<Runs> {
        self.fleet.make_nodes(&self.kube)?;
        install::install(self.cluster, prepared, &["allocator=controller"])?;
        self.kube.apply(&template().to_string())?;
        self.fleet.wait_until_still(&self.kube)?;
        let mut runs = Runs::new();
        for round in 0..self.size.rounds {
            let first = if round % 2 == 0 {
                Owner::Scheduler
            } else {
                Owner::Controller
            };
            let second = if round % 2 == 0 {
                Owner::Controller
            } else {
                Owner::Scheduler
            };
            for (owner, is_new) in [(first, round == 0), (second, true)] {
                if is_new {
                    self.hand_over(owner)?;
                }
                for claims in [Claims::Beforehand, Claims::OfTemplate] {
                    let name = format!(
                        "{}-{round}",
                        if claims == Claims::Beforehand {
                            "made"
                        } else {
                            "template"
                        }
                    );
                    let run = self.one(&name, owner, claims).map_err(|error| self.explained(error))?;
                    eprintln!("{owner:?}, {name}: {:.2} s, {} GPUs", run.seconds, run.gpus);
                    runs.entry((claims, owner == Owner::Controller)).or_default().push(run);
                }
            }
        }
        Ok(runs)
    }

    /// Adds the state of the pods that were not bound to the error.
    fn explained(&self, error: anyhow::Error) -> anyhow::Error {
        match error.downcast_ref::<Missing>() {
            Some(missing) => {
                let shown = self.kube.describe(&missing.first);
                error.context(shown)
            }
            None => error,
        }
    }

    fn hand_over(&self, owner: Owner) -> Result<()> {
        if owner == Owner::Scheduler {
            self.deployed.scale(0)?;
        }
        self.fleet.publish(&self.kube, owner)?;
        if owner == Owner::Controller {
            self.deployed.scale(REPLICAS)?;
        }
        Ok(())
    }

    fn one(&self, name: &str, owner: Owner, claims: Claims) -> Result<Run> {
        let watch = Watch::begin(&self.kube, NAMESPACE)?;
        let warm = format!("{name}-warm");
        self.make(std::slice::from_ref(&warm), claims, Duration::ZERO)?;
        watch.wait(Bound::of([warm]), LIMIT)?;
        self.clear()?;

        let names: Vec<String> = (0..self.size.pods)
            .map(|number| format!("{name}-{number:03}"))
            .collect();
        let (cpu, counts) = (deployed::cpu(self.cluster)?, self.deployed.counts()?);
        self.make(&names, claims, REST)?;
        let took = watch.wait(Bound::of(names), LIMIT)?;
        let run = Run {
            seconds: took.as_secs_f64(),
            gpus: self.check(owner)?,
            cpu: deployed::cpu(self.cluster)?
                .into_iter()
                .map(|(program, used)| (program, used - cpu.get(program).copied().unwrap_or_default()))
                .collect(),
            counts: self
                .deployed
                .counts()?
                .into_iter()
                .map(|(name, (sum, count))| {
                    let before = counts.get(&name).copied().unwrap_or_default();
                    (name, (sum - before.0, count - before.1))
                })
                .collect(),
        };
        self.clear()?;
        Ok(run)
    }

    /// Creates the pods, after their claims and a pause.
    fn make(&self, names: &[String], claims: Claims, rest: Duration) -> Result<()> {
        if claims == Claims::Beforehand {
            let claims: Vec<Value> = names.iter().map(|name| claim(name)).collect();
            fleet::write(&self.kube, &["create"], &claims)?;
        }
        std::thread::sleep(rest);
        let pods: Vec<Value> = names.iter().map(|name| pod(name, claims)).collect();
        fleet::write(&self.kube, &["create"], &pods)
    }

    /// Returns the number of GPUs in use. Fails if something else than `owner` allocated any of them.
    fn check(&self, owner: Owner) -> Result<usize> {
        let claims = self.kube.get(&["resourceclaims"])?;
        let mut gpus = BTreeSet::new();
        let mut shares = 0;
        for claim in claims["items"].as_array().context("no list of claims")? {
            let results = claim["status"]["allocation"]["devices"]["results"].as_array();
            for result in results.into_iter().flatten() {
                let tolerations = result["tolerations"].as_array();
                let is_ours = tolerations.is_some_and(|all| all.contains(&fleet::toleration()));
                ensure!(
                    is_ours == (owner == Owner::Controller),
                    "claim {} was not allocated by {owner:?}: {result}",
                    claim["metadata"]["name"]
                );
                shares += 1;
                gpus.insert(format!("{}/{}", result["pool"], result["device"]));
            }
        }
        ensure!(
            shares == self.size.pods,
            "{shares} claims are allocated instead of {}",
            self.size.pods
        );
        Ok(gpus.len())
    }

    /// Deletes everything that a run created.
    fn clear(&self) -> Result<()> {
        self.kube
            .run(&["delete", "pods", "--all", "--force", "--grace-period=0", "--wait=false"])?;
        self.kube.run(&["delete", "resourceclaims", "--all", "--wait=false"])?;
        wait(CLEARED, "every pod and claim to be gone", || {
            let left = self.kube.run(&["get", "pods,resourceclaims", "-o", "name"])?;
            match left.lines().count() {
                0 => Ok(Some(())),
                many => Err(anyhow!("{many} are left")),
            }
        })
    }
}

fn request() -> Value {
    json!({"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "vgpu",
        "capacity": {"requests": hand_made::quarter()}}}]}})
}

fn claim(name: &str) -> Value {
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": NAMESPACE}, "spec": request()})
}

fn template() -> Value {
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": "quarter"}, "spec": {"spec": request()}})
}

fn pod(name: &str, claims: Claims) -> Value {
    let source = match claims {
        Claims::Beforehand => json!({"name": "gpu", "resourceClaimName": name}),
        Claims::OfTemplate => json!({"name": "gpu", "resourceClaimTemplateName": "quarter"}),
    };
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": {
        "nodeSelector": {"fleet": "bench"},
        "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "dra-driver-vgpu/pause:dev",
            "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "claims": [{"name": "gpu"}]}}],
        "resourceClaims": [source]}})
}

fn print(size: &Size, kubernetes: &str, runs: &Runs) {
    let Size { rounds, pods, nodes } = size;
    println!(
        "{pods} pods, each with a quarter of a GPU, on {nodes} hand-made nodes with {GPUS} GPUs; Kubernetes {kubernetes}"
    );
    println!("from the first pod's creation to the last one's binding, medians of {rounds} runs each way in turn");
    println!("{:26}  kube-scheduler  vgpu-controller  difference  ratio", "");
    for (claims, what) in [
        (Claims::Beforehand, "claims made beforehand, s"),
        (Claims::OfTemplate, "claims of a template, s"),
    ] {
        let of = |is_ours| runs.get(&(claims, is_ours)).map_or(&[][..], Vec::as_slice);
        let middle = |is_ours| median(of(is_ours).iter().map(|run| run.seconds).collect());
        let (theirs, ours) = (middle(false), middle(true));
        println!(
            "{what:26}  {theirs:14.2}  {ours:15.2}  {:+10.2}  {:5.2}",
            ours - theirs,
            ours / theirs
        );
    }
    for ((claims, is_ours), runs) in runs {
        let way = if *is_ours { "vgpu-controller" } else { "kube-scheduler" };
        println!("{way}, {claims:?}:");
        let list = |text: &mut dyn Iterator<Item = String>| text.collect::<Vec<_>>().join(" ");
        println!(
            "  runs, s: {}",
            list(&mut runs.iter().map(|run| format!("{:.2}", run.seconds)))
        );
        println!(
            "  GPUs used: {}",
            list(&mut runs.iter().map(|run| run.gpus.to_string()))
        );
        let programs: BTreeSet<_> = runs.iter().flat_map(|run| run.cpu.keys()).collect();
        let used = |program: &str| {
            median(
                runs.iter()
                    .map(|run| run.cpu.get(program).copied().unwrap_or_default())
                    .collect(),
            )
        };
        println!(
            "  CPU time, s: {}",
            list(&mut programs.iter().map(|program| format!("{program} {:.2}", used(program))))
        );
        let mut total: BTreeMap<&String, (f64, f64)> = BTreeMap::new();
        for (name, (sum, count)) in runs.iter().flat_map(|run| &run.counts) {
            let all = total.entry(name).or_default();
            *all = (all.0 + sum, all.1 + count);
        }
        #[expect(clippy::cast_precision_loss, reason = "a handful of rounds")]
        let rounds = runs.len() as f64;
        for (name, (sum, count)) in total.into_iter().filter(|(_, (_, count))| *count > 0.0) {
            println!(
                "  {name}: {:.0} a run, {:.1} ms each",
                count / rounds,
                sum / count * 1000.0
            );
        }
    }
}
