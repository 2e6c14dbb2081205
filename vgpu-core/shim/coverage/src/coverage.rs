//! Joins an API's public names, the rows about them and the hooks, and reports where the three disagree.

use crate::hooks::Hook;
use crate::rows::{Fate, Row};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// One API: all that this repository says of it.
#[derive(Debug)]
pub struct Api {
    pub title: &'static str,
    /// Public functions, as the libraries export them.
    pub names: BTreeSet<String>,
    pub rows: Vec<Row>,
    pub hooks: Vec<Hook>,
}

/// A function and the exported variants that share its row.
#[derive(Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    pub function: &'a str,
    pub exports: Vec<&'a str>,
    pub row: &'a Row,
}

/// A disagreement of names, rows and hooks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Problem {
    NoRow { name: String },
    TwoRows { name: String },
    NoName { name: String },
    NoHook { name: String, fate: Fate },
    OtherFate { name: String, fate: Fate, class: String },
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRow { name } => write!(formatter, "{name} has no row: give it one, after reading what it does"),
            Self::TwoRows { name } => write!(formatter, "{name} is in two rows: leave it in one"),
            Self::NoName { name } => write!(
                formatter,
                "{name} has a row, but names/ has no such function: correct it, or add the name"
            ),
            Self::NoHook { name, fate } => {
                write!(
                    formatter,
                    "{name} is {fate} by its row, but no table hooks it: hook it, or change the row"
                )
            }
            Self::OtherFate { name, fate, class } => {
                write!(
                    formatter,
                    "{name} is {fate} by its row and {class} by its hook: change one of them"
                )
            }
        }
    }
}

/// A name without the suffixes of its variants: cuMemcpyHtoD of cuMemcpyHtoD_v2_ptds.
pub fn base(name: &str) -> &str {
    let name = name
        .strip_suffix("_ptsz")
        .or_else(|| name.strip_suffix("_ptds"))
        .unwrap_or(name);
    match name.rsplit_once("_v") {
        Some((base, version)) if !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit()) => base,
        _ => name,
    }
}

impl Api {
    /// Returns the row about an exported name, and the name that the row has: the exported name, else its base.
    pub fn row(&self, export: &str) -> Option<(&str, &Row)> {
        [export, base(export)].into_iter().find_map(|wanted| {
            let found = |row: &'_ Row| row.names.iter().position(|name| name == wanted);
            self.rows
                .iter()
                .find_map(|row| Some((row.names.get(found(row)?)?.as_str(), row)))
        })
    }

