//! deploy/dashboards in a real Prometheus, Debian's package, that scrapes the plugin's page: every query of the
//! dashboards and of the alerts and recording rules finds something there, or is at least a valid query. promtool runs
//! the tests of both.

use super::{Metrics, Sources};
use crate::dra::node::SharedNode;
use crate::dra::node::tests::{Rig, prepared};
use crate::publish::inventory::tests::gpu;
use crate::publish::inventory::{Fault, Inventory, Reason};
use crate::ready::Readiness;
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use vgpu_cache::apt::{With, own_packages};

const HAPPENS_WITHIN: Duration = Duration::from_secs(300);

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/dashboards")
}

/// The folder of Prometheus' programs; None: skipped.
fn programs(test: &str) -> Option<PathBuf> {
    match own_packages("main", &["prometheus"], With::Nothing) {
        Ok(root) => Some(root.join("usr/bin")),
        Err(reason) => {
            vgpu_skip::skip(test, &reason);
            None
        }
    }
}

/// A Prometheus that ends with its test.
struct Prometheus {
    child: Child,
    address: String,
    _folder: tempfile::TempDir,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    fn start(programs: &Path, targets: [&str; 2]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let config = serde_json::json!({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [self::folder().join("alerts.yaml"), self::folder().join("cost.yaml")],
            "scrape_configs": [{"job_name": "plugin", "honor_labels": true, "static_configs": [{"targets": targets}]}],
        });
        // JSON is YAML.
        let file = folder.path().join("prometheus.yml");
        std::fs::write(&file, config.to_string()).expect("written");
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = free.local_addr().expect("an address").to_string();
        drop(free);
        let child = Command::new(programs.join("prometheus"))
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("Prometheus starts");
        Self {
            child,
            address,
            _folder: folder,
        }
    }

    /// An answer of its API; None while it does not answer.
    fn get(&self, path: &str) -> Option<Value> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        serde_json::from_str(text.split_once("\r\n\r\n")?.1).ok()
    }

    fn query(&self, query: &str) -> Option<Value> {
        let escaped: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        self.get(&format!("/api/v1/query?query={escaped}"))
    }

    /// Returns how many series a query finds; an error if there is no answer or the query is not valid.
    fn count(&self, query: &str) -> Result<usize, String> {
        let answer = self.query(query).ok_or("no answer")?;
        match answer["data"]["result"].as_array() {
            Some(found) if answer["status"] == "success" => Ok(found.len()),
            _ => Err(format!("{query}: {answer}")),
        }
    }
}

/// Waits in real time for something that another process does.
fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < HAPPENS_WITHIN, "{what} does not happen");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Every `expr` in a dashboard, with Grafana's variables as Grafana fills them in.
fn expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::String(query)) = fields.get("expr") {
                let filled = query.replace("$node", ".*").replace("$namespace", ".*");
                found.push(filled.replace("$__rate_interval", "1m"));
            }
            fields.values().for_each(|value| expressions(value, found));
        }
        Value::Array(values) => values.iter().for_each(|value| expressions(value, found)),
        _ => {}
    }
}

/// Every dashboard: its file's name and text.
fn dashboards() -> Vec<(String, String)> {
    let files = std::fs::read_dir(folder())
        .expect("the folder")
        .map(|file| file.expect("a file").path());
    let read = |file: PathBuf| {
        let name = file.file_name().expect("a name").to_string_lossy().into_owned();
        (name, std::fs::read_to_string(file).expect("a text"))
    };
    let found: Vec<_> = files
        .filter(|file| file.extension().is_some_and(|kind| kind == "json"))
        .map(read)
        .collect();
    assert!(found.len() >= 3, "{found:?}");
    found
}

/// The sources of a node with a share about which everything is known. The node's other GPU has a fault.
fn sources() -> (Rig, Sources) {
    let (rig, mut node) = prepared(20, 30);
    let fault = Fault {
        reason: Reason::Xid,
        value: "79".into(),
        blocks: true,
    };
    let inventory = Inventory::new(vec![gpu(0), gpu(1)]);
    node.set_inventory(Ok(inventory.with_faults(&[(gpu(1).uuid, vec![fault])].into())));
    node.set_unclaimed(Some(BTreeSet::new()));
    let sources = Sources::new(SharedNode::new(node));
    let key = ("u1".to_owned(), "s1".to_owned());
    let container = [("p".to_owned(), "main".to_owned())];
    sources.containers.set([(key.clone(), container.into())].into());
    sources.observations.know_all(&key);
    sources.readiness.set("gpus", Ok(()));
    (rig, sources)
}

/// Stands in for vgpu-controller: the metrics that docs/metrics.md names. A test of vgpu-controller compares that page
/// with its real metrics.
fn controller() -> String {
    let labels = |name: &str| match name {
        "vgpu_controller_quota_used_ratio" => r#"{namespace="d",resource="memory"}"#,
        "vgpu_controller_free_memory_bytes" => r#"{gpus="used"}"#,
        _ => "",
    };
    let (_, section) = include_str!("../../../docs/metrics.md")
        .split_once("\n## The controller\n")
        .expect("its part");
    let names = section
        .lines()
        .filter_map(|line| line.strip_prefix("| `vgpu_controller_")?.split_once('`'));
    let names = names.map(|(name, _)| format!("vgpu_controller_{name}"));
    names.map(|name| format!("{name}{} 1\n", labels(&name))).collect()
}

