//! Validates what the types cannot express. At least as strict as CDI's own libraries. Stricter where those
//! accept a spec that fails later or silently does something else: relative paths, a mount or device node
//! that replaces another one of the same edits.

use std::{collections::HashSet, fmt, hash::Hash};

use crate::{
    name,
    path::At,
    spec::{ContainerEdits, Device, DeviceNode, Hook, Mount, Spec},
};

/// A problem in a spec, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// For example `devices[0].containerEdits.env[2]`.
    pub path: String,
    pub problem: Problem,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("holds no device; add one, or remove the file")]
    NoDevices,
    #[error("changes nothing in a container, which runtimes refuse; add an edit, or leave it out")]
    NoEdits,
    #[error("{0:?} occurs twice; the later one would silently replace the earlier, so keep one")]
    Duplicate(String),
    #[error("{0:?} is not a device name; use letters, digits, '-', '_', '.' and ':', a letter or digit at both ends")]
    DeviceName(String),
    #[error("{0:?} is not an absolute path without '.', '..' and empty parts; write it from the root")]
    Path(String),
    #[error("{0:?} is the root directory itself, which cannot be replaced; name a path below it")]
    RootPath(String),
    #[error("is empty; give it a value, or leave it out")]
    Empty,
    #[error("{0:?} is not NAME=value")]
    Env(String),
    #[error("{0:?} holds a control character or one that YAML readers change; remove it")]
    Text(String),
    #[error("{0:?} is not one mount option; write each option as an entry of its own")]
    MountOption(String),
    #[error("{0:#o} is not a file mode; use permission bits alone, 0o7777 at most")]
    FileMode(u32),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.problem)
    }
}

impl std::error::Error for Error {}

type Valid = Result<(), Error>;

fn ensure(holds: bool, at: At<'_>, problem: impl FnOnce() -> Problem) -> Valid {
    if holds {
        Ok(())
    } else {
        Err(Error {
            path: at.to_string(),
            problem: problem(),
        })
    }
}

/// Checks every item of a list, in order.
fn each<T>(list: &[T], at: At<'_>, check: impl Fn(&T, At<'_>) -> Valid) -> Valid {
    list.iter()
        .enumerate()
        .try_for_each(|(index, item)| check(item, at.index(index)))
}

/// Does the same as [`each`], and refuses two items with the same key.
fn each_distinct<'a, T, K>(list: &'a [T], at: At<'_>, key: impl Fn(&'a T) -> K) -> Valid
where
    K: Hash + Eq + fmt::Display + Copy,
{
    let mut seen = HashSet::with_capacity(list.len());
    for (index, item) in list.iter().enumerate() {
        let key = key(item);
        ensure(seen.insert(key), at.index(index), || {
            Problem::Duplicate(key.to_string())
        })?;
    }
    Ok(())
}

pub(crate) fn spec(spec: &Spec) -> Valid {
    let root = At::Root;
    let devices = root.field("devices");
    ensure(!spec.devices.is_empty(), devices, || Problem::NoDevices)?;
    each(&spec.devices, devices, device)?;
    each_distinct(&spec.devices, devices, |device| device.name.as_str())?;
    edits(&spec.container_edits, root.field("containerEdits"))
}

fn device(device: &Device, at: At<'_>) -> Valid {
    ensure(name::is_device_name(&device.name), at.field("name"), || {
        Problem::DeviceName(device.name.clone())
    })?;
    let container_edits = at.field("containerEdits");
    ensure(!device.container_edits.is_empty(), container_edits, || Problem::NoEdits)?;
    edits(&device.container_edits, container_edits)
}

fn edits(edits: &ContainerEdits, at: At<'_>) -> Valid {
    env(&edits.env, at.field("env"))?;

    let nodes = at.field("deviceNodes");
    each(&edits.device_nodes, nodes, device_node)?;
    each_distinct(&edits.device_nodes, nodes, |node| node.path.as_str())?;

    let mounts = at.field("mounts");
    each(&edits.mounts, mounts, mount)?;
    each_distinct(&edits.mounts, mounts, |mount| mount.container_path.as_str())?;

    each(&edits.hooks, at.field("hooks"), hook)
}

fn env(list: &[String], at: At<'_>) -> Valid {
    each(list, at, |entry, at| {
        let name = entry.split_once('=').map_or("", |(name, _)| name);
        let clean = !name.is_empty() && !name.contains(char::is_whitespace);
        ensure(clean, at, || Problem::Env(entry.clone()))?;
        text(entry, at)
    })?;
    each_distinct(list, at, |entry| {
        entry.split_once('=').map_or(entry.as_str(), |(name, _)| name)
    })
}

fn device_node(node: &DeviceNode, at: At<'_>) -> Valid {
    container_path(&node.path, at.field("path"))?;
    if let Some(host) = &node.host_path {
        absolute(host, at.field("hostPath"))?;
    }
    ensure(node.file_mode <= 0o7777, at.field("fileMode"), || {
        Problem::FileMode(node.file_mode)
    })
}

fn mount(mount: &Mount, at: At<'_>) -> Valid {
    container_path(&mount.container_path, at.field("containerPath"))?;
    match mount.r#type.as_deref() {
        // The source of other file systems is not a path, for example "tmpfs".
        Some(kind) if kind != "bind" => {
            non_empty(kind, at.field("type"))?;
            non_empty(&mount.host_path, at.field("hostPath"))?;
        }
        _ => absolute(&mount.host_path, at.field("hostPath"))?,
    }
    each(&mount.options, at.field("options"), |option, at| {
        let one = !option.is_empty() && !option.contains(|c: char| c == ',' || c.is_whitespace());
        ensure(one, at, || Problem::MountOption(option.clone()))?;
        single_line(option, at)
    })
}

fn hook(hook: &Hook, at: At<'_>) -> Valid {
    absolute(&hook.path, at.field("path"))?;
    each(&hook.args, at.field("args"), |argument, at| text(argument, at))
}

fn container_path(path: &str, at: At<'_>) -> Valid {
    ensure(path != "/", at, || Problem::RootPath(path.to_owned()))?;
    absolute(path, at)
}

fn absolute(path: &str, at: At<'_>) -> Valid {
    let good = path == "/"
        || path
            .strip_prefix('/')
            .is_some_and(|rest| rest.split('/').all(|part| !matches!(part, "" | "." | "..")));
    ensure(good, at, || Problem::Path(path.to_owned()))?;
    single_line(path, at)
}

fn non_empty(value: &str, at: At<'_>) -> Valid {
    ensure(!value.is_empty(), at, || Problem::Empty)?;
    single_line(value, at)
}

/// For names and paths: no control characters.
fn single_line(value: &str, at: At<'_>) -> Valid {
    ensure(!value.contains(|c: char| c.is_control()), at, || {
        Problem::Text(value.to_owned())
    })?;
    text(value, at)
}

/// Runtimes read these files as YAML 1.1, also the JSON ones. YAML has no NUL, DEL or other control
/// characters, and folds the line breaks U+0085, U+2028 and U+2029 into spaces.
fn text(value: &str, at: At<'_>) -> Valid {
    let changed = |c: char| {
        (c.is_control() && !matches!(c, '\t' | '\n' | '\r'))
            || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
    };
    ensure(!value.contains(changed), at, || Problem::Text(value.to_owned()))
}
