//! The hierarchy of cgroups: where a container's cgroup is, and that limits of GPU memory can be set in it.
//!
//! The driver limits cgroups of version 2 alone, in the hierarchy at /sys/fs/cgroup. Everything else is refused here,
//! because a limit in the wrong place would hold for somebody else.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use vgpu_hook::mount;
use vgpu_node::cgroup::pod_of_new_container;

/// The controllers by which limits of GPU memory are kept. A driver that keeps them itself tells cgroups apart by misc, also on a
/// kernel with dmem, so without misc a limit would land further up.
const CONTROLLERS: [&str; 2] = ["dmem", "misc"];
const ENABLED: &str = "cgroup.subtree_control";

/// The mounted hierarchy, as this process sees it.
#[derive(Debug)]
pub(crate) struct Hierarchy {
    proc: PathBuf,
    root: PathBuf,
    /// This process's own cgroup.
    own: String,
}

/// A container's cgroup. Paths begin with `/` and are below the hierarchy's root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leaf {
    pub(crate) path: String,
    pub(crate) pod: Option<Pod>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pod {
    pub(crate) uid: String,
    pub(crate) path: String,
}

const REMEDY: &str = "use nodes with cgroup v2 alone, or do not require the driver's limit";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{path}: {source}", path = .path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{path}: cgroup v1 is mounted there, and NVIDIA's driver limits cgroup v2 alone; {REMEDY}", path = .0.display())]
    Version1(PathBuf),
    #[error(
        "{path}: the node's cgroups are hybrid (v1, with v2 beside it), and NVIDIA's driver limits cgroup v2 alone; {REMEDY}",
        path = .0.display()
    )]
    Hybrid(PathBuf),
    #[error(
        "{path}: only {found:?} of the hierarchy is mounted there, not its root; mount the node's cgroups in the cgroup \
         namespace of the container runtime",
        path = .path.display()
    )]
    Part { path: PathBuf, found: String },
    #[error(
        "cgroup {0:?} of the container is outside of what is mounted; mount the node's cgroups in the cgroup namespace of \
         the container runtime"
    )]
    Outside(String),
    #[error(
        "the container is in the root cgroup, which cannot be limited; let the container runtime make a cgroup for it"
    )]
    Root,
    #[error(
        "cgroup {0:?} is the container runtime's own: the container is not in its cgroup yet at createRuntime; use runc or \
         crun"
    )]
    NotYet(String),
    #[error("cgroup {path}: it is gone; the container has ended", path = .0.display())]
    Gone(PathBuf),
    #[error(
        "{path}: {controllers} cannot be enabled: {source}; {}",
        remedy(source),
        path = .path.display()
    )]
    Enable {
        path: PathBuf,
        controllers: String,
        source: io::Error,
    },
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ResourceBusy => "the cgroup has processes of its own, which must be in a cgroup below it",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "the container runtime's hooks must be able to write the node's cgroups"
        }
        _ => "check the node's kernel log",
    }
}

impl Hierarchy {
    /// Reads the hierarchy that is mounted at `root`. `proc`: the folder of processes.
    pub(crate) fn read(proc: &Path, root: &Path) -> Result<Self, Error> {
        check_mount(&read(&proc.join("self/mountinfo"))?, root)?;
        let own = path(&read(&proc.join("self/cgroup"))?, root)?;
        Ok(Self {
            proc: proc.to_path_buf(),
            root: root.to_path_buf(),
            own,
        })
    }

    /// Returns the cgroup of a container whose first process has this PID.
    pub(crate) fn container(&self, pid: u32) -> Result<Leaf, Error> {
        let path = path(&read(&self.proc.join(format!("{pid}/cgroup")))?, &self.root)?;
        if path == "/" {
            return Err(Error::Root);
        }
        // `..` is how the kernel names what lies above this process's cgroup namespace. It never writes the others, which
        // would be further names of the root.
        if path.split('/').skip(1).any(|part| matches!(part, "" | "." | "..")) {
            return Err(Error::Outside(path));
        }
        // A limit there would hold for the container runtime.
        let has_own = self
            .own
            .strip_prefix(&path)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if has_own {
            return Err(Error::NotYet(path));
        }
        let folder = self.folder(&path);
        if !folder.is_dir() {
            return Err(Error::Gone(folder));
        }
        let pod = pod_of_new_container(&path).map(|(uid, path)| Pod {
            uid,
            path: path.to_owned(),
        });
        Ok(Leaf { path, pod })
    }

