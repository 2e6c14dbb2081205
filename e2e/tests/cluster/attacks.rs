//! Attacks of tenants on their limits, in real pods: docs/threat-model.md, "Attacks on the limit", has a row for each
//! of these cases.
//!
//! Each case is a container. Cases without volumes are containers of one pod for each kind of user; the others are
//! pods of their own. All run at the same time, and each prints its result: `held`, or `lifted`.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};
use vgpu_e2e::kube::Kube;
use vgpu_e2e::wait::wait;

use crate::manifests::{pod, template};
use crate::shared::{self, LIMIT, Test};

pub(crate) const TESTS: &[Test] = &[
    ("as_root_of_the_container", as_root),
    ("as_an_ordinary_user", as_user),
    ("under_the_restricted_profile", restricted),
    ("in_a_user_namespace", user_namespace),
    ("by_the_volumes_of_a_pod", by_volumes),
    ("by_two_containers_of_a_pod", by_two),
    ("honest_pods_with_volumes_run_or_get_an_event", honest),
];

/// Sets S to the folder of shares, and D to that of the real driver. `move` renames, and does not copy if it cannot
/// rename.
const PLACES: &str = "S=$(ls -d /dev/vgpu /run/vgpu 2>/dev/null | head -n 1); \
                      D=$(ls -d /dev/vgpu/.driver /usr/lib/vgpu/driver 2>/dev/null | head -n 1); \
                      probe() { \"$@\" python3 /kit/probe.py $D/libcuda.so.1; }; \
                      move() { python3 -c 'import os, sys; os.rename(*sys.argv[1:])' $1 $2 2>/dev/null; }; ";

