//! Pods that are written for other systems, at the API server: the webhook translates them, none gets through
//! untranslated while replicas and certificates are replaced, and templates and annotations are created no matter which
//! replica leads.
//!
//! `dialects.rs` tests what such pods see at run time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::{Deserializer, Value, json};
use vgpu_e2e::kube::Kube;
use vgpu_e2e::wait::wait;
use vgpu_e2e::{install, patience};

use crate::controller::leader;
use crate::shared::{self, Installed, LIMIT, Test};

pub(crate) const TESTS: &[Test] = &[
    ("hami_pod_gets_a_claim_and_applying_it_again_changes_nothing", again),
    ("pods_that_ask_nothing_or_opt_out_never_reach_the_webhook", others),
    ("bad_pod_is_refused_with_field_value_and_fix", refused),
    (
        "annotations_pass_the_webhook_and_templates_come_back_whoever_leads",
        legacy_view,
    ),
    ("no_pod_gets_through_untranslated_while_replicas_are_killed", killed),
    ("upgrade_of_the_chart_keeps_certificates_and_trust", upgraded),
    ("deleted_secret_comes_back_and_every_pod_is_translated", without_secret),
    ("dialects_are_switched_on_while_an_old_pod_leads", switched_on),
];

const WEBHOOK: &str = "dra-driver-vgpu-webhook";
const GPU: &str = "nvidia.com/gpu";

const IMAGE: &str = "dra-driver-vgpu/client:dev";

/// A pod as in HAMi's documentation, with a second container without a request. It waits for a missing node: on a real
/// node the kubelet would end it only after pulling its images, and there are more such pods than GPUs.
fn hami(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
    "nodeSelector": {"nowhere": "yes"},
    "containers": [
        {"name": "main", "image": IMAGE, "resources": {"limits":
            {GPU: 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}}},
        {"name": "beside", "image": IMAGE},
    ]}})
}

