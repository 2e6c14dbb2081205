//! Users' mistakes: each leads to one clear error, where its user looks, and leaves nothing behind.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use vgpu_e2e::kube::Kube;
use vgpu_e2e::outcome::after;
use vgpu_e2e::wait::wait;
use vgpu_e2e::{install, layout, node, patience, workload};

use crate::fleet::wait_for_event;
use crate::manifests::{HOLD, config, pod, template};
use crate::shared::{self, Installed, LIMIT, Test, hold};

pub(crate) const TESTS: &[Test] = &[
    ("admission_refuses_claims_that_cannot_work", refused),
    ("admission_accepts_claims_that_can_work", accepted),
    ("kubectl_shows_warnings_about_pods_and_claims", warned),
    (
        "prepare_says_on_the_pod_what_admission_would_have_refused",
        prepare_refuses,
    ),
    ("more_memory_than_any_gpu_has_is_said_on_the_pod", too_much),
    ("config_of_another_driver_is_ignored", other_driver),
    (
        "claim_that_requires_the_drivers_limit_is_refused_with_the_nodes_reason",
        without_driver_limit,
    ),
    ("container_without_glibc_starts_and_gets_one_warning", without_glibc),
    (
        "monitor_claim_in_a_namespace_without_the_label_is_refused",
        monitor_without_label,
    ),
    (
        "failed_unprepare_is_said_on_the_pod_that_stays_terminating",
        failed_unprepare,
    ),
    (
        "damaged_ledger_is_said_on_every_pod_of_its_claim",
        damaged_ledger_of_two,
    ),
    ("damaged_limits_file_is_named_on_the_containers_stderr", damaged_limits),
];

/// The cases with this verdict: file and text.
fn cases(verdict: &str) -> Result<Vec<(PathBuf, String)>> {
    let folder = layout::workspace().join("deploy/admission-cases").join(verdict);
    let entries = fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    ensure!(!files.is_empty(), "{} has no case", folder.display());
    files
        .into_iter()
        .map(|file| fs::read_to_string(&file).map(|text| (file, text)).map_err(Into::into))
        .collect()
}

/// Waits for the policies, which take effect a moment after their creation.
fn wait_for_policies(kube: &Kube<'_>) -> Result<()> {
    let (_, probe) = cases("refuse")?.into_iter().next().context("no case")?;
    wait(LIMIT, "the admission policy to act", || {
        let said = kube.try_run_with_input(&["create", "--dry-run=server", "-f", "-"], &probe)?;
        Ok((!said.status.success()).then_some(()))
    })
}

/// Some cases request admin access, which Kubernetes itself refuses in other namespaces.
fn allow_admin_access(kube: &Kube<'_>, namespace: &str) -> Result<()> {
    kube.run(&[
        "label",
        "namespace",
        namespace,
        "resource.kubernetes.io/admin-access=true",
    ])
    .map(drop)
}

fn refused() -> Result<()> {
    shared::in_namespace("admission-refuses", |_, kube| {
        allow_admin_access(kube, "admission-refuses")?;
        wait_for_policies(kube)?;
        let mut wrong = Vec::new();
        for (file, text) in cases("refuse")? {
            let expected = text
                .lines()
                .next()
                .and_then(|line| line.strip_prefix("# refused: "))
                .map(str::trim);
            let expected =
                expected.with_context(|| format!("{} has no first line `# refused: ...`", file.display()))?;
            let said = kube.try_run_with_input(&["create", "--dry-run=server", "-f", "-"], &text)?;
            if said.status.success() {
                wrong.push(format!("{} was accepted", file.display()));
            } else if !said.stderr.contains(expected) {
                wrong.push(format!(
                    "{}: expected {expected:?} in: {}",
                    file.display(),
                    said.stderr.trim()
                ));
            }
        }
        ensure!(wrong.is_empty(), wrong.join("\n"));
        Ok(())
    })
}