/// The expected result of a case.
#[derive(Clone, Copy, Debug)]
enum Expected {
    /// The limit is enforced.
    Held,
    /// The limit is lifted, as the threat model says.
    Lifted,
    /// The container does not start, and an event on its pod contains this text.
    Told(&'static str),
}

use Expected::{Held, Lifted, Told};

/// An attack by a container without volumes.
type Attack = (&'static str, &'static str);

const ATTACKS: &[Attack] = &[
    ("no-attack", "python3 /kit/probe.py libcuda.so.1"),
    ("empty-list", "(: >/etc/ld.so.preload); probe"),
    ("remove-list", "rm -f /etc/ld.so.preload; probe"),
    (
        "replace-list",
        "(: >/etc/list); mv /etc/list /etc/ld.so.preload; ln -sf /tmp/none /etc/ld.so.preload; probe",
    ),
    ("rename-etc", "move /etc /etc.gone && mkdir /etc; probe"),
    (
        "rename-shares",
        "move $S $S.gone && mkdir -p $S && python3 /kit/forge.py $S.gone $S; python3 /kit/probe.py libcuda.so.1",
    ),
    (
        "forge-beside",
        "mkdir -p /tmp/vgpu; python3 /kit/forge.py $S /tmp/vgpu; cp -r /tmp/vgpu /run 2>/dev/null; \
         export VGPU_RUN_DIR=/tmp/vgpu; python3 /kit/probe.py libcuda.so.1",
    ),
    (
        "rename-libraries",
        "move /usr/lib/vgpu /usr/lib/gone; move /dev/vgpu/.lib /dev/vgpu/gone; \
         move /usr/lib/x86_64-linux-gnu/libcuda.so.1 /tmp/libcuda.so.1; [ -e $D ] || D=/usr/lib/gone/driver; probe",
    ),
    ("unmount", "probe python3 /kit/mounts.py unmount"),
    (
        "chroot",
        "r=/tmp/root; mkdir -p $r; cp -a --parents $D /lib64 /usr/lib64 /usr/lib/x86_64-linux-gnu /usr/lib/python3* $r; \
         cp -a /kit/..data/probe.py $r; ln -s usr/lib $r/lib; mkdir -p $r/dev/vgpu $r/run/soft-gpu; \
         cp -r /run/soft-gpu $r/run; python3 /kit/forge.py $S $r$S; \
         python3 /kit/chroot.py $r /usr/lib/x86_64-linux-gnu/libcuda.so.1 || echo held: no chroot",
    ),
];

/// Not prevented: a loader that does not read the list.
const OWN_LOADER: Attack = (
    "own-loader",
    "python3 /kit/loader.py /lib64/ld-linux-x86-64.so.2 /tmp/ld.so; \
     /tmp/ld.so /usr/bin/python3 /kit/probe.py $D/libcuda.so.1",
);
/// Prevented by seccomp's profile RuntimeDefault, but not by Unconfined, which is Kubernetes' default.
const OWN_NAMESPACE: Attack = ("own-namespace", "probe python3 /kit/mounts.py namespace");

fn as_root() -> Result<()> {
    attacked("attacks-root", &json!({}), &json!({}), Lifted)
}

fn as_user() -> Result<()> {
    attacked(
        "attacks-user",
        &json!({"runAsUser": 1000, "runAsGroup": 1000}),
        &json!({}),
        Lifted,
    )
}

fn restricted() -> Result<()> {
    let context = json!({
        "runAsUser": 1000,
        "runAsNonRoot": true,
        "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    });
    attacked("attacks-restricted", &context, &json!({}), Held)
}

fn user_namespace() -> Result<()> {
    let mut cannot = None;
    shared::in_namespace("userns-probe", |_, kube| {
        prepare(kube)?;
        let mut plain = object("plain", &["true"]);
        plain["spec"]["resourceClaims"].take();
        plain["spec"]["containers"][0]["resources"].take();
        plain["spec"]["hostUsers"] = json!(false);
        kube.apply(&plain.to_string())?;
        cannot = finished(kube, "plain").err().map(|error| format!("{error:#}"));
        Ok(())
    })?;
    if let Some(reason) = cannot {
        let line = reason.lines().next().unwrap_or_default().to_owned();
        vgpu_skip::skip(
            "attacks::in_a_user_namespace",
            &format!("no pod with hostUsers: false here: {line}"),
        );
        return Ok(());
    }
    attacked("attacks-userns", &json!({}), &json!({"hostUsers": false}), Lifted)
}

/// Runs every attack without volumes, in a pod with this security context and this part of a specification.
/// `own_namespace`: the expected result of that attack.
fn attacked(namespace: &str, context: &Value, spec: &Value, own_namespace: Expected) -> Result<()> {
    shared::in_namespace(namespace, |_, kube| {
        prepare(kube)?;
        let mut all = object("attacks", &[]);
        let one = all["spec"]["containers"][0].clone();
        let of = |(name, script): &Attack| {
            let mut container = one.clone();
            container["name"] = json!(name);
            container["command"] = json!(["sh", "-c", format!("{PLACES}{script}")]);
            container["securityContext"] = context.clone();
            container
        };
        let containers = ATTACKS.iter().chain([&OWN_LOADER, &OWN_NAMESPACE]).map(of);
        all["spec"]["containers"] = containers.collect();
        for (key, value) in spec.as_object().into_iter().flatten() {
            all["spec"][key] = value.clone();
        }
        kube.apply(&all.to_string())?;
        let mut wrong = Vec::new();
        let attacks = ATTACKS.iter().map(|(name, _)| (*name, Held));
        for (name, expected) in attacks.chain([(OWN_LOADER.0, Lifted)]) {
            wrong.extend(checked(kube, "attacks", name, expected).err());
        }
        let (name, _) = OWN_NAMESPACE;
        if let Err(error) = checked(kube, "attacks", name, own_namespace) {
            let log = kube.logs("attacks", Some(name)).unwrap_or_default();
            let cannot = log.lines().find(|line| line.starts_with("no user namespace"));
            match (own_namespace, cannot) {
                (Lifted, Some(line)) => vgpu_skip::skip(&format!("{namespace}: {name}"), line),
                _ => wrong.push(error),
            }
        }
        summary(wrong)
    })
}

/// A pod whose containers share its claim.
fn object(name: &str, command: &[&str]) -> Value {
    let text = pod(name, "client", command, "t");
    let mut object: Value = serde_json::from_str(text.trim_end_matches("\n---\n")).unwrap_or_default();
    object["spec"]["volumes"] = json!([{"name": "kit", "configMap": {"name": "kit"}}]);
    object["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "kit", "mountPath": "/kit"}]);
    object
}

/// The claim template, and the programs of the attacks.
fn prepare(kube: &Kube<'_>) -> Result<()> {
    let kit = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "kit"},
        "data": {
            "probe.py": include_str!("attacks/probe.py"),
            "forge.py": include_str!("attacks/forge.py"),
            "mounts.py": include_str!("attacks/mounts.py"),
            "chroot.py": include_str!("attacks/chroot.py"),
            "loader.py": include_str!("attacks/loader.py"),
            "empty": "",
        },
        "binaryData": {"nul": "AA=="},
    });
    kube.apply(&format!(
        "{kit}\n---\n{}",
        template("t", "vgpu", json!({"memory": "1Gi"}), &[])
    ))
}

/// A separate pod for a case with volumes.
struct Case {
    name: &'static str,
    /// Names, with `@memory` for a volume in memory.
    volumes: &'static str,
    /// `NAME:PATH[:SUBPATH]`.
    mounts: &'static str,
    /// Script and mounts of an init container, which ends before the attack.
    before: Option<(&'static str, &'static str)>,
    /// Script and mounts of a container without the claim that runs at the same time.
    beside: Option<(&'static str, &'static str)>,
    /// More fields of the container, and of the pod.
    spec: Value,
    pod: Value,
    script: &'static str,
    expected: Expected,
}

impl Case {
    fn new(
        name: &'static str,
        volumes: &'static str,
        mounts: &'static str,
        script: &'static str,
        expected: Expected,
    ) -> Self {
        Self {
            name,
            volumes,
            mounts,
            before: None,
            beside: None,
            spec: json!({}),
            pod: json!({}),
            script,
            expected,
        }
    }

