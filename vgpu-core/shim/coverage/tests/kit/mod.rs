//! Reads files of this repository.

#![allow(dead_code, unreachable_pub, reason = "each test file uses some of it")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use vgpu_coverage::coverage::Api;
use vgpu_coverage::hooks::{TABLES, hooks};
use vgpu_coverage::rows;

pub fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

pub fn read(path: impl AsRef<Path>) -> String {
    let path = here().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The public names of a list.
pub fn names(list: &str) -> BTreeSet<String> {
    let text = read(Path::new("../names").join(list));
    text.split_whitespace().map(String::from).collect()
}

/// Both APIs.
pub fn apis() -> [Api; 2] {
    let api = |title, prefix: &str, list: &str| Api {
        title,
        names: &names(list) - &names("cuda-data.txt"),
        rows: rows::parse(&read(list)).unwrap_or_else(|error| panic!("{list}: {error}")),
        hooks: TABLES
            .iter()
            .flat_map(|table| hooks(&read(Path::new("..").join(table))))
            .filter(|hook| hook.name.starts_with(prefix))
            .collect(),
    };
    [
        api("The CUDA driver API", "cu", "cuda.txt"),
        api("NVML", "nvml", "nvml.txt"),
    ]
}

/// Returns the items, one on each line.
pub fn listed<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    items
        .into_iter()
        .map(|item| format!("\n  {}", item.to_string()))
        .collect()
}
