//! Reads the container's state, which the runtime passes on standard input, and the bundle's config.json.

use std::{
    ffi::OsStr,
    fs::File,
    io::Read,
    path::{Component, Path, PathBuf},
};

use serde_json::Value;
use vgpu_abi::paths::HOOK_FILE;
use vgpu_hook::{
    state::{self, Damage, State},
    text::shown,
};

use crate::{arguments, shares};

/// Bytes.
const MAX_CONFIG: u64 = 16 << 20;

#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) id: String,
    /// The container's root file system, by its path on the node.
    pub(crate) root: PathBuf,
    /// The runtime makes the root file system read-only later.
    pub(crate) read_only: bool,
    /// The path in the configuration of a volume at /dev, if there is one in place of the runtime's own file system.
    pub(crate) volume_at_dev: Option<String>,
    /// The SELinux label for mounts.
    pub(crate) mount_label: Option<String>,
    /// The files of all of our hooks. A container with several claims has a hook for each, and claims that were
    /// prepared with different drivers mount different files.
    pub(crate) files: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("standard input: {0}; it must be the container's state, as a runtime passes it to hooks")]
    State(Damage),
    #[error("container {id}: {path}: {damage}; the runtime wrote it, so check the runtime's log", path = .path.display())]
    Config { id: String, path: PathBuf, damage: Damage },
}

impl Container {
    pub(crate) fn read(stdin: impl Read) -> Result<Self, Error> {
        let (id, bundle) = state(stdin).map_err(Error::State)?;
        let path = bundle.join("config.json");
        match config(&path) {
            Ok((root, config)) => Ok(Self {
                id,
                // `join` drops the bundle if root.path is absolute.
                root: bundle.join(root),
                read_only: config.pointer("/root/readonly") == Some(&Value::Bool(true)),
                volume_at_dev: volume_at_dev(&config),
                mount_label: config.pointer("/linux/mountLabel").and_then(label),
                files: files(&config),
            }),
            Err(damage) => Err(Error::Config { id, path, damage }),
        }
    }
}

fn state(stdin: impl Read) -> Result<(String, PathBuf), Damage> {
    let state = State::read(stdin)?;
    let bundle = state.text("bundle")?;
    if !Path::new(bundle).is_absolute() {
        return Err(Damage::bad("bundle", state.value("bundle"), "an absolute path"));
    }
    let bundle = bundle.into();
    Ok((state.id, bundle))
}

/// Returns the path of the root file system, and the whole configuration.
fn config(path: &Path) -> Result<(String, Value), Damage> {
    let config = state::json(File::open(path)?, MAX_CONFIG)?;
    let path = state::text(&config, "/root/path", "root.path")?;
    if path.is_empty() {
        return Err(Damage::bad("root.path", &config["root"]["path"], "a path"));
    }
    Ok((path.to_owned(), config))
}

/// Returns the `--file` arguments of our createContainer hooks. Pods cannot name hooks; only CDI specs and the runtime
/// can.
fn files(config: &Value) -> Vec<String> {
    let hooks = config.pointer("/hooks/createContainer").and_then(Value::as_array);
    let ours = hooks.into_iter().flatten().filter(|hook| {
        let path = hook["path"].as_str().map(Path::new);
        path.and_then(Path::file_name) == Some(OsStr::new(HOOK_FILE))
    });
    let mut files = Vec::new();
    for hook in ours {
        let arguments = hook["args"].as_array().into_iter().flatten().map(Value::as_str);
        let mut option = false;
        for argument in arguments {
            let value = argument.filter(|value| option && shares::is_file(value));
            files.extend(value.map(str::to_owned));
            option = argument == Some(arguments::FILE);
        }
    }
    files
}

fn volume_at_dev(config: &Value) -> Option<String> {
    let mounts = config.pointer("/mounts").and_then(Value::as_array);
    mounts.into_iter().flatten().find_map(|mount| {
        let field = |name: &str| mount.get(name).and_then(Value::as_str).unwrap_or_default();
        let destination = field("destination");
        let is_volume = cleaned(destination) == Path::new("/dev") && field("type") != "tmpfs";
        // Shortened to fit into one line of the pod's event.
        is_volume.then(|| shown(destination))
    })
}

/// Cleans the path as the runtime does, without resolving links.
fn cleaned(path: &str) -> PathBuf {
    let mut cleaned = PathBuf::from("/");
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) => cleaned.push(name),
            Component::ParentDir => drop(cleaned.pop()),
            _ => (),
        }
    }
    cleaned
}

fn label(value: &Value) -> Option<String> {
    value.as_str().filter(|label| !label.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_at_dev_is_seen_however_it_is_written() {
        for (mounts, expected) in [
            (r#"[]"#, None),
            (
                r#"[{"destination": "/dev", "type": "tmpfs"}, {"destination": "/dev/shm", "type": "bind"}]"#,
                None,
            ),
            (r#"[{"destination": "/dev", "type": "bind"}]"#, Some("/dev")),
            (r#"[{"destination": "/./dev/", "type": "bind"}]"#, Some("/./dev/")),
            (r#"[{"destination": "/x/../dev", "type": "bind"}]"#, Some("/x/../dev")),
            (r#"[{"destination": "/x\n/../dev", "type": "bind"}]"#, Some("/x/../dev")),
            (r#"[{"destination": "/dev"}]"#, Some("/dev")),
        ] {
            let config = serde_json::from_str(&format!("{{\"mounts\": {mounts}}}")).expect("JSON");
            assert_eq!(volume_at_dev(&config).as_deref(), expected, "{mounts}");
        }
    }
}