    fn manifest(&self) -> String {
        let mut pod = object(self.name, &[]);
        let spec = &mut pod["spec"];
        let own = spec["containers"][0].clone();
        let container = |name: &str, script: &str, mounts: &str| {
            let mut container = own.clone();
            container["name"] = json!(name);
            container["command"] = json!(["sh", "-c", format!("{PLACES}{script}")]);
            extend(&mut container["volumeMounts"], mounts.split_whitespace().map(mount));
            container
        };
        extend(&mut spec["volumes"], self.volumes.split_whitespace().map(volume));
        for (key, value) in self.pod.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        spec["containers"] = json!([container("main", self.script, self.mounts)]);
        for (key, value) in self.spec.as_object().into_iter().flatten() {
            spec["containers"][0][key] = value.clone();
        }
        if let Some((script, mounts)) = &self.before {
            spec["initContainers"] = json!([container("before", script, mounts)]);
        }
        if let Some((script, mounts)) = &self.beside {
            let mut beside = container("beside", script, mounts);
            beside["resources"].take();
            extend(&mut spec["containers"], [beside]);
        }
        format!("{pod}\n---\n")
    }
}

fn extend(list: &mut Value, more: impl IntoIterator<Item = Value>) {
    if let Some(list) = list.as_array_mut() {
        list.extend(more);
    }
}

fn volume(name: &str) -> Value {
    match name.strip_suffix("@memory") {
        Some(name) => json!({"name": name, "emptyDir": {"medium": "Memory"}}),
        None => json!({"name": name, "emptyDir": {}}),
    }
}

fn mount(text: &str) -> Value {
    let mut words = text.split(':');
    let mut mount = json!({"name": words.next(), "mountPath": words.next()});
    if let Some(path) = words.next() {
        mount["subPath"] = json!(path);
    }
    mount
}

/// Parses cases, one per line: name, volumes, mounts, script, and `held` or the words of the event.
fn table(text: &'static str) -> Vec<Case> {
    let rows = text.lines().filter(|row| !row.is_empty() && !row.starts_with('#'));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [name, volumes, mounts, script, expected] = cells[..] else {
            panic!("not five cells: {row}");
        };
        let expected = if expected == "held" { Held } else { Told(expected) };
        Case::new(name, volumes, mounts, script, expected)
    })
    .collect()
}

fn run(namespace: &str, cases: &[Case]) -> Result<()> {
    shared::in_namespace(namespace, |_, kube| {
        prepare(kube)?;
        kube.apply(&cases.iter().map(Case::manifest).collect::<String>())?;
        let check = |case: &Case| checked(kube, case.name, "main", case.expected).err();
        summary(cases.iter().filter_map(check).collect())
    })
}