/// Stands in for dcgm-exporter and kube-state-metrics: series with the labels that their documentation shows, of the same GPU
/// and container. `claim` has the labels of a claim, which the first one sets only for NVIDIA's own driver now.
fn exporters(gpu: &str, claim: &str) -> String {
    let device = format!(
        r#"gpu="0",UUID="{gpu}",pci_bus_id="00000000:01:00.0",device="nvidia0",modelName="H100",Hostname="n1""#
    );
    let pod = r#"namespace="d",pod="p",uid="8a3e""#;
    [
        format!("DCGM_FI_DEV_GPU_TEMP{{{device}}} 41"),
        format!("DCGM_FI_DEV_FB_USED{{{device},{claim}}} 4096"),
        format!(r#"kube_pod_container_info{{{pod},container="main",image="i",container_id="containerd://1"}} 1"#),
        format!(r#"kube_pod_labels{{{pod},label_team="a"}} 1"#),
    ]
    .map(|line| line + "\n")
    .concat()
}

/// dcgm-exporter's labels of a claim in our own page: the same in every series of a share.
fn labels_of_claim(page: &str) -> String {
    const NAMES: [&str; 4] = [
        "dra_claim_name",
        "dra_claim_namespace",
        "dra_device_name",
        "dra_pool_name",
    ];
    let of_claim = |line: &str| {
        let (_, labels) = line.rsplit_once('}')?.0.split_once('{')?;
        let labels = labels.split(',').filter(|label| label.starts_with("dra_"));
        Some(labels.collect::<Vec<_>>().join(","))
    };
    let series = page.lines().filter(|line| line.starts_with("vgpu_share_"));
    let mut all: Vec<String> = series.filter_map(of_claim).collect();
    all.dedup();
    let [claim] = &all[..] else { panic!("{all:?}") };
    let names: Vec<&str> = claim.split(',').filter_map(|label| label.split('=').next()).collect();
    assert_eq!(names, NAMES);
    claim.clone()
}

/// The queries of docs/metrics.md that join metrics with those of other exporters.
fn documented_joins() -> Vec<&'static str> {
    let docs = include_str!("../../../docs/metrics.md");
    let (_, section) = docs.split_once("### Joined with other exporters").expect("the section");
    let block = section.split("```").nth(1).expect("its queries");
    block.lines().filter(|line| !line.is_empty()).collect()
}

#[tokio::test]
async fn every_query_of_the_dashboard_and_the_alerts_runs_in_a_real_prometheus() {
    let Some(programs) = programs("every_query_of_the_dashboard_and_the_alerts_runs_in_a_real_prometheus") else {
        return;
    };
    let (_rig, sources) = sources();
    let metrics = Metrics::default();
    metrics.prepared(
        Duration::from_millis(3),
        &super::Times::new(Duration::from_millis(2)),
        ["full"],
    );
    let registries = vec![metrics.registry(sources.clone()), super::hami::registry(sources)];
    let claim = labels_of_claim(&super::page(&registries[0]));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let target = listener.local_addr().expect("an address").to_string();
    let pages = crate::http::router(Readiness::new(&[]), registries);
    let serving = tokio::spawn(axum::serve(listener, pages).into_future());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let others = listener.local_addr().expect("an address").to_string();
    let text = controller() + &exporters(&gpu(0).uuid, &claim);
    let pages = axum::Router::new().route("/metrics", axum::routing::get(|| async { text }));
    let serving_others = tokio::spawn(axum::serve(listener, pages).into_future());
    let work = tokio::task::spawn_blocking(move || {
        let prometheus = Prometheus::start(&programs, [&target, &others]);
        until("a first scrape", || {
            prometheus.count("vgpu_share_info").ok().filter(|found| *found == 1)
        });
        // A rate needs two scrapes.
        until("a second scrape", || {
            let rates = prometheus.count("rate(vgpu_share_gpu_seconds_total[1m])");
            rates.ok().filter(|found| *found == 1)
        });
        until("a scrape of the other exporters", || {
            prometheus.count("kube_pod_labels").ok().filter(|found| *found == 1)
        });
        let mut queries = Vec::new();
        for (name, text) in dashboards() {
            let dashboard: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
            expressions(&dashboard["panels"], &mut queries);
        }
        assert!(queries.len() >= 40, "{queries:?}");
        let empty: Vec<&String> = queries
            .iter()
            .filter(|query| prometheus.count(query).expect("a query that Prometheus runs") == 0)
            .collect();
        assert_eq!(empty, Vec::<&String>::new(), "queries that find nothing");
        let hami = prometheus.count("vGPU_device_memory_limit_in_bytes{podname=\"p\"}");
        assert_eq!(hami, Ok(1), "both registries are one page");
        let join = "vgpu_gpu_memory_bytes * on (UUID) group_right vgpu_share_info";
        assert_eq!(prometheus.count(join), Ok(1));
        let joins = documented_joins();
        assert!(joins.len() >= 4, "{joins:?}");
        for join in joins {
            assert_eq!(prometheus.count(join), Ok(1), "{join}");
        }
        let rules = until("the rules", || {
            let answer = prometheus.get("/api/v1/rules")?;
            let groups = answer["data"]["groups"].as_array()?;
            let rules = groups.iter().map(|group| group["rules"].as_array().cloned());
            let rules = rules.collect::<Option<Vec<_>>>()?.concat();
            rules.iter().all(|rule| rule["health"] == "ok").then_some(rules)
        });
        let tests = std::fs::read_to_string(folder().join("alerts_test.yaml")).expect("the tests");
        for rule in &rules {
            let (name, query) = (
                rule["name"].as_str().expect("a name"),
                rule["query"].as_str().expect("a query"),
            );
            prometheus.count(query).expect("a query that Prometheus runs");
            if rule["type"] == "recording" {
                // A rule of other rules finds nothing before the first evaluation that follows a scrape, up to a minute later.
                if !query.contains("node_gpu_hourly_cost") {
                    until(&format!("a record by {name}"), || {
                        prometheus.count(query).ok().filter(|found| *found > 0)
                    });
                }
                continue;
            }
            let fires = tests
                .split("- alertname: ")
                .skip(1)
                .any(|test| test.lines().next() == Some(name) && test.contains("exp_labels"));
            assert!(fires, "{name} has no test in which it fires");
            let named = metric_names(query);
            let served: Vec<_> = named.iter().filter(|name| prometheus.count(name) == Ok(0)).collect();
            assert_eq!(served, Vec::<&String>::new(), "{name}: no such metrics");
        }
        assert!(rules.len() >= 20, "{}", rules.len());
    });
    work.await.expect("the queries run");
    serving.abort();
    serving_others.abort();
}

/// The metrics in a query.
fn metric_names(query: &str) -> BTreeSet<String> {
    let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words
        .filter(|word| word.starts_with("vgpu_"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_alert_fires_when_it_is_to_and_every_rule_records_what_it_is_to() {
    let Some(programs) = programs("every_alert_fires_when_it_is_to_and_every_rule_records_what_it_is_to") else {
        return;
    };
    let tested = Command::new(programs.join("promtool"))
        .args(["test", "rules", "alerts_test.yaml", "cost_test.yaml"])
        .current_dir(folder())
        .output()
        .expect("promtool runs");
    let said = String::from_utf8_lossy(&tested.stdout).into_owned() + &String::from_utf8_lossy(&tested.stderr);
    assert!(tested.status.success(), "{said}");
}

/// Grafana cannot run here, so the dashboards are checked against its own types, from npm's @grafana/schema.
#[test]
fn the_dashboards_are_some_by_grafanas_schema() {
    const NAME: &str = "the_dashboards_are_some_by_grafanas_schema";
    const PACKAGES: [&str; 2] = ["@grafana/schema@13.2.3", "typescript@5.9.3"];
    let made = vgpu_cache::folder("grafana-schema", &PACKAGES.join(" "), |folder| {
        let mut npm = Command::new("npm");
        npm.args(["install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"]);
        vgpu_cache::run(npm.arg(folder).args(PACKAGES)).map(drop)
    });
    let packages = match made {
        Ok(folder) => folder.join("node_modules"),
        Err(reason) => return vgpu_skip::skip(NAME, &format!("no @grafana/schema: {reason}")),
    };
    let check = |text: &str| {
        let folder = tempfile::tempdir().expect("a folder");
        std::os::unix::fs::symlink(&packages, folder.path().join("node_modules")).expect("a link");
        // TypeScript accepts no string as an enum's value, and JSON can only have a string there.
        let text = text.replace(r#""type": "value""#, r#""type": MappingType.ValueToText"#);
        let import = r#"import { type Dashboard, MappingType } from "@grafana/schema";"#;
        let program = format!("{import}\nexport const dashboard: Dashboard = {text};\n");
        std::fs::write(folder.path().join("check.ts"), program).expect("written");
        let mut tsc = Command::new("node");
        tsc.arg(packages.join("typescript/bin/tsc")).current_dir(folder.path());
        tsc.args([
            "--noEmit",
            "--strict",
            "--skipLibCheck",
            "--module",
            "esnext",
            "--target",
            "es2022",
        ]);
        let ended = tsc
            .args(["--moduleResolution", "bundler", "check.ts"])
            .output()
            .expect("node runs");
        (
            ended.status.success(),
            String::from_utf8_lossy(&ended.stdout).into_owned(),
        )
    };
    for (name, text) in dashboards() {
        let (is_one, said) = check(&text);
        assert!(is_one, "{name}: {said}");
        let (is_one, said) = check(&text.replace(r#""refresh": "30s""#, r#""refresh": 30"#));
        assert!(!is_one && said.contains("TS2322"), "{name}, damaged, passes: {said}");
    }
}