    /// Whether there is a process with this PID.
    pub(crate) fn has_process(&self, pid: &str) -> bool {
        self.proc.join(pid).exists()
    }

    /// The folder of a cgroup.
    pub(crate) fn folder(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Whether a cgroup still exists.
    pub(crate) fn exists(&self, path: &str) -> bool {
        self.folder(path).is_dir()
    }

    /// The cgroup of a process. None if it has ended, or is not below what is mounted.
    pub(crate) fn of_process(&self, pid: u32) -> Option<String> {
        let lines = read(&self.proc.join(format!("{pid}/cgroup"))).ok()?;
        path(&lines, &self.root).ok()
    }

    /// Has every cgroup from the root to this one's parent pass on those of the two controllers that the kernel has.
    pub(crate) fn enable_controllers(&self, cgroup: &str) -> Result<(), Error> {
        let available = read(&self.root.join("cgroup.controllers"))?;
        let wanted = CONTROLLERS.into_iter().filter(|name| has(&available, name));
        let wanted: Vec<&str> = wanted.collect();
        let ends = cgroup.match_indices('/').map(|(at, _)| at);
        for file in ends.map(|end| self.folder(&cgroup[..end]).join(ENABLED)) {
            let enabled = read(&file)?;
            if wanted.iter().all(|name| has(&enabled, name)) {
                continue;
            }
            // In one write: the kernel takes both or none.
            let text: Vec<String> = wanted.iter().map(|name| format!("+{name}")).collect();
            fs::write(&file, text.join(" ")).map_err(|source| Error::Enable {
                path: file,
                controllers: wanted.join(", "),
                source,
            })?;
        }
        Ok(())
    }
}

fn has(list: &str, name: &str) -> bool {
    list.split_whitespace().any(|word| word == name)
}

fn read(path: &Path) -> Result<String, Error> {
    match fs::read(path) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(source) => Err(Error::Io {
            path: path.to_path_buf(),
            source,
        }),
    }
}

/// Checks that the whole hierarchy of version 2 is mounted at `root`, by the lines of a mountinfo. A later mount hides an
/// earlier one.
fn check_mount(mountinfo: &str, root: &Path) -> Result<(), Error> {
    let mounts = mount::parse(mountinfo);
    let has_version_2 = mounts.iter().any(|mount| mount.kind == "cgroup2");
    match mounts.iter().rfind(|mount| Path::new(&mount.place()) == root) {
        Some(mount) if mount.kind == "cgroup2" && mount.root == "/" => Ok(()),
        Some(mount) if mount.kind == "cgroup2" => Err(Error::Part {
            path: root.to_path_buf(),
            found: mount.root.clone(),
        }),
        _ if has_version_2 => Err(Error::Hybrid(root.to_path_buf())),
        _ => Err(Error::Version1(root.to_path_buf())),
    }
}