fn by_volumes() -> Result<()> {
    let cases = [table(SINGLE_VOLUMES), linked_volumes(), shared_volumes()];
    run("attacks-volumes", &cases.into_iter().flatten().collect::<Vec<_>>())
}

/// Attacks with at most one volume, in the form of [`table`].
const SINGLE_VOLUMES: &str = "
file-over-list | | kit:/etc/ld.so.preload:empty | probe | held
# ld.so reads the list up to the first NUL.
nul-over-list | | kit:/etc/ld.so.preload:nul | probe | held
volume-at-etc | v | v:/etc | probe | a volume is mounted at /etc
volume-at-dev | v | v:/dev | probe | a volume is mounted at /dev
volume-over-shares | v@memory | v:/dev/vgpu | python3 /kit/probe.py libcuda.so.1 | held
volume-among-shares | v@memory | v:/dev/vgpu/forged | python3 /kit/probe.py libcuda.so.1 | /dev/vgpu/forged
volume-over-driver | v | v:/dev/vgpu/.lib | probe | /dev/vgpu/.lib
# An unknown file name, in the folder whose files get the driver's functions.
file-beside-driver | | kit:/dev/vgpu/.driver/evil.so:empty | probe | /dev/vgpu/.driver/evil.so
";

/// A link in a volume leads another volume to a folder of ours.
fn linked_volumes() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, before, expected) in [
        (
            "link-to-dev",
            "ln -s /dev /x/r; python3 /kit/forge.py $S /v",
            Told("/dev/vgpu"),
        ),
        ("link-to-run", "ln -s /run /x/r; python3 /kit/forge.py $S /v", Held),
    ] {
        let mut case = Case::new(
            name,
            "x v@memory",
            "x:/x v:/x/r/vgpu",
            "python3 /kit/probe.py libcuda.so.1",
            expected,
        );
        case.before = Some((before, "x:/x v:/v"));
        cases.push(case);
    }
    let mut linked_list = Case::new(
        "link-to-etc",
        "x v",
        "x:/x v:/x/e",
        "probe",
        Told("a volume is mounted at /etc"),
    );
    linked_list.before = Some(("ln -s /etc /x/e", "x:/x"));
    cases.push(linked_list);
    cases
}

/// A second container removes and renames a path that is a mount point only in the first one.
fn shared_volumes() -> Vec<Case> {
    let mut shared = Case::new(
        "shared-run",
        "r s",
        "r:/run s:/s",
        "mkdir /s/forged && python3 /kit/forge.py $S /s/forged; touch /s/ready; \
         while [ ! -e /s/done ]; do sleep 0.1; done; python3 /kit/probe.py libcuda.so.1",
        Held,
    );
    shared.beside = Some((
        "while [ ! -e /s/ready ]; do sleep 0.1; done; rm -rf /run/vgpu; cp -r /s/forged /run/vgpu; \
         chmod -R a+rw /run/vgpu; touch /s/done",
        "r:/run s:/s",
    ));
    let mut shared_list = Case::new(
        "shared-list",
        "e s",
        "e:/etc/ld.so.preload:list s:/s",
        "touch /s/ready; while [ ! -e /s/done ]; do sleep 0.1; done; probe",
        Held,
    );
    shared_list.before = Some((": >/e/list", "e:/e"));
    shared_list.beside = Some((
        "while [ ! -e /s/ready ]; do sleep 0.1; done; rm -f /e/list; touch /s/done",
        "e:/e s:/s",
    ));
    vec![shared, shared_list]
}

/// Cooperating containers remove a mount of one of them: the kernel only checks the mounts of the process that removes
/// the file below it.
fn by_two() -> Result<()> {
    let waits = "touch /s/ready; while [ ! -e /s/done ]; do sleep 0.1; done; probe";
    let mut case = Case::new("shared-processes", "s", "s:/s", waits, Lifted);
    case.pod = json!({"shareProcessNamespace": true});
    case.beside = Some((
        "while [ ! -e /s/ready ]; do sleep 0.1; done; \
         for p in /proc/[0-9]*; do rm -f $p/root/etc/ld.so.preload; done 2>/dev/null; touch /s/done",
        "s:/s",
    ));
    run("attacks-two", &[case])
}