fn accepted() -> Result<()> {
    shared::in_namespace("admission-accepts", |_, kube| {
        allow_admin_access(kube, "admission-accepts")?;
        let mut wrong = Vec::new();
        for (file, text) in cases("accept")? {
            let said = kube.try_run_with_input(&["create", "--dry-run=server", "-f", "-"], &text)?;
            if !said.status.success() {
                wrong.push(format!("{}: {}", file.display(), said.stderr.trim()));
            }
        }
        ensure!(wrong.is_empty(), wrong.join("\n"));
        Ok(())
    })
}

/// kubectl prints each warning once, and none about correct fields.
fn warned() -> Result<()> {
    shared::in_namespace("admission-warns", |_, kube| {
        let mut wrong = Vec::new();
        for (file, text) in [cases("warnings/warn")?, cases("warnings/silent")?].concat() {
            let name = file.file_name().context("no name")?.to_string_lossy().into_owned();
            // These files are for a cluster without dialects, and this cluster has all of them.
            if name.starts_with("off-") {
                continue;
            }
            let request: Value = serde_saphyr::from_str(&text)?;
            let mut labels = Vec::new();
            for (key, value) in request["namespace"].as_object().into_iter().flatten() {
                labels.push((
                    format!("{key}={}", value.as_str().unwrap_or_default()),
                    format!("{key}-"),
                ));
            }
            for (set, _) in &labels {
                kube.run(&["label", "namespace", "admission-warns", set])?;
            }
            let expected = text.lines().next().and_then(|line| line.strip_prefix("# warned: "));
            let said = wait_for_warnings(kube, &request["object"], expected);
            for (_, removed) in &labels {
                kube.run(&["label", "namespace", "admission-warns", removed])?;
            }
            if let Err(error) = said {
                wrong.push(format!("{name}: {error:#}"));
            }
        }
        match wrong.is_empty() {
            true => Ok(()),
            false => bail!(wrong.join("\n")),
        }
    })
}

/// Policies and labels take effect a moment after they are written.
fn wait_for_warnings(kube: &Kube<'_>, object: &Value, expected: Option<&str>) -> Result<()> {
    wait(LIMIT, &format!("the warnings {expected:?}"), || {
        let create = ["create", "--dry-run=server", "-f", "-"];
        let said = kube.try_run_with_input(&create, &object.to_string())?;
        if !said.status.success() {
            bail!("refused: {}", said.stderr.trim());
        }
        let ours = said
            .stderr
            .lines()
            .filter(|line| line.contains("-warnings' with binding"));
        let ours: Vec<&str> = ours.collect();
        let is_so = match expected {
            Some(words) => ours.len() == 1 && ours[0].contains(words),
            None => ours.is_empty(),
        };
        is_so.then_some(Some(())).with_context(|| said.stderr.clone())
    })
}

/// Removes the bindings of our admission policies while a test creates objects that they would refuse.
fn without_admission(kube: &Kube<'_>, test: impl FnOnce() -> Result<()>) -> Result<()> {
    let bindings = kube.get(&["validatingadmissionpolicybindings"])?;
    let ours: Vec<Value> = bindings["items"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|binding| binding["metadata"]["labels"]["app.kubernetes.io/instance"] == install::NAME)
        .cloned()
        .collect();
    for binding in &ours {
        kube.run(&[
            "delete",
            "validatingadmissionpolicybinding",
            binding["metadata"]["name"].as_str().unwrap_or_default(),
        ])?;
    }
    let outcome = test();
    let restored = ours.into_iter().map(|mut binding| {
        for key in ["resourceVersion", "uid", "creationTimestamp", "generation"] {
            binding["metadata"].as_object_mut().map(|metadata| metadata.remove(key));
        }
        kube.apply(&binding.to_string())
    });
    restored.fold(outcome, after)
}

