//! Reads the hook tables of the shim. The shim's build.rs compiles this file too, so the tables have one reader only.

/// The tables, in the shim's folder.
pub const TABLES: [&str; 4] = [
    "src/table/cuda.rs",
    "src/table/devices.rs",
    COMPUTE,
    "src/table/nvml.rs",
];
/// The table of names that are jumps, and that lead to a hook only where GPU time is limited.
pub const COMPUTE: &str = "src/table/compute.rs";
const CLASSES: [&str; 4] = ["charged", "released", "limited", "virtualised"];

/// One hooked name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hook {
    pub class: String,
    pub name: String,
    /// `(name: type, ...)`, with `..` for further arguments; or `[position, ...]` of the device arguments; empty if the
    /// table does not say.
    pub takes: String,
}

/// The names that a table declares: `class name, name: (...) => handler(...);`.
pub fn hooks(table: &str) -> Vec<Hook> {
    table
        .lines()
        .filter_map(|line| line.trim().split_once(' '))
        .filter(|(class, _)| CLASSES.contains(class))
        .flat_map(|(class, rest)| {
            let (names, takes) = rest.split_once(':').unwrap_or((rest, ""));
            let takes = takes.split(" =>").next().unwrap_or(takes).trim().trim_end_matches(';');
            names.split(',').map(move |name| Hook {
                class: class.to_owned(),
                name: name.trim().to_owned(),
                takes: takes.to_owned(),
            })
        })
        .collect()
}