/// The path in the hierarchy of version 2, from the lines of /proc/<pid>/cgroup.
fn path(lines: &str, root: &Path) -> Result<String, Error> {
    // A controller of version 1 is missing in version 2. A hierarchy with a name alone, such as systemd's, has none.
    let of_version_1 = |line: &str| {
        let controllers = line.split(':').nth(1).unwrap_or_default();
        !controllers.is_empty() && !controllers.starts_with("name=")
    };
    if lines.lines().any(of_version_1) {
        return Err(Error::Hybrid(root.to_path_buf()));
    }
    let path = lines.lines().find_map(|line| line.strip_prefix("0::"));
    let path = path.filter(|path| path.starts_with('/'));
    path.map(str::to_owned)
        .ok_or_else(|| Error::Version1(root.to_path_buf()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = "0123abcd-1111-2222-3333-444455556666";
    const UNIFIED: &str = "24 1 0:21 / CGROUPS rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";

    /// A /proc and a tree of folders, as the hook finds them.
    struct Node(tempfile::TempDir);

    impl Node {
        fn new(mountinfo: &str, own: &str) -> Self {
            let node = Self(tempfile::tempdir().expect("a folder"));
            let mountinfo = mountinfo.replace("CGROUPS", node.root().to_str().expect("a path"));
            node.put("proc/self/mountinfo", &mountinfo);
            node.put("proc/self/cgroup", own);
            node.put("cgroup/cgroup.controllers", "cpu memory misc dmem\n");
            node
        }

        fn unified() -> Self {
            Self::new(UNIFIED, "0::/system.slice/containerd.service\n")
        }

        fn root(&self) -> PathBuf {
            self.0.path().join("cgroup")
        }

        fn put(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
            fs::write(path, text).expect("a file");
        }

        fn cgroup(&self, path: &str) {
            for folder in Path::new(path).ancestors().filter(|folder| folder.as_os_str() != "/") {
                self.put(&format!("cgroup/{}/{ENABLED}", folder.display()), "cpu memory\n");
            }
            self.put(&format!("cgroup/{ENABLED}"), "cpu memory\n");
        }

        fn enabled(&self, path: &str) -> String {
            fs::read_to_string(self.root().join(path).join(ENABLED)).expect("a file")
        }

        fn find(&self, lines: &str) -> Result<Leaf, Error> {
            self.put("proc/77/cgroup", lines);
            Hierarchy::read(&self.0.path().join("proc"), &self.root())?.container(77)
        }

        fn refusal(&self, lines: &str) -> String {
            self.find(lines).expect_err(lines).to_string()
        }
    }

    #[test]
    fn a_containers_cgroup_and_its_pods() {
        let node = Node::unified();
        let pod = format!("/kubepods/burstable/pod{POD}");
        let path = format!("{pod}/{}", "a".repeat(64));
        node.cgroup(&path);
        let leaf = node.find(&format!("0::{path}\n")).expect("a cgroup");
        let expected = Pod {
            uid: POD.into(),
            path: pod,
        };
        assert_eq!((leaf.path, leaf.pod), (path, Some(expected)));
        node.cgroup("/machine.slice/libpod-1.scope/container");
        let leaf = node.find("1:name=systemd:/x\n0::/machine.slice/libpod-1.scope/container\n");
        assert_eq!(leaf.expect("a cgroup").pod, None);
    }

    #[test]
    fn other_hierarchies_are_refused() {
        let version1 =
            "30 1 0:30 / CGROUPS ro - tmpfs tmpfs ro\n31 30 0:31 / CGROUPS/memory rw - cgroup cgroup rw,memory\n";
        let hybrid = format!("{version1}32 30 0:32 / CGROUPS/unified rw - cgroup2 cgroup2 rw\n");
        let part = UNIFIED.replace("0:21 / ", "0:21 /../../.. ");
        let hidden = format!("{UNIFIED}40 24 0:40 / CGROUPS rw - tmpfs tmpfs rw\n");
        for (mountinfo, expected) in [
            (version1, "cgroup v1 is mounted"),
            (&hybrid, "hybrid"),
            (&part, "only \"/../../..\""),
            (&hidden, "hybrid"),
            ("", "cgroup v1 is mounted"),
        ] {
            let error = Node::new(mountinfo, "0::/a\n").refusal("0::/b\n");
            assert!(error.contains(expected), "{mountinfo}: {error}");
        }
        let node = Node::unified();
        node.cgroup("/kubepods/a");
        assert!(node.refusal("4:misc:/kubepods/a\n0::/kubepods/a\n").contains("hybrid"));
        assert!(node.refusal("4:memory,cpu:/kubepods/a\n").contains("hybrid"));
        assert!(node.refusal("1:name=systemd:/a\n").contains("cgroup v1"));
        assert!(node.refusal("").contains("cgroup v1"));
    }

    #[test]
    fn cgroups_of_others_are_refused() {
        let node = Node::unified();
        node.cgroup("/system.slice/containerd.service");
        for (path, expected) in [
            ("/../../kubepods/a", "outside of what is mounted"),
            ("/kubepods/../system.slice", "outside of what is mounted"),
            ("/.", "outside of what is mounted"),
            ("//", "outside of what is mounted"),
            ("/", "root cgroup"),
            ("/system.slice/containerd.service", "the container runtime's own"),
            ("/system.slice", "the container runtime's own"),
            ("/kubepods/gone", "it is gone"),
        ] {
            let error = node.refusal(&format!("0::{path}\n"));
            assert!(error.contains(expected), "{path}: {error}");
        }
        node.cgroup("/system.slice/containerd.service-2");
        node.find("0::/system.slice/containerd.service-2\n")
            .expect("a name that begins like another");
    }

    #[test]
    fn a_process_that_has_ended_is_named() {
        let node = Node::unified();
        let hierarchy = Hierarchy::read(&node.0.path().join("proc"), &node.root()).expect("a hierarchy");
        let error = hierarchy.container(78).expect_err("no such process").to_string();
        assert!(error.contains("proc/78/cgroup: "), "{error}");
    }

    #[test]
    fn the_controller_is_enabled_from_the_root_down_where_it_is_missing() {
        let node = Node::unified();
        node.cgroup("/kubepods/a/b");
        node.put(&format!("cgroup/kubepods/{ENABLED}"), "cpu dmem\n");
        let leaf = node.find("0::/kubepods/a/b\n").expect("a cgroup");
        let hierarchy = Hierarchy::read(&node.0.path().join("proc"), &node.root()).expect("a hierarchy");
        hierarchy.enable_controllers(&leaf.path).expect("enabled");
        let enabled = ["", "kubepods", "kubepods/a", "kubepods/a/b"].map(|path| node.enabled(path));
        assert_eq!(
            enabled,
            ["+dmem +misc", "+dmem +misc", "+dmem +misc", "cpu memory\n"],
            "not in the container's own"
        );
        // A driver may keep limits itself on a kernel with dmem.
        node.put("cgroup/cgroup.subtree_control", "cpu misc dmem\n");
        hierarchy.enable_controllers(&leaf.path).expect("enabled");
        assert_eq!(node.enabled(""), "cpu misc dmem\n", "both were enabled");

        node.put("cgroup/cgroup.controllers", "cpu misc\n");
        hierarchy.enable_controllers(&leaf.path).expect("enabled");
        assert_eq!(node.enabled("kubepods"), "+misc", "the driver keeps limits itself");
        node.put("cgroup/cgroup.controllers", "cpu memory\n");
        hierarchy.enable_controllers(&leaf.path).expect("nothing to enable");
    }

    #[test]
    fn a_controller_that_cannot_be_enabled_is_named_with_its_file() {
        let node = Node::unified();
        node.cgroup("/kubepods/a");
        let leaf = node.find("0::/kubepods/a\n").expect("a cgroup");
        let hierarchy = Hierarchy::read(&node.0.path().join("proc"), &node.root()).expect("a hierarchy");
        let file = node.root().join("kubepods").join(ENABLED);
        fs::remove_file(&file).expect("removed");
        let error = hierarchy
            .enable_controllers(&leaf.path)
            .expect_err("no file")
            .to_string();
        assert!(error.contains(&file.display().to_string()), "{error}");
        let busy = Error::Enable {
            path: file,
            controllers: "dmem".into(),
            source: io::ErrorKind::ResourceBusy.into(),
        };
        assert!(busy.to_string().contains("processes of its own"), "{busy}");
    }

    /// Whatever these files contain, only a cgroup below the root is ever limited.
    #[test]
    fn no_bytes_panic_or_lead_out() {
        use proptest::prelude::*;
        let node = Node::unified();
        node.cgroup("/kubepods/a");
        let hierarchy = Hierarchy::read(&node.0.path().join("proc"), &node.root()).expect("a hierarchy");
        proptest!(|(lines in "(0::|[0-9]:memory:|/|\\.\\.|kubepods|a| - |cgroup2|\n| |.){0,20}")| {
            node.put("proc/77/cgroup", &lines);
            if let Ok(leaf) = hierarchy.container(77) {
                let (folder, root) = (hierarchy.folder(&leaf.path), node.root());
                prop_assert!(folder.starts_with(&root) && folder.canonicalize().ok() != root.canonicalize().ok());
                prop_assert!(!leaf.path.contains(".."));
            }
            let _ = check_mount(&lines, &node.root());
        });
    }
}