/// The same, but it runs.
fn running(name: &str, mebibytes: u64) -> Value {
    let mut pod = hami(name);
    let spec = &mut pod["spec"];
    spec["nodeSelector"] = Value::Null;
    spec["dnsPolicy"] = json!("Default");
    spec["terminationGracePeriodSeconds"] = json!(2);
    spec["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] = json!(mebibytes);
    spec["containers"][0]["command"] = json!(["/usr/bin/vgpu-client", "hold"]);
    spec["containers"][1]["command"] = json!(["python3", "-c", "import signal; signal.pause()"]);
    pod
}

/// Runs a test in a namespace whose pods are translated.
fn in_labelled(name: &str, test: impl FnOnce(&Installed, &Kube<'_>) -> Result<()>) -> Result<()> {
    shared::in_namespace_of(shared::translating()?, name, |installed, kube| {
        kube.run(&["label", "namespace", name, "dra.vgpu/translate=true"])?;
        test(installed, kube)
    })
}

/// Returns what is wrong with a pod that should be translated.
fn check(pod: &Value) -> Result<()> {
    let claims = &pod["spec"]["resourceClaims"];
    let template = claims[0]["resourceClaimTemplateName"].as_str().unwrap_or_default();
    let [main, beside] = [0, 1].map(|at| &pod["spec"]["containers"][at]["resources"]);
    let record = pod["metadata"]["annotations"]["dra.vgpu/translated"]
        .as_str()
        .unwrap_or_default();
    for (what, is_so) in [
        ("one claim", claims.as_array().map(Vec::len) == Some(1)),
        ("a template's name", template.starts_with("vgpu-")),
        (
            "the claim in its container",
            main["claims"] == json!([{"name": claims[0]["name"]}]),
        ),
        ("no limits of HAMi", !main.to_string().contains("nvidia.com")),
        ("nothing in the other container", beside["claims"].is_null()),
        (
            "the original request in its annotation",
            record.contains(r#""nvidia.com/gpumem":""#) && record.contains(template),
        ),
    ] {
        ensure!(is_so, "the pod has not {what}: {pod}");
    }
    Ok(())
}

fn again() -> Result<()> {
    in_labelled("translate-again", |_, kube| {
        for (name, how) in [
            ("client", &["apply", "-f", "-"][..]),
            ("server", &["apply", "--server-side", "-f", "-"]),
            // Another user applies the same pod that these two have applied, as Argo CD would.
            (
                "server",
                &["apply", "--server-side", "--field-manager=argocd", "-f", "-"],
            ),
            (
                "client",
                &["apply", "--server-side", "--field-manager=argocd", "-f", "-"],
            ),
        ] {
            let manifest = hami(name).to_string();
            let mut seen: Option<Value> = None;
            for _ in 0..3 {
                let said = kube.try_run_with_input(how, &manifest)?;
                ensure!(said.status.success(), "{how:?}: {}{}", said.stdout, said.stderr);
                let pod = kube.get(&["pod", name])?;
                check(&pod)?;
                let same = seen.as_ref().is_none_or(|seen| {
                    seen["spec"] == pod["spec"] && seen["metadata"]["uid"] == pod["metadata"]["uid"]
                });
                ensure!(same, "another pod than at first: {seen:?}, {pod}");
                seen = Some(pod);
            }
        }
        // The record is removed, and restored.
        kube.run(&["annotate", "pod", "client", "dra.vgpu/translated-"])?;
        check(&kube.get(&["pod", "client"])?)?;
        // A dry run has no side effects to wait for.
        let said = kube.try_run_with_input(
            &["create", "--dry-run=server", "-o", "json", "-f", "-"],
            &hami("dry").to_string(),
        )?;
        ensure!(said.status.success(), "{}", said.stderr);
        check(&serde_json::from_str(&said.stdout)?)?;
        ensure!(
            said.stderr.contains("ResourceQuotas for nvidia.com/gpu"),
            "no warning: {}",
            said.stderr
        );
        Ok(())
    })
}

/// The number of reviews that all replicas have answered.
fn reviews(installed: &Installed) -> Result<u64> {
    let project = Kube::new(&installed.cluster, install::NAME);
    let mut sum = 0;
    for pod in replicas(&project)? {
        let path = format!("/api/v1/namespaces/{}/pods/{pod}:9441/proxy/metrics", install::NAME);
        let text = project.raw(&path)?;
        let lines = text
            .lines()
            .filter(|line| line.starts_with("vgpu_controller_webhook_reviews_total{"));
        for line in lines {
            sum += line
                .rsplit(' ')
                .next()
                .and_then(|count| count.parse::<u64>().ok())
                .context("a count")?;
        }
    }
    Ok(sum)
}

fn replicas(project: &Kube<'_>) -> Result<Vec<String>> {
    let pods = project.get(&[
        "pods",
        "-l",
        "app.kubernetes.io/component=controller",
        "--field-selector=status.phase=Running",
    ])?;
    let pods = pods["items"].as_array().context("no list")?.iter();
    let living = pods.filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
    Ok(living
        .filter_map(|pod| pod["metadata"]["name"].as_str().map(str::to_owned))
        .collect())
}

fn others() -> Result<()> {
    in_labelled("translate-others", |installed, kube| {
        let mut ignored = hami("ignored");
        ignored["metadata"]["labels"] = json!({"hami.io/webhook": "ignore"});
        let mut plain = hami("plain");
        plain["spec"]["containers"][0]["resources"]["limits"] = json!({"cpu": "10m"});
        let mut koordinator = hami("koordinator");
        koordinator["spec"]["containers"][0]["resources"]["limits"] = json!({"koordinator.sh/gpu": "50"});
        let before = reviews(installed)?;
        for pod in [ignored, plain, koordinator] {
            let name = pod["metadata"]["name"].as_str().context("a name")?;
            kube.apply(&pod.to_string())?;
            kube.run(&["label", "pod", name, "changed=yes"])?;
            let now = kube.get(&["pod", name])?;
            let resources = &now["spec"]["containers"][0]["resources"];
            let asked = pod["spec"]["containers"][0]["resources"]["limits"]
                .as_object()
                .context("limits")?;
            let kept = asked.keys().all(|key| !resources["limits"][key].is_null());
            ensure!(kept && now["spec"]["resourceClaims"].is_null(), "changed: {now}");
        }
        // The same pod in a namespace without the label.
        let elsewhere = Kube::new(&installed.cluster, "default");
        let said = elsewhere.try_run_with_input(
            &["create", "--dry-run=server", "-o", "json", "-f", "-"],
            &hami("elsewhere").to_string(),
        )?;
        ensure!(said.status.success(), "{}", said.stderr);
        let pod: Value = serde_json::from_str(&said.stdout)?;
        ensure!(
            pod["spec"]["containers"][0]["resources"]["limits"][GPU] == "1",
            "changed: {pod}"
        );
        let after = reviews(installed)?;
        ensure!(after == before, "{} reviews of pods that ask nothing", after - before);
        // Proves that the counters work.
        kube.apply(&hami("asks").to_string())?;
        let after = reviews(installed)?;
        ensure!(after == before + 1, "{before} reviews, then {after}");
        // Kubelet and scheduler change a translated pod's status, and a label is added: neither needs a review.
        kube.run(&["label", "pod", "asks", "changed=yes"])?;
        ensure!(reviews(installed)? == after, "a label of a translated pod is reviewed");
        let mut kai = hami("kai");
        kai["metadata"]["annotations"] = json!({"gpu-fraction": "0.5"});
        kai["spec"]["containers"] = json!([{"name": "main", "image": IMAGE}]);
        kube.apply(&kai.to_string())?;
        let pod = kube.get(&["pod", "kai"])?;
        ensure!(pod["spec"]["resourceClaims"][0].is_object(), "not translated: {pod}");
        Ok(())
    })
}

fn refused() -> Result<()> {
    in_labelled("translate-refused", |_, kube| {
        for (limits, words) in [
            (
                json!({GPU: 1, "nvidia.com/gpumem-percentage": 150}),
                &[
                    "spec.containers[0].resources.limits[nvidia.com/gpumem-percentage]",
                    "\"150\"",
                    "0 to 100",
                ][..],
            ),
            (
                json!({GPU: 1, "nvidia.com/gpumem": "1.5"}),
                &[
                    "spec.containers[0].resources.limits[nvidia.com/gpumem]",
                    "1500m",
                    "must be a whole number",
                ],
            ),
            (
                json!({GPU: 33}),
                &[
                    "spec.containers[0].resources.limits[nvidia.com/gpu]",
                    "\"33\"",
                    "at most 32",
                ],
            ),
        ] {
            let mut pod = hami("bad");
            pod["spec"]["containers"][0]["resources"]["limits"] = limits;
            let said = kube.try_apply(&pod.to_string())?;
            ensure!(!said.status.success(), "admitted: {pod}");
            for word in words {
                ensure!(said.stderr.contains(word), "{word:?} is not in: {}", said.stderr);
            }
        }
        Ok(())
    })
}

/// Waits until the pod runs and has everything that HAMi promises.
fn wait_for_legacy_view(kube: &Kube<'_>, name: &str) -> Result<Value> {
    kube.wait_running(name, LIMIT)?;
    wait(LIMIT, &format!("the annotations of {name}"), || {
        let pod = kube.get(&["pod", name])?;
        let annotations = &pod["metadata"]["annotations"];
        let mark = &annotations["dra.vgpu/legacy-view"];
        if mark.is_null() {
            return Ok(None);
        }
        ensure!(*mark == pod["metadata"]["uid"], "of another pod: {pod}");
        let devices = annotations["hami.io/vgpu-devices-allocated"].as_str();
        ensure!(devices.is_some_and(|devices| devices.contains(",NVIDIA,")), "{pod}");
        Ok(Some(pod))
    })
}

fn legacy_view() -> Result<()> {
    in_labelled("translate-legacy-view", |installed, kube| {
        let project = Kube::new(&installed.cluster, install::NAME);
        let before = reviews(installed)?;
        let manifest = running("first", 3000).to_string();
        kube.apply_as_user(&manifest)?;
        let created = kube.get(&["pod", "first"])?;
        check(&created)?;
        let pod = wait_for_legacy_view(kube, "first")?;
        // The leader's writes need no review, and leave the translation alone.
        ensure!(reviews(installed)? == before + 1, "the leader's patch was reviewed");
        let record = |pod: &Value| pod["metadata"]["annotations"]["dra.vgpu/translated"].clone();
        ensure!(
            record(&pod) == record(&created) && pod["spec"]["containers"] == created["spec"]["containers"],
            "changed: {created}, {pod}"
        );
        // A second apply does not remove any of it.
        kube.apply_as_user(&manifest)?;
        let again = kube.get(&["pod", "first"])?;
        ensure!(
            again["metadata"]["annotations"] == pod["metadata"]["annotations"] && again["spec"] == pod["spec"],
            "a second apply changed it: {pod}, {again}"
        );

        // The templates are deleted.
        let templates = || -> Result<Value> { Ok(kube.get(&["resourceclaimtemplates"])?["items"].clone()) };
        let made = templates()?;
        kube.run(&["delete", "resourceclaimtemplates", "--all"])?;
        wait(LIMIT, "the template to come back", || {
            let now = templates()?;
            let is_back = now[0]["spec"] == made[0]["spec"]
                && now[0]["metadata"]["name"] == made[0]["metadata"]["name"]
                && now[0]["metadata"]["uid"] != made[0]["metadata"]["uid"];
            Ok(is_back.then_some(()))
        })?;
        kube.apply(&running("second", 3000).to_string())?;
        wait_for_legacy_view(kube, "second")?;

        // The leader is killed before anybody has created the template of the next pod.
        let killed = leader(&project)?.context("nobody leads")?;
        project.run(&["delete", "pod", &killed, "--force", "--grace-period=0"])?;
        let next = running("third", 4000).to_string();
        wait(LIMIT, "a webhook that answers", || {
            let said = kube.try_apply(&next)?;
            let is_lost = said.stderr.contains("failed calling webhook");
            ensure!(said.status.success() || is_lost, "{}", said.stderr);
            Ok(said.status.success().then_some(()))
        })?;
        wait_for_legacy_view(kube, "third")?;
        ensure!(
            leader(&project)?.as_ref() != Some(&killed),
            "{killed} leads and is gone"
        );
        project.run(&["rollout", "status", "deployment", &patience::timeout(LIMIT)])?;
        Ok(())
    })
}

/// Maximum number of pods per second created by other users.
const RATE: usize = 20;
/// Number of users: one kubectl cannot reach [`RATE`] on a busy machine.
const USERS: usize = 2;

/// Results of the other users' pods.
#[derive(Debug, Default)]
struct Load {
    translated: usize,
    refused: usize,
}

/// Runs a test while others create pods, as dry runs: admission is the same, and there is nothing to delete. Each
/// admitted pod must be translated.
fn under_load<T>(kube: &Kube<'_>, test: impl FnOnce() -> Result<T>) -> Result<(T, Load)> {
    let over = AtomicBool::new(false);
    let begun = Instant::now();
    let (outcome, loads) = thread::scope(|scope| {
        let users: Vec<_> = (0..USERS).map(|_| scope.spawn(|| load(kube, &over))).collect();
        let outcome = test();
        over.store(true, Ordering::Relaxed);
        let loads = users
            .into_iter()
            .map(|user| user.join().map_err(|_| anyhow!("the load panicked"))?);
        (outcome, loads.collect::<Result<Vec<Load>>>())
    });
    let (outcome, mut all) = (outcome?, Load::default());
    for load in loads? {
        ensure!(load.translated > 0, "no pod was admitted: {load:?}");
        all.translated += load.translated;
        all.refused += load.refused;
    }
    println!("pods of others in {:?}: {all:?}", begun.elapsed());
    Ok((outcome, all))
}

fn load(kube: &Kube<'_>, over: &AtomicBool) -> Result<Load> {
    let pods: Vec<Value> = (0..RATE).map(|number| hami(&format!("load-{number}"))).collect();
    let pods = json!({"apiVersion": "v1", "kind": "List", "items": pods}).to_string();
    let mut load = Load::default();
    let mut next = Instant::now();
    while !over.load(Ordering::Relaxed) {
        let said = kube.try_run_with_input(&["create", "--dry-run=server", "-o", "json", "-f", "-"], &pods)?;
        let mut created = 0;
        for object in Deserializer::from_str(&said.stdout).into_iter::<Value>() {
            let object = object.context("kubectl's output")?;
            for pod in object["items"].as_array().unwrap_or(&vec![object.clone()]) {
                check(pod)?;
                created += 1;
            }
        }
        let lost = said.stderr.matches("failed calling webhook").count();
        ensure!(
            created + lost == RATE,
            "{created} created, {lost} refused: {}",
            said.stderr
        );
        load.translated += created;
        load.refused += lost;
        next = (next + Duration::from_secs(1)).max(Instant::now());
        thread::sleep(next - Instant::now());
    }
    Ok(load)
}

/// Tries to create pods until `done`. Every created pod must be translated.
fn create(
    kube: &Kube<'_>,
    prefix: &str,
    made: &mut usize,
    mut done: impl FnMut(usize) -> Result<bool>,
) -> Result<usize> {
    let mut refusals = 0;
    let deadline = Instant::now() + patience::stretched(Duration::from_secs(120));
    loop {
        let said = kube.try_run_with_input(&["create", "-f", "-"], &hami(&format!("{prefix}-{made}")).to_string())?;
        if said.status.success() {
            *made += 1;
        } else {
            ensure!(said.stderr.contains("failed calling webhook"), "{}", said.stderr);
            refusals += 1;
        }
        if done(*made)? {
            return Ok(refusals);
        }
        ensure!(
            Instant::now() <= deadline,
            "{made} pods were made, {refusals} refused, and it goes on: {}",
            said.stderr
        );
    }
}

fn all_translated(kube: &Kube<'_>, made: usize) -> Result<()> {
    let pods = kube.get(&["pods"])?;
    let pods = pods["items"].as_array().context("no list")?;
    ensure!(pods.len() == made, "{} pods instead of {made}", pods.len());
    pods.iter().try_for_each(check)
}

fn killed() -> Result<()> {
    in_labelled("translate-killed", |installed, kube| {
        let project = Kube::new(&installed.cluster, install::NAME);
        let mut made = 0;
        create(kube, "p", &mut made, |made| Ok(made >= 5))?;
        // One after the other, then both at once.
        under_load(kube, || {
            for round in 0..3 {
                let running = replicas(&project)?;
                ensure!(running.len() >= 2, "replicas: {running:?}");
                let count = if round < 2 { 1 } else { running.len() };
                for pod in running.iter().take(count) {
                    project.run(&["delete", "pod", pod, "--force", "--grace-period=0", "--wait=false"])?;
                }
                let enough = made + 10;
                create(kube, "p", &mut made, |made| {
                    let fresh = replicas(&project)?.iter().filter(|pod| !running.contains(pod)).count();
                    Ok(made >= enough && fresh >= count)
                })?;
                project.run(&["rollout", "status", "deployment", &patience::timeout(LIMIT)])?;
            }
            Ok(())
        })?;
        all_translated(kube, made)?;
        // Without any replica a pod is refused, not admitted untranslated.
        let deployment = "deployment/dra-driver-vgpu-controller";
        project.run(&["scale", deployment, "--replicas=0"])?;
        wait(LIMIT, "the replicas to end", || {
            Ok(replicas(&project)?.is_empty().then_some(()))
        })?;
        let said = kube.try_run_with_input(&["create", "-f", "-"], &hami("nobody").to_string())?;
        project.run(&["scale", deployment, "--replicas=2"])?;
        ensure!(
            !said.status.success() && said.stderr.contains(WEBHOOK),
            "admitted by nobody: {}",
            said.stdout
        );
        let enough = made + 1;
        create(kube, "p", &mut made, |made| Ok(made >= enough))?;
        all_translated(kube, made)
    })
}

/// Objects that an upgrade must not change: the certificate, and the authority that the API server trusts.
fn certificates(project: &Kube<'_>) -> Result<[Value; 2]> {
    let secret = project.get(&["secret", WEBHOOK])?["data"].clone();
    let configuration = project.get(&["mutatingwebhookconfiguration", WEBHOOK])?;
    let trusted = configuration["webhooks"][0]["clientConfig"]["caBundle"].clone();
    ensure!(
        secret["tls.crt"].is_string() && trusted.is_string(),
        "{secret}, {trusted}"
    );
    Ok([secret, trusted])
}

fn upgraded() -> Result<()> {
    in_labelled("translate-upgraded", |installed, kube| {
        let project = Kube::new(&installed.cluster, install::NAME);
        let chart = install::chart();
        let chart = chart.to_str().context("the clone's path is not UTF-8")?;
        let before = certificates(&project)?;
        for mode in ["report", "translate"] {
            let value = format!("translate.mode={mode}");
            let limit = patience::timeout(LIMIT);
            project.helm(&[
                "upgrade",
                install::NAME,
                chart,
                "--reuse-values",
                "--set",
                &value,
                "--wait",
                &limit,
            ])?;
            ensure!(
                certificates(&project)? == before,
                "the upgrade changed the certificates"
            );
            kube.apply(&hami(mode).to_string())?;
        }
        check(&kube.get(&["pod", "translate"])?)?;
        let reported = kube.get(&["pod", "report"])?;
        ensure!(reported["spec"]["resourceClaims"].is_null(), "translated: {reported}");
        Ok(())
    })
}

/// With quotas enabled there is a leader before there is a webhook, and a rollout keeps it until a new pod is ready.
/// If that pod did not create the first pair, `--wait` would time out.
fn switched_on() -> Result<()> {
    in_labelled("translate-switched", |installed, kube| {
        let project = Kube::new(&installed.cluster, install::NAME);
        let chart = install::chart();
        let chart = chart.to_str().context("the clone's path is not UTF-8")?;
        let limit = patience::timeout(LIMIT);
        let upgrade = |values: &[&str]| -> Result<()> {
            let mut arguments = vec!["upgrade", install::NAME, chart, "--reuse-values", "--wait", &limit];
            for value in values {
                arguments.extend(["--set", value]);
            }
            project.helm(&arguments).map(drop)
        };
        let switched = upgrade(&["translate.dialects=null", "quota.enabled=true"]).and_then(|()| {
            wait(LIMIT, "a leader without the webhook", || leader(&project))?;
            upgrade(&["translate.dialects={hami,kai}"])?;
            kube.apply(&hami("first").to_string())?;
            check(&kube.get(&["pod", "first"])?)
        });
        // Other tests use this cluster too.
        let back = upgrade(&["translate.dialects={hami,kai}", "quota.enabled=false"]);
        switched.and(back)
    })
}

fn without_secret() -> Result<()> {
    in_labelled("translate-secret", |installed, kube| {
        let project = Kube::new(&installed.cluster, install::NAME);
        let certificate = || -> Result<Value> { Ok(project.get(&["secret", WEBHOOK])?["data"]["tls.crt"].clone()) };
        let first = certificate()?;
        ensure!(first.is_string(), "no certificate");
        project.run(&["delete", "secret", WEBHOOK])?;
        let mut made = 0;
        // A certificate is used 30 s after its authority was written to the caBundle.
        let ((refusals, later), load) = under_load(kube, || {
            let refusals = create(kube, "p", &mut made, |_| {
                let now = project.try_run(&["get", "secret", WEBHOOK, "-o", "jsonpath={.data.tls\\.crt}"])?;
                Ok(now.status.success() && !now.stdout.is_empty() && Some(now.stdout.as_str()) != first.as_str())
            })?;
            let enough = made + 20;
            Ok((refusals, create(kube, "p", &mut made, |made| Ok(made >= enough))?))
        })?;
        ensure!(
            refusals + later + load.refused == 0,
            "{refusals} pods were refused before, {later} after the change, {} meanwhile",
            load.refused
        );
        all_translated(kube, made)
    })
}
