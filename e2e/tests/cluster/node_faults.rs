//! Faults of nodes: no API server, a reboot, a full disk, a replaced driver.
//!
//! Each test restores the node's previous state, even if it fails.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use vgpu_e2e::cluster::{Cluster, Node, SOFT_GPU_DRIVER};
use vgpu_e2e::kube::Kube;
use vgpu_e2e::outcome::after;
use vgpu_e2e::wait::wait;
use vgpu_e2e::{node, patience, shell};

use crate::fleet::{TAKEOVER, claim_of};
use crate::load::{self, PROVES};
use crate::manifests::{HOLD, config, pod, pod_object, template};
use crate::shared::{self, Installed, LIMIT, Test};
use crate::{plugins, size};

pub(crate) const TESTS: &[Test] = &[
    ("api_server_that_is_away_stops_nothing_on_the_node", api_server_is_away),
    ("full_disk_stops_no_claim", full_disk),
    (
        "driver_that_is_replaced_is_in_containers_that_start_again",
        driver_is_replaced,
    ),
    (
        "node_that_is_booted_anew_gives_its_pods_their_shares_again",
        booted_anew,
    ),
];

/// Ignores SIGTERM, and runs a program that uses memory.
pub(crate) const STUBBORN: &str = "trap '' TERM; vgpu-client hold 1073741824 & while :; do sleep 1; done";

