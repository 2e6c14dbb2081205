//! Stops the start of an instance with its sockets (`instance`), beside an instance that lives and one that was killed.
//!
//! ```text
//!  before:  a: killed, starts again    b: lives        d: killed
//!  after:   a: started                 b: as before    d: nothing is left
//! ```

use super::tracer::{Action, Call};
use super::*;
use crate::dra::instance::{Folders, Instance};
use crate::dra::registration::Socket;
use std::os::unix::net::UnixStream;
use tokio::net::UnixListener;
use vgpu_node::lock_file::{LockFile, Locked};

/// Tells the worker its folder.
const START: &str = "VGPU_TRACED_INSTANCE";
const WORKER: &str = "dra::node::tests::exhaustion::sockets::worker";

fn folders(root: &Path) -> Folders {
    Folders {
        plugin: root.join("plugins/dra.vgpu"),
        registry: root.join("plugins_registry"),
    }
}

fn node_lock(root: &Path) -> Locked {
    let lock = LockFile::open(&folders(root).plugin.join("lock")).expect("a lock");
    lock.try_lock().expect("a lock file").expect("free")
}

fn paths(root: &Path, pod: &str) -> [PathBuf; 2] {
    let folders = folders(root);
    let [registration, _] = folders.registration_sockets(pod);
    [folders.dra_socket(pod), registration]
}

/// An instance that listens. When it is dropped, it is as if it was killed: its files stay.
struct Running {
    _instance: Instance,
    _listeners: [UnixListener; 2],
}

/// Starts an instance and binds its sockets, as the plugin does.
fn start(root: &Path, pod: &str) -> anyhow::Result<Running> {
    let instance = Instance::start(&folders(root), pod, &node_lock(root))?;
    let [dra, registration] = paths(root, pod);
    let bind = |path: &Path| -> anyhow::Result<UnixListener> {
        let (listener, socket) = Socket::bind(path)?;
        std::mem::forget(socket);
        Ok(listener)
    };
    Ok(Running {
        _instance: instance,
        _listeners: [bind(&dra)?, bind(&registration)?],
    })
}

struct Scene {
    dir: tempfile::TempDir,
    _b: Running,
}

fn of(pods: &[&str]) -> BTreeMap<String, usize> {
    pods.iter().map(|pod| ((*pod).to_owned(), 3)).collect()
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::create_dir_all(folders(dir.path()).registry).expect("a folder");
        let [a, b, d] = ["a", "b", "d"].map(|pod| start(dir.path(), pod).expect("started"));
        drop((a, d));
        let scene = Self { dir, _b: b };
        assert_eq!(scene.files(), of(&["a", "b", "d"]));
        scene
    }

    /// Returns the pods that have files, with the number of files.
    fn files(&self) -> BTreeMap<String, usize> {
        let folders = folders(self.dir.path());
        let mut found = BTreeMap::new();
        for folder in [folders.plugin, folders.registry] {
            for entry in std::fs::read_dir(folder).expect("listed").flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if name != "lock" {
                    let pod = name.split(['-', '.', '@']).nth(1).unwrap_or(&name);
                    *found.entry(pod.to_owned()).or_default() += 1;
                }
            }
        }
        found
    }

    fn traced(&self, decide: impl FnMut(&Call) -> Action) -> Ended {
        traced_worker(WORKER, START, &self.dir.path().to_string_lossy(), decide)
    }

    /// Whatever happened to the start of `a`, kubelet reaches `b`, and the next start leaves what it should.
    fn check(self, next: &str, at: &str) {
        let root = self.dir.path();
        let is_reached = || paths(root, "b").iter().all(|path| UnixStream::connect(path).is_ok());
        assert!(is_reached(), "{at}");
        let _next = start(root, next).unwrap_or_else(|error| panic!("{at}: {next} starts: {error}"));
        assert_eq!(self.files(), of(&["b", next]), "{at}, then {next}");
        assert!(is_reached(), "{at}, then {next}");
        let taken = Instance::start(&folders(root), "b", &node_lock(root));
        assert!(taken.is_err(), "{at}: the place of one that lives was given away");
    }
}

fn runtime() -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime")
}

/// Not a test: the process that is traced. Without the variable it has nothing to do.
#[test]
fn worker() {
    let Some(root) = std::env::var_os(START).map(PathBuf::from) else {
        return;
    };
    let runtime = runtime();
    let _entered = runtime.enter();
    wait_for_the_tracer();
    end(start(&root, "a").map(std::mem::forget));
}

fn calls() -> Vec<Call> {
    let (scene, mut calls) = (Scene::new(), Vec::new());
    let ended = scene.traced(|call| {
        calls.push(call.clone());
        Action::Go
    });
    assert_eq!(ended, Ended::Done);
    assert_eq!(scene.files(), of(&["a", "b"]));
    calls
}

#[test]
fn an_instance_starts() {
    if !can_trace("exhaustion of the start of an instance") {
        return;
    }
    let runtime = runtime();
    let _entered = runtime.enter();
    let calls = calls();
    assert_eq!(calls.iter().filter(|call| call.name == "bind").count(), 2, "{calls:?}");
    for (stop, call) in calls.iter().enumerate() {
        // The same pod's next container, and another pod.
        for next in ["a", "c"] {
            let (scene, mut number) = (Scene::new(), 0);
            let ended = scene.traced(|_| {
                number += 1;
                if number > stop { Action::Kill } else { Action::Go }
            });
            let at = format!("killed before call {stop}, {} {}", call.name, call.path);
            assert_eq!(ended, Ended::Killed, "{at}");
            scene.check(next, &at);
        }
        for (errno, name) in [(libc::ENOSPC, "ENOSPC"), (libc::EROFS, "EROFS"), (libc::EIO, "EIO")] {
            if errno == libc::ENOSPC && !call.allocates {
                continue;
            }
            for lasts in [false, true] {
                let (scene, mut number) = (Scene::new(), 0);
                let ended = scene.traced(|call| {
                    number += 1;
                    let fails = number == stop + 1 || lasts && number > stop;
                    match fails && (errno != libc::ENOSPC || call.allocates) {
                        true => Action::Fail(errno),
                        false => Action::Go,
                    }
                });
                let since = if lasts { "since" } else { "at" };
                let at = format!("{name} {since} call {stop}, {} {}: {ended:?}", call.name, call.path);
                match ended {
                    Ended::Done => assert_eq!(scene.files().get("a"), Some(&3), "{at}"),
                    Ended::Refused(_) => {}
                    Ended::Killed => panic!("{at}"),
                }
                scene.check("a", &at);
            }
        }
    }
}