fn prepare_refuses() -> Result<()> {
    shared::in_namespace("prepare-refuses", |_, kube| {
        without_admission(kube, || {
            let cases = [
                (
                    "unknown-field",
                    json!({"memory": "1Gi"}),
                    config(&json!({"compute": "fast"})),
                    "compute",
                ),
                (
                    "loosens",
                    json!({"memory": "1Gi"}),
                    config(&json!({"priority": "High"})),
                    "priority",
                ),
                (
                    "guaranteed",
                    json!({"memory": "1Gi"}),
                    config(&json!({"computePolicy": "Guaranteed"})),
                    "cores",
                ),
            ];
            for (name, capacity, parameters, field) in cases {
                let manifests =
                    template(name, "vgpu", capacity, &[("dra.vgpu", parameters)]) + &pod(name, "client", &HOLD, name);
                wait(LIMIT, "the policy's removal to take effect", || {
                    let said = kube.try_apply(&manifests)?;
                    ensure!(said.status.success(), said.stderr);
                    Ok(Some(()))
                })?;
                wait_for_event(kube, name, "", &[field, name])?;
            }
            Ok(())
        })
    })
}

fn too_much() -> Result<()> {
    shared::in_namespace("too-much", |_, kube| {
        kube.apply(&(template("t", "vgpu", json!({"memory": "900Gi"}), &[]) + &pod("big", "client", &HOLD, "t")))?;
        let claim = wait(LIMIT, "the pod to have a claim", || {
            Ok(workload::shares(kube)?.pop().map(|share| share.claim))
        })?;
        // The event names the claim, the request and its amount, and says that no GPU is large enough.
        let wanted = [
            claim.as_str(),
            "request gpu",
            "memory 900Gi",
            "Capacity: memory: 900Gi wanted, ",
            "so this never fits",
        ];
        wait_for_event(kube, "big", "VgpuClaimPending", &wanted)
    })
}

fn other_driver() -> Result<()> {
    shared::in_namespace("other-driver", |_, kube| {
        let foreign = json!({"apiVersion": "example.com/v1", "kind": "Other", "nonsense": true});
        let manifests = template("t", "vgpu", json!({"memory": "1Gi"}), &[("other.example.com", foreign)]);
        kube.apply(&(manifests + &pod("one", "client", &HOLD, "t")))?;
        kube.wait_running("one", LIMIT)
    })
}

/// The software GPU's driver limits no cgroups by default, and the test machines have no cgroup v2 of their own.
fn without_driver_limit() -> Result<()> {
    shared::in_namespace("driver-limit", |installed, kube| {
        let slices = kube.get(&["resourceslices"])?;
        let devices = slices["items"].as_array().into_iter().flatten();
        let devices = devices.flat_map(|slice| slice["spec"]["devices"].as_array().into_iter().flatten());
        let answers: Vec<&Value> = devices
            .map(|device| &device["attributes"]["driverLimit"]["string"])
            .collect();
        ensure!(
            !answers.is_empty() && answers.iter().all(|answer| *answer == "none"),
            "driverLimit: {answers:?}"
        );
        let enforced = |name: &str, word: &str| {
            let config = config(&json!({"memoryEnforcement": word}));
            template(name, "vgpu", json!({"memory": "1Gi"}), &[("dra.vgpu", config)])
                + &pod(name, "client", &HOLD, name)
        };
        kube.apply(&(enforced("require", "Require") + &enforced("prefer", "Prefer")))?;
        let wanted = [
            "memoryEnforcement Require: the driver of this node does not limit",
            why_no_driver_limit()?,
            "or use Prefer",
        ];
        wait_for_event(kube, "require", "FailedPrepareDynamicResources", &wanted)?;
        kube.wait_running("prefer", LIMIT)?;
        let shares = workload::shares(kube)?;
        let share = shares.iter().find(|share| share.claim.starts_with("prefer"));
        let (file, spec) = node::cdi_spec(&installed.cluster, &share.context("the pod has no share")?.claim_uid)?;
        ensure!(
            !spec.contains("createRuntime"),
            "{file} has a hook for a limit that is not there: {spec}"
        );
        Ok(())
    })
}

