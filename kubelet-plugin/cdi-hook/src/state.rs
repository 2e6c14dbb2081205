//! Reads the container's state, which the runtime passes on standard input, and the bundle's config.json.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use serde_json::Value;

/// A state has an id, paths and annotations; Kubernetes allows 256 KiB of annotations.
const MAX_STATE: u64 = 1 << 20;
const MAX_CONFIG: u64 = 16 << 20;

#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) id: String,
    /// Its root file system, on the node.
    pub(crate) root: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("standard input: {0}; it must be the container's state, as a runtime passes it to hooks")]
    State(Damage),
    #[error("container {id}: {path}: {damage}; the runtime wrote it, so check the runtime's log", path = .path.display())]
    Config { id: String, path: PathBuf, damage: Damage },
}

#[derive(Debug, thiserror::Error)]
pub enum Damage {
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error("larger than {0} bytes")]
    TooLarge(u64),
    #[error("not JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("has no text in {0}")]
    Missing(&'static str),
    #[error("{field} is {value:?}, not {wanted}")]
    Bad {
        field: &'static str,
        value: String,
        wanted: &'static str,
    },
}

impl Container {
    pub(crate) fn read(stdin: impl Read) -> Result<Self, Error> {
        let (id, bundle) = state(stdin).map_err(Error::State)?;
        let path = bundle.join("config.json");
        match root(&path) {
            // If root.path is absolute, `join` drops the bundle.
            Ok(root) => Ok(Self {
                id,
                root: bundle.join(root),
            }),
            Err(damage) => Err(Error::Config { id, path, damage }),
        }
    }
}

fn state(stdin: impl Read) -> Result<(String, PathBuf), Damage> {
    let state = json(stdin, MAX_STATE)?;
    let id = text(&state, "/id", "id")?;
    // The id appears in messages and in the report, which are one line each.
    if id.is_empty() || id.len() > 1024 || id.contains(|c: char| c.is_control()) {
        let wanted = "1 to 1024 characters of one line";
        return Err(Damage::Bad {
            field: "id",
            value: id.chars().take(64).collect(),
            wanted,
        });
    }
    let bundle = text(&state, "/bundle", "bundle")?;
    if !Path::new(bundle).is_absolute() {
        return Err(Damage::Bad {
            field: "bundle",
            value: bundle.to_owned(),
            wanted: "an absolute path",
        });
    }
    Ok((id.to_owned(), bundle.into()))
}

fn root(config: &Path) -> Result<String, Damage> {
    let config = json(File::open(config)?, MAX_CONFIG)?;
    let path = text(&config, "/root/path", "root.path")?;
    if path.is_empty() {
        return Err(Damage::Bad {
            field: "root.path",
            value: String::new(),
            wanted: "a path",
        });
    }
    Ok(path.to_owned())
}

fn json(from: impl Read, max: u64) -> Result<Value, Damage> {
    let mut bytes = Vec::new();
    from.take(max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return Err(Damage::TooLarge(max));
    }
    Ok(serde_json::from_slice(&bytes)?)
}

fn text<'a>(document: &'a Value, pointer: &str, field: &'static str) -> Result<&'a str, Damage> {
    document
        .pointer(pointer)
        .and_then(Value::as_str)
        .ok_or(Damage::Missing(field))
}