/// Volumes of honest pods: see [`table`].
const HONEST: &str = "
at-run | v | v:/run | python3 /kit/probe.py libcuda.so.1 | held
at-var-run | v | v:/var/run | python3 /kit/probe.py libcuda.so.1 | held
below-run | v | v:/run/app | python3 /kit/probe.py libcuda.so.1 | held
below-etc | v | v:/etc/app kit:/etc/app.conf:empty | if touch /etc/app/new /etc/new && [ -e /etc/app.conf ] && [ -s /etc/hosts ]; then probe; fi | held
at-etc | v | v:/etc | python3 /kit/probe.py libcuda.so.1 | mount single files below /etc instead
";

fn honest() -> Result<()> {
    let mut read_only = Case::new("read-only-root", "", "", "probe", Held);
    read_only.spec = json!({"securityContext": {"readOnlyRootFilesystem": true}});
    let mut read_only_etc = Case::new(
        "read-only-etc",
        "",
        "",
        "if touch /etc/new 2>/dev/null; then echo writable; else probe; fi",
        Held,
    );
    read_only_etc.spec = read_only.spec.clone();
    let mut cases = table(HONEST);
    cases.extend([read_only, read_only_etc]);
    run("attacks-honest", &cases)
}

/// Waits for a container's end, or for an event of a container that does not start, and compares the result.
fn checked(kube: &Kube<'_>, pod: &str, container: &str, expected: Expected) -> Result<()> {
    let what = format!("{pod}/{container}");
    if let Told(words) = expected {
        return wait(LIMIT, &format!("an event on {what} with the words {words:?}"), || {
            if let Some(said) = said(kube, pod, container)? {
                bail!("it started, and said {said:?}");
            }
            let events = kube.events(pod, "")?;
            let mut of_hook = events.iter().filter(|event| event.contains("vgpu-cdi-hook"));
            ensure!(
                of_hook.any(|event| event.contains(words)),
                "events: {}",
                events.join(" | ")
            );
            Ok(Some(()))
        });
    }
    let line = wait(LIMIT * 2, &format!("{what} to end"), || {
        match said(kube, pod, container)? {
            Some(said) => Ok(Some(said)),
            None => bail!("events: {}", kube.events(pod, "")?.join(" | ")),
        }
    })?;
    // The library's own line may follow.
    let mut verdicts = line
        .lines()
        .filter(|line| ["held", "lifted", "broken"].iter().any(|word| line.starts_with(word)));
    let last = verdicts.next_back().unwrap_or_default();
    let wanted = match expected {
        Held => "held",
        _ => "lifted",
    };
    ensure!(last.starts_with(wanted), "{what}: not {wanted}, but {line:?}");
    Ok(())
}

/// The output of a container that has ended.
fn said(kube: &Kube<'_>, pod: &str, container: &str) -> Result<Option<String>> {
    let found = kube.get(&["pod", pod])?;
    let statuses = found["status"]["containerStatuses"].as_array().into_iter().flatten();
    let ended = statuses
        .filter(|status| status["name"] == container)
        .any(|status| status["state"]["terminated"]["exitCode"].is_i64() && status["containerID"].is_string());
    if !ended {
        return Ok(None);
    }
    // A container that could not be started is also terminated, although it never ran.
    let log = kube.logs(pod, Some(container))?;
    Ok((!log.trim().is_empty()).then(|| log.trim().to_owned()))
}

/// Waits until a pod without claims succeeds.
fn finished(kube: &Kube<'_>, pod: &str) -> Result<()> {
    wait(Duration::from_secs(20), &format!("pod {pod} to succeed"), || {
        let phase = kube.get(&["pod", pod])?["status"]["phase"].clone();
        match phase.as_str() {
            Some("Succeeded") => Ok(Some(())),
            _ => bail!("events: {}", kube.events(pod, "")?.join(" | ")),
        }
    })
}

fn summary(wrong: Vec<anyhow::Error>) -> Result<()> {
    if wrong.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> = wrong.iter().map(|error| format!("{error:#}")).collect();
    bail!("{}", lines.join("\n"))
}