/// Returns the probe's reason on nodes of this machine: the kind of its cgroups, and with version 2 alone the software GPU's answer.
fn why_no_driver_limit() -> Result<&'static str> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").context("cannot read the mounts")?;
    let mounts: Vec<&str> = mounts.lines().filter(|line| line.contains(" - cgroup2 ")).collect();
    let is_alone = mounts
        .iter()
        .any(|line| line.split(' ').nth(4) == Some("/sys/fs/cgroup"));
    Ok(match (is_alone, mounts.is_empty()) {
        (true, _) => "NVML_ERROR_NOT_SUPPORTED",
        (false, false) => "the node's cgroups are hybrid (v1, with v2 beside it)",
        (false, true) => "cgroup v1 is mounted there",
    })
}

fn without_glibc() -> Result<()> {
    shared::in_namespace("no-glibc", |_, kube| {
        let sleep = ["sh", "-c", "sleep 600"];
        kube.apply(&(template("t", "vgpu", json!({"memory": "1Gi"}), &[]) + &pod("musl", "no-glibc", &sleep, "t")))?;
        kube.wait_running("musl", LIMIT)?;
        wait_for_event(kube, "musl", "NoGlibc", &["glibc"])?;
        std::thread::sleep(patience::stretched(std::time::Duration::from_secs(12))); // longer than the plugin's round
        match kube.events("musl", "NoGlibc")?.len() {
            1 => Ok(()),
            more => bail!("{more} warnings instead of one"),
        }
    })
}

/// The file of this name of the claim's share on the node.
fn share_file(installed: &Installed, claim_uid: &str, name: &str) -> Result<PathBuf> {
    let folder = node::claim_folder(&installed.cluster, claim_uid)?;
    fs::read_dir(&folder)
        .with_context(|| format!("cannot read {}", folder.display()))?
        .flatten()
        .map(|entry| entry.path().join(name))
        .find(|file| file.is_file())
        .with_context(|| format!("{} holds no file {name}", folder.display()))
}

fn damaged_limits() -> Result<()> {
    shared::in_namespace("damaged-limits", |installed, kube| {
        hold(kube, "one", "1Gi")?;
        let share = workload::shares(kube)?.pop().context("the pod has no claim")?;
        let limits = share_file(installed, &share.claim_uid, "limits")?;
        let mut bytes = fs::read(&limits)?;
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x55;
        fs::write(&limits, bytes).with_context(|| format!("cannot write {}", limits.display()))?;
        let said = kube.try_run(&["exec", "one", "--", "vgpu-client", "alloc", "2097152"])?;
        ensure!(
            !said.status.success(),
            "a program allocated under a damaged limits file"
        );
        ensure!(
            said.stderr.contains("limits") && said.stderr.contains("/dev/vgpu/"),
            "stderr does not name the file: {}",
            said.stderr.trim()
        );
        Ok(())
    })
}

fn monitor_without_label() -> Result<()> {
    shared::in_namespace("monitor-unlabelled", |_, kube| {
        let file = layout::workspace().join("deploy/admission-cases/accept/monitor.yaml");
        let claim = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let create = || kube.try_run_with_input(&["create", "--dry-run=server", "-f", "-"], &claim);
        let said = create()?;
        ensure!(
            !said.status.success(),
            "a monitor claim is accepted in a namespace without the label"
        );
        ensure!(
            said.stderr.contains("resource.kubernetes.io/admin-access"),
            "the refusal does not name the label: {}",
            said.stderr.trim()
        );
        // With the label it is accepted, so nothing else is wrong with it.
        allow_admin_access(kube, "monitor-unlabelled")?;
        let said = create()?;
        ensure!(said.status.success(), "with the label: {}", said.stderr.trim());
        Ok(())
    })
}