    /// Each function with a row, and its variants, in the order of the names.
    pub fn entries(&self) -> Vec<Entry<'_>> {
        let mut entries: BTreeMap<&str, Entry<'_>> = BTreeMap::new();
        for export in &self.names {
            if let Some((function, row)) = self.row(export) {
                let new = || Entry {
                    function,
                    exports: Vec::new(),
                    row,
                };
                entries.entry(function).or_insert_with(new).exports.push(export);
            }
        }
        entries.into_values().collect()
    }

    /// Returns where names, rows and hooks disagree. Gaps are not disagreements: see [`Self::gaps`].
    pub fn problems(&self) -> BTreeSet<Problem> {
        let mut problems = BTreeSet::new();
        let classes: BTreeMap<&str, &str> = self
            .hooks
            .iter()
            .map(|hook| (hook.name.as_str(), hook.class.as_str()))
            .collect();
        let mut used = BTreeSet::new();
        for export in &self.names {
            let name = export.clone();
            let Some((function, row)) = self.row(export) else {
                problems.insert(Problem::NoRow { name });
                continue;
            };
            used.insert(function);
            let fate = row.fate;
            match classes.get(export.as_str()) {
                None if fate.is_hooked() => problems.insert(Problem::NoHook { name, fate }),
                Some(class) if fate != Fate::Unaccounted && fate.word() != *class => {
                    let class = (*class).to_owned();
                    problems.insert(Problem::OtherFate { name, fate, class })
                }
                _ => false,
            };
        }
        let mut seen = BTreeSet::new();
        for name in self.rows.iter().flat_map(|row| &row.names) {
            if !seen.insert(name) {
                problems.insert(Problem::TwoRows { name: name.clone() });
            } else if !used.contains(name.as_str()) {
                problems.insert(Problem::NoName { name: name.clone() });
            }
        }
        problems
    }

    /// Returns the functions that are unaccounted.
    pub fn gaps(&self) -> Vec<Entry<'_>> {
        let mut entries = self.entries();
        entries.retain(|entry| entry.row.fate == Fate::Unaccounted);
        entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{hooks, rows};

    fn api(names: &[&str], rows: &str, table: &str) -> Api {
        Api {
            title: "Test",
            names: names.iter().map(|name| (*name).into()).collect(),
            rows: rows::parse(rows).expect("rows"),
            hooks: hooks::hooks(table),
        }
    }

    fn problems(names: &[&str], rows: &str, table: &str) -> Vec<Problem> {
        api(names, rows, table).problems().into_iter().collect()
    }

    #[test]
    fn suffixes() {
        for (name, expected) in [
            ("cuMemcpyHtoD_v2_ptds", "cuMemcpyHtoD"),
            ("cuMemAllocAsync_ptsz", "cuMemAllocAsync"),
            ("cuCtxCreate_v4", "cuCtxCreate"),
            ("cuInit", "cuInit"),
            ("nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetGpuFabricInfoV"),
            ("cuX_value", "cuX_value"),
            ("cuX_v", "cuX_v"),
        ] {
            assert_eq!(base(name), expected);
        }
    }

    #[test]
    fn variants_share_a_row_unless_they_have_their_own() {
        let names = ["cuA", "cuA_v2", "cuA_v2_ptsz", "cuA_v3"];
        let api = api(&names, "passed through | a\n  cuA\nunaccounted | b\n  cuA_v3", "");
        assert!(api.problems().is_empty());
        let entries: Vec<_> = api
            .entries()
            .into_iter()
            .map(|one| (one.function, one.exports))
            .collect();
        assert_eq!(entries, [("cuA", names[..3].to_vec()), ("cuA_v3", vec!["cuA_v3"])]);
        assert_eq!(api.gaps().len(), 1);
    }

    #[test]
    fn a_new_name_needs_a_row() {
        let name = "cuNew".into();
        assert_eq!(
            problems(&["cuA", "cuNew"], "limited | a\n  cuA", "limited cuA: () => x;"),
            [Problem::NoRow { name }]
        );
    }

    #[test]
    fn a_row_needs_a_name() {
        let name = "cuGone".into();
        let rows = "passed through | a\n  cuA cuGone";
        assert_eq!(problems(&["cuA"], rows, ""), [Problem::NoName { name }]);
        // If all variants of a base have their own rows, a row for the base matches no name.
        let name = "cuA".into();
        let rows = "passed through | a\n  cuA cuA_v2";
        assert_eq!(problems(&["cuA_v2"], rows, ""), [Problem::NoName { name }]);
    }

    #[test]
    fn one_row_a_name() {
        let name = "cuA".into();
        let rows = "passed through | a\n  cuA\npassed through | b\n  cuA";
        assert_eq!(problems(&["cuA"], rows, ""), [Problem::TwoRows { name }]);
    }

    #[test]
    fn every_variant_of_a_hooked_fate_is_hooked() {
        let rows = "charged | a | b\n  cuA";
        let table = "charged cuA, cuA_v2: (bytes: usize) => x;";
        assert_eq!(problems(&["cuA", "cuA_v2"], rows, table), []);
        let (name, fate) = ("cuA_v2_ptsz".into(), Fate::Charged);
        assert_eq!(
            problems(&["cuA", "cuA_v2", "cuA_v2_ptsz"], rows, table),
            [Problem::NoHook { name, fate }]
        );
    }

    #[test]
    fn a_hook_is_what_its_row_says() {
        let of = |rows| problems(&["cuA"], rows, "released cuA: [0];");
        let other = |fate| Problem::OtherFate {
            name: "cuA".into(),
            fate,
            class: "released".into(),
        };
        assert_eq!(of("released | a | b\n  cuA"), []);
        assert_eq!(of("charged | a | b\n  cuA"), [other(Fate::Charged)]);
        assert_eq!(of("passed through | a\n  cuA"), [other(Fate::PassedThrough)]);
        // A hook may be marked as unaccounted: it does not do enough yet.
        assert_eq!(of("unaccounted | a\n  cuA"), []);
    }
}