fn uid_of(object: &Value) -> String {
    object["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

/// A pod whose container proves its limit at each start and then allocates these bytes; the kubelet restarts it.
fn lasting(name: &str, bytes: u64) -> Result<Value> {
    let script = format!("{PROVES}; vgpu-client hold {bytes}");
    let mut pod = pod_object(name, &["sh", "-c", &script], "load")?;
    pod["spec"]["restartPolicy"] = json!("Always");
    Ok(pod)
}

/// Kills the program of a `lasting` pod, so that its container ends.
fn kill_container(cluster: &Cluster, bytes: u64) -> Result<()> {
    let program = format!("^vgpu-client hold {bytes}$");
    shell::run(&mut cluster.node(Node::FIRST).inside(&["pkill", "-KILL", "-f", &program]))
}

/// Waits until the container of a `lasting` pod was restarted this many times, and has allocated its memory.
fn started_again(kube: &Kube<'_>, name: &str, times: u64) -> Result<()> {
    wait(TAKEOVER, &format!("{name} to be started again"), || {
        let found = kube.get(&["pod", name])?;
        let status = &found["status"]["containerStatuses"][0];
        let restarts = status["restartCount"].as_u64().unwrap_or(0);
        ensure!(
            restarts >= times && status["ready"] == true,
            "it was started again {restarts} times"
        );
        Ok(Some(()))
    })
    .map_err(|error| error.context(kube.describe(name)))?;
    holds(kube, name)
}

/// Waits until the pod's last container has allocated its memory, which it does after proving its limit.
fn holds(kube: &Kube<'_>, name: &str) -> Result<()> {
    wait(LIMIT, &format!("{name} to hold its memory"), || {
        Ok(kube.logs(name, None)?.contains("\"holding\":").then_some(()))
    })
}

/// Waits for words in the log of a container's start number `start`, as the kubelet keeps it on the node. Works
/// without the API server.
fn says_on_the_node(cluster: &Cluster, pod: &Value, start: u64, words: &str) -> Result<()> {
    let text = |key: &str| pod["metadata"][key].as_str().unwrap_or_default().to_owned();
    let container = pod["spec"]["containers"][0]["name"].as_str().unwrap_or_default();
    let (namespace, name, uid) = (text("namespace"), text("name"), text("uid"));
    let log = format!("/var/log/pods/{namespace}_{name}_{uid}/{container}/{start}.log");
    wait(LIMIT, &format!("{words:?} in {log}"), || {
        let path = cluster.node(Node::FIRST).path_inside(&log)?;
        let said = fs::read_to_string(path).context("it is not started yet")?;
        ensure!(said.contains(words), "it says {said:?}");
        Ok(Some(()))
    })
}

fn gone_from_the_node(cluster: &Cluster, uid: &str) -> Result<()> {
    wait(LIMIT, "the claim to be unprepared", || {
        let left = node::left_of(cluster, &[uid.to_owned()])?;
        ensure!(left.is_empty(), "left: {left:?}");
        Ok(Some(()))
    })
}

fn api_server_is_away() -> Result<()> {
    const BYTES: u64 = 3 << 20;
    let away = Duration::from_secs(size::of("seconds without API server:", 15, 180));
    shared::in_namespace_of(shared::observed()?, "api-server-away", |installed, kube| {
        let cluster = &installed.cluster;
        kube.apply(&load::share())?;
        let mut ends = pod_object("ends", &["sh", "-c", STUBBORN], "load")?;
        ends["spec"]["terminationGracePeriodSeconds"] = json!(6);
        kube.apply(&format!("{}\n---\n{ends}", lasting("stays", BYTES)?))?;
        kube.wait_running("stays", LIMIT)?;
        holds(kube, "stays")?;
        kube.wait_running("ends", LIMIT)?;
        let stays = kube.get(&["pod", "stays"])?;
        let ending = uid_of(&claim_of(kube, "ends")?);
        // Only the container is killed, so that the kubelet restarts it at once.
        let before = plugins::uids(cluster)?;
        plugins::replace(cluster)?;
        let plugin = plugins::settle(cluster, &before)?;
        plugins::published(installed, kube)?;
        let slices = plugins::slices(kube)?;

        kube.run(&["delete", "pod", "ends", "--wait=false"])?;
        // Time for the kubelet to notice.
        std::thread::sleep(Duration::from_secs(1));
        cluster.stop("kube-apiserver")?;
        let begun = Instant::now();
        let meanwhile = (|| {
            plugins::kill(cluster)?;
            says_on_the_node(cluster, &plugin, 1, "kubelet has registered the plugin")?;
            // A plugin that has never reached the API server removes the claim from the node.
            gone_from_the_node(cluster, &ending)?;
            kill_container(cluster, BYTES)?;
            says_on_the_node(cluster, &stays, 1, "\"holding\":")?;
            std::thread::sleep(away.saturating_sub(begun.elapsed()));
            Ok(())
        })();
        let back = cluster
            .resume("kube-apiserver")
            .and_then(|()| wait(TAKEOVER, "the API server to answer", || kube.raw("/readyz").map(Some)));
        after(meanwhile, back.map(drop))?;
        println!("the API server was away for {} s", begun.elapsed().as_secs());

        plugins::settle(cluster, &[])?;
        plugins::published(installed, kube)?;
        let now = plugins::slices(kube)?;
        ensure!(now == slices, "the slices were {slices:?} and are {now:?}");
        wait(TAKEOVER, "the pod that ended meanwhile to go", || {
            Ok(kube
                .try_run(&["get", "pod", "ends"])?
                .stderr
                .contains("NotFound")
                .then_some(()))
        })?;
        started_again(kube, "stays", 1)?;
        kube.apply(&pod("after", "client", &HOLD, "load"))?;
        kube.wait_running("after", TAKEOVER)
    })
}

/// The plugin's folder on the disk.
const PLUGIN: &str = "/var/lib/kubelet/plugins/dra.vgpu";

fn full_disk() -> Result<()> {
    shared::in_namespace_of(shared::observed()?, "full-disk", |installed, kube| {
        let cluster = &installed.cluster;
        let node = cluster.node(Node::FIRST);
        let replaced = || -> Result<Value> {
            let before = plugins::uids(cluster)?;
            plugins::replace(cluster)?;
            plugins::settle(cluster, &before)
        };
        kube.apply(&load::share())?;
        // A separate file system, so that filling it does not affect the rest of the machine.
        shell::run(&mut node.inside(&["mount", "-t", "tmpfs", "-o", "size=1m,mode=0750", "tmpfs", PLUGIN]))?;
        let tested = replaced().and_then(|_| while_full(installed, kube));
        // Lazily: the plugin has its sockets there until it is replaced.
        let back = shell::run(&mut node.inside(&["umount", "--lazy", PLUGIN])).and_then(|()| replaced());
        after(tested, back.map(drop))?;
        plugins::published(installed, kube)
    })
}

fn while_full(installed: &Installed, kube: &Kube<'_>) -> Result<()> {
    let cluster = &installed.cluster;
    plugins::published(installed, kube)?;
    kube.apply(&pod("before", "client", &HOLD, "load"))?;
    kube.wait_running("before", LIMIT)?;
    let before = uid_of(&claim_of(kube, "before")?);
    let filler = cluster.node(Node::FIRST).path_inside(&format!("{PLUGIN}/filler"))?;
    let filled = fs::write(&filler, vec![0; 2 << 20]);
    ensure!(filled.is_err(), "2 MiB fit on a disk of 1 MiB");

    // A claim can still be prepared, because its record is in /run.
    kube.apply(&pod("beside", "client", &HOLD, "load"))?;
    kube.wait_running("beside", LIMIT)?;
    let beside = uid_of(&claim_of(kube, "beside")?);
    // A plugin that starts on the full disk unprepares, too.
    let plugin = plugins::settle(cluster, &[])?;
    plugins::kill(cluster)?;
    says_on_the_node(cluster, &plugin, 1, "kubelet has registered the plugin")?;
    kube.run(&["delete", "pod", "before", "beside", &patience::timeout(LIMIT)])?;
    gone_from_the_node(cluster, &before)?;
    gone_from_the_node(cluster, &beside)?;
    fs::remove_file(&filler).with_context(|| format!("cannot remove {}", filler.display()))?;
    plugins::settle(cluster, &[]).map(drop)
}

/// The software GPU's driver root on the node, as a path on the host.
fn driver_root(cluster: &Cluster) -> Result<PathBuf> {
    cluster.node(Node::FIRST).path_inside(SOFT_GPU_DRIVER)
}

/// The folder of libraries in a driver root.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
const NAMES: [&str; 2] = ["libcuda.so", "libnvidia-ml.so"];

/// Returns true, and reports the test as skipped, if it would change the machine's own driver.
fn skips(test: &str) -> bool {
    let skips = shared::prepared().gpu.is_nvidia();
    if skips {
        vgpu_skip::skip(test, "it changes the software GPU, and this machine has a real one");
    }
    skips
}

fn driver_is_replaced() -> Result<()> {
    const BYTES: u64 = 5 << 20;
    if skips("node_faults::driver_that_is_replaced_is_in_containers_that_start_again") {
        return Ok(());
    }
    shared::in_namespace_of(shared::observed()?, "driver-replaced", |installed, kube| {
        let cluster = &installed.cluster;
        kube.apply(&load::share())?;
        kube.apply(&lasting("before", BYTES)?.to_string())?;
        kube.wait_running("before", LIMIT)?;
        holds(kube, "before")?;
        let claim = uid_of(&claim_of(kube, "before")?);
        let root = driver_root(cluster)?;
        let tested = replace_driver(&root).and_then(|()| {
            wait(LIMIT, "the claim's CDI file to name the new driver", || {
                let (_, text) = node::cdi_spec(cluster, &claim)?;
                Ok(text.contains("libcuda.so.999.1").then_some(()))
            })?;
            kill_container(cluster, BYTES)?;
            started_again(kube, "before", 1)?;
            for file in NAMES {
                let mounts = kube.exec("before", &["sh", "-c", "cat /proc/self/mountinfo"])?;
                let from = format!("{file}.999.1 ");
                let to = format!(" /dev/vgpu/.driver/{file}.1 ");
                let is_new = mounts.lines().any(|line| line.contains(&from) && line.contains(&to));
                ensure!(is_new, "{file}.1 in the container is not the new driver's:\n{mounts}");
            }
            let names: Vec<&str> = FILES.iter().flat_map(|(_, _, names)| *names).copied().collect();
            let shows = format!("cat {} 2>/dev/null || true", names.join(" "));
            let seen = kube.exec("before", &["sh", "-c", &shows])?;
            ensure!(
                seen.trim() == "libnvidia-ptxjitcompiler",
                "the class gives compute and utility: {seen:?}"
            );
            kube.apply(&everything_of_the_driver().to_string())?;
            kube.apply(&template(
                "all",
                EVERYTHING,
                json!({"memory": load::MEMORY, "cores": "1"}),
                &[],
            ))?;
            let mut all = lasting("after", BYTES + 1)?;
            all["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = json!("all");
            kube.apply(&all.to_string())?;
            kube.wait_running("after", LIMIT)?;
            holds(kube, "after")?;
            let seen = kube.exec("after", &["sh", "-c", &shows])?;
            let lines: Vec<&str> = seen.lines().collect();
            let expected = FILES.iter().flat_map(|(_, text, names)| names.iter().map(|_| *text));
            ensure!(lines == expected.collect::<Vec<_>>(), "{shows}: {seen}");
            Ok(())
        });
        let restored = restore_driver(&root);
        let class = kube.run(&["delete", "deviceclass", EVERYTHING, "--ignore-not-found"]);
        after(tested, after(restored, class.map(drop)))
    })
}

const EVERYTHING: &str = "driver-with-all-its-files";

/// Files of a complete driver in addition to libcuda and NVML, by path from its root, with their text and their names
/// in a container. The files are placeholders: the test is that the runtime accepts the plugin's CDI spec for them.
const FILES: [(&str, &str, &[&str]); 6] = [
    (
        "usr/lib/x86_64-linux-gnu/libnvidia-ptxjitcompiler.so.999.1",
        "libnvidia-ptxjitcompiler",
        &["/dev/vgpu/.driver/libnvidia-ptxjitcompiler.so.1"],
    ),
    (
        "usr/lib/x86_64-linux-gnu/libnvidia-encode.so.999.1",
        "libnvidia-encode",
        &[
            "/usr/lib/x86_64-linux-gnu/libnvidia-encode.so.999.1",
            "/usr/lib/x86_64-linux-gnu/libnvidia-encode.so.1",
            "/usr/lib64/libnvidia-encode.so.1",
        ],
    ),
    (
        "usr/lib/x86_64-linux-gnu/libEGL_nvidia.so.999.1",
        "libEGL_nvidia",
        &["/usr/lib64/libEGL_nvidia.so.0"],
    ),
    (
        "usr/lib/x86_64-linux-gnu/vdpau/libvdpau_nvidia.so.999.1",
        "libvdpau_nvidia",
        &["/usr/lib/x86_64-linux-gnu/vdpau/libvdpau_nvidia.so.1"],
    ),
    (
        "usr/share/vulkan/icd.d/nvidia_icd.json",
        "nvidia_icd",
        &["/etc/vulkan/icd.d/nvidia_icd.json"],
    ),
    (
        "usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        "10_nvidia",
        &["/usr/share/glvnd/egl_vendor.d/10_nvidia.json"],
    ),
];
/// Links in the same folders.
const LINKS: [(&str, &str); 4] = [
    ("libnvidia-ptxjitcompiler.so.1", "libnvidia-ptxjitcompiler.so.999.1"),
    ("libnvidia-encode.so.1", "libnvidia-encode.so.999.1"),
    ("libEGL_nvidia.so.0", "libEGL_nvidia.so.999.1"),
    ("vdpau/libvdpau_nvidia.so.1", "libvdpau_nvidia.so.999.1"),
];

/// A class whose containers get all files of the driver.
fn everything_of_the_driver() -> Value {
    let config = config(&json!({"driverCapabilities": ["compute", "utility", "video", "graphics"]}));
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": EVERYTHING},
    "spec": {
        "selectors": [{"cel": {"expression":
            "device.driver == 'dra.vgpu' && device.attributes['dra.vgpu'].type == 'gpu'"}}],
        "config": [{"opaque": {"driver": "dra.vgpu", "parameters": config}}],
    }})
}

/// Replaces the driver as a package of a newer one does: new files, new links, and the old files removed; also adds
/// files that the old driver did not have.
fn replace_driver(root: &Path) -> Result<()> {
    // A killed run may have left files.
    restore_driver(root)?;
    for (file, text, _) in FILES {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap_or(root))?;
        fs::write(&path, format!("{text}\n")).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let folder = root.join(LIBRARIES);
    for (link, to) in LINKS {
        symlink(to, folder.join(link)).with_context(|| format!("cannot link {link}"))?;
    }
    for file in NAMES {
        let (link, new) = (folder.join(format!("{file}.1")), folder.join(format!("{file}.999.1")));
        fs::copy(&link, &new).with_context(|| format!("cannot write {}", new.display()))?;
        fs::remove_file(&link).with_context(|| format!("cannot remove {}", link.display()))?;
        symlink(format!("{file}.999.1"), &link).with_context(|| format!("cannot link {}", link.display()))?;
    }
    Ok(())
}

fn restore_driver(root: &Path) -> Result<()> {
    let folder = root.join(LIBRARIES);
    for file in NAMES {
        let (link, new) = (folder.join(format!("{file}.1")), folder.join(format!("{file}.999.1")));
        if new.exists() {
            let renamed = fs::rename(&new, &link);
            renamed.with_context(|| format!("cannot rename {}", new.display()))?;
        }
    }
    let files = FILES.iter().map(|(file, ..)| root.join(file));
    for path in files.chain(LINKS.iter().map(|(link, _)| folder.join(link))) {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", path.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

fn booted_anew() -> Result<()> {
    if skips("node_faults::node_that_is_booted_anew_gives_its_pods_their_shares_again") {
        return Ok(());
    }
    shared::in_namespace_of(shared::observed()?, "booted-anew", boot)
}

fn boot(installed: &Installed, kube: &Kube<'_>) -> Result<()> {
    const BYTES: u64 = 7 << 20;
    let cluster = &installed.cluster;
    let node = cluster.node(Node::FIRST);
    let memory = installed.gpus.iter().map(|gpu| gpu.memory).max().unwrap_or(0);
    // Together with a `load`, this is all memory of one GPU.
    let rest = json!({"memory": (memory - load::BYTES).to_string()});
    kube.apply(&(load::share() + &template("rest", "vgpu", rest, &[])))?;
    kube.apply(&lasting("stays", BYTES)?.to_string())?;
    kube.wait_running("stays", LIMIT)?;
    holds(kube, "stays")?;
    kube.apply(&pod("goes", "client", &HOLD, "rest"))?;
    kube.wait_running("goes", LIMIT)?;
    let device = |pod: &str| -> Result<Value> {
        Ok(claim_of(kube, pod)?["status"]["allocation"]["devices"]["results"][0]["device"].clone())
    };
    ensure!(device("stays")? == device("goes")?, "the two pods were to share a GPU");
    let claim = uid_of(&claim_of(kube, "stays")?);
    let pod_uid = uid_of(&kube.get(&["pod", "stays"])?);
    let plugin = plugins::settle(cluster, &[])?;

    node.end()?;
    ensure!(
        !node::claims(cluster)?.contains_key(&claim),
        "/run outlived the machine"
    );
    kube.run(&["delete", "pod", "goes", "--force", "--grace-period=0"])?;
    node.start(&shared::prepared().images.archives)?;

    // The API server's state of the plugin may be from the first boot.
    says_on_the_node(cluster, &plugin, 1, "kubelet has registered the plugin")?;
    plugins::settle(cluster, &[])?;
    plugins::published(installed, kube)?;
    started_again(kube, "stays", 1)?;
    ensure!(
        uid_of(&kube.get(&["pod", "stays"])?) == pod_uid,
        "another pod has the name"
    );
    ensure!(
        node::claims(cluster)?.contains_key(&claim),
        "no record of claim {claim}"
    );
    // Claims that were prepared in the first boot but not again use no memory.
    kube.apply(&pod("after", "client", &HOLD, "rest"))?;
    kube.wait_running("after", LIMIT)?;
    let failed = load::failed_prepares(kube)?;
    ensure!(failed.iter().all(|text| !text.contains("has no room")), "{failed:?}");
    Ok(())
}