fn failed_unprepare() -> Result<()> {
    shared::in_namespace("failed-unprepare", |installed, kube| {
        hold(kube, "stuck", "1Gi")?;
        let share = workload::shares(kube)?.pop().context("the pod has no claim")?;
        // A folder in place of the CDI file cannot be removed as a file, as on a read-only or broken disk.
        let (inside, _) = node::cdi_spec(&installed.cluster, &share.claim_uid)?;
        let nodes = node::prepared_on(&installed.cluster, &share.claim_uid)?;
        let file = nodes
            .first()
            .context("the claim is prepared on no node")?
            .path_inside(&inside)?;
        fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
        fs::create_dir(&file).with_context(|| format!("cannot create {}", file.display()))?;
        let told = kube
            .run(&["delete", "pod", "stuck", "--wait=false"])
            .and_then(|_| wait_for_event(kube, "stuck", "UnprepareFailed", &[&share.claim, "dra.vgpu-claim_"]))
            .and_then(|()| {
                let is_there = kube.phases()?.iter().any(|(pod, _)| pod == "stuck");
                ensure!(is_there, "the pod is gone, though its claim is still prepared");
                Ok(())
            });
        // Repair the file even after a failure, so that the kubelet's retry succeeds and the pod ends.
        let repaired = fs::remove_dir(&file).with_context(|| format!("cannot remove {}", file.display()));
        after(told, repaired)?;
        kube.run(&["wait", "--for=delete", "pod/stuck", &patience::timeout(LIMIT * 2)])
            .map(drop)
    })
}

fn damaged_ledger_of_two() -> Result<()> {
    shared::in_namespace("damaged-ledger", |installed, kube| {
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "both"},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {
                "deviceClassName": "vgpu", "capacity": {"requests": {"memory": "1Gi"}}}}]}},
        });
        // A pod without memory in use: with memory it would not start with a damaged ledger.
        let idle = ["python3", "-c", "import time; time.sleep(3600)"];
        let of = |name: &str| -> Result<String> {
            let mut object: Value = serde_json::from_str(pod(name, "client", &idle, "t").trim_end_matches("\n---\n"))?;
            object["spec"]["resourceClaims"] = json!([{"name": "gpu", "resourceClaimName": "both"}]);
            Ok(format!("{object}\n---\n"))
        };
        kube.apply(&(format!("{claim}\n---\n") + &of("one")? + &of("two")?))?;
        for name in ["one", "two"] {
            kube.wait_running(name, LIMIT)?;
        }
        let allocate = ["vgpu-client", "alloc", "2097152"];
        kube.exec("one", &allocate)?;
        let uid = kube.get(&["resourceclaim", "both"])?["metadata"]["uid"].clone();
        let ledger = share_file(installed, uid.as_str().context("the claim has no UID")?, "ledger")?;
        fs::write(&ledger, "damage").with_context(|| format!("cannot write {}", ledger.display()))?;
        // The plugin checks once a minute.
        for name in ["one", "two"] {
            wait(
                LIMIT * 3,
                &format!("an event on pod {name} that says who can mend it"),
                || {
                    let events = kube.events(name, "LedgerDamaged")?;
                    let words = ["ResourceClaim both", "not enough"];
                    let both = ["(one, two)", "(two, one)"];
                    let found = events.iter().any(|message| {
                        words.iter().all(|word| message.contains(word))
                            && both.iter().any(|pods| message.contains(pods))
                    });
                    Ok(found.then_some(()))
                },
            )?;
        }
        // As the event says: the ledger outlives one of its pods, but not both.
        kube.run(&["delete", "pod", "one"])?;
        kube.apply(&of("one")?)?;
        kube.wait_running("one", LIMIT)?;
        ensure!(
            kube.exec("one", &allocate).is_err(),
            "a new pod of the claim allocates under a damaged ledger"
        );
        kube.run(&["delete", "pod", "one", "two"])?;
        kube.apply(&of("one")?)?;
        kube.wait_running("one", LIMIT)?;
        kube.exec("one", &allocate).map(drop)
    })
}
