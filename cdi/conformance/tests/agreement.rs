//! CDI's own library accepts every spec that vgpu-cdi accepts, both as read from a file and as we write it.
//! So a runtime that is built on that library, or on the Go library that it follows, never refuses a spec of
//! ours.
//!
//! The documents are one good spec with every field, and that spec with one or two changes from a list of
//! good and bad values for every field.
#![forbid(unsafe_code)]

mod changes;

use std::{fs, path::PathBuf};

use changes::{Change, base, changes};
use container_device_interface::{
    schema,
    spec::{parse_spec, read_spec},
    version::minimum_required_version,
};
use serde_json::Value;
use vgpu_cdi::{Spec, Version};

/// A file for the other library, which only reads files.
struct Desk {
    _dir: tempfile::TempDir,
    file: PathBuf,
}

impl Desk {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("dra.vgpu-claim_x.json");
        Self { _dir: dir, file }
    }

    /// The other library's error for the document as it is and as it reads it.
    fn theirs(&self, json: &[u8]) -> Result<(), String> {
        fs::write(&self.file, json).expect("write");
        schema::validate_builtin(json).map_err(|error| format!("{error:#}"))?;
        read_spec(&self.file, 0).map(drop).map_err(|error| format!("{error:#}"))
    }

    fn lowest_version(&self, json: &[u8]) -> String {
        fs::write(&self.file, json).expect("write");
        let spec = parse_spec(&self.file).expect("a spec");
        minimum_required_version(&spec).expect("a version").to_string()
    }

    /// Compares both libraries on one document. Returns true if we accept it.
    fn compare(&self, document: &Value) -> bool {
        let json = document.to_string();
        let Ok(spec) = Spec::parse(json.as_bytes()) else {
            return false;
        };
        self.theirs(json.as_bytes())
            .unwrap_or_else(|error| panic!("accepted by us alone: {json}\n{error}"));
        let rendered = spec.render().expect("a valid spec");
        self.theirs(&rendered)
            .unwrap_or_else(|error| panic!("written by us: {json}\n{error}"));
        assert_eq!(Spec::parse(&rendered).expect("our own document"), spec);
        assert_eq!(
            Version::required(&spec).to_string(),
            self.lowest_version(&rendered),
            "{json}"
        );
        true
    }
}

fn changed(changes: &[&Change]) -> Value {
    let mut document = base();
    for change in changes {
        change.apply(&mut document);
    }
    document
}

#[test]
fn the_base_is_accepted_by_both() {
    assert!(Desk::new().compare(&base()));
}

/// We refuse every bad value and accept every good one, so the list does test something.
#[test]
fn every_change_is_judged_as_the_list_says() {
    let desk = Desk::new();
    for change in &changes() {
        assert_eq!(desk.compare(&changed(&[change])), change.good, "{change:?}");
    }
}

/// We refuse some specs that the other library accepts and that fail later.
#[test]
fn what_the_other_library_lets_pass() {
    let desk = Desk::new();
    let lenient: Vec<_> = changes()
        .into_iter()
        .filter(|change| !change.good && desk.theirs(changed(&[change]).to_string().as_bytes()).is_ok())
        .collect();
    for pointer in [
        "/hooks/0/path",
        "/mounts/0/hostPath",
        "/mounts/0/containerPath",
        "/deviceNodes/0/path",
    ] {
        let found = lenient.iter().any(|change| change.pointer.ends_with(pointer));
        assert!(
            found,
            "the other library checks {pointer} now: this list can be shorter"
        );
    }
}

/// Every third pair of good changes, and every eleventh of the others, where one bad value may hide another:
/// 10 s instead of a minute.
#[test]
fn two_changes_at_once() {
    let desk = Desk::new();
    let changes = changes();
    let mut accepted = 0;
    for (index, first) in changes.iter().enumerate() {
        for (offset, second) in changes[index + 1..].iter().enumerate() {
            let every = if first.good && second.good { 3 } else { 11 };
            if (index + offset) % every == 0 {
                accepted += usize::from(desk.compare(&changed(&[first, second])));
            }
        }
    }
    assert!(accepted > 300, "only {accepted} accepted pairs");
}

/// Versions: the lowest possible one is accepted, and both refuse any lower one.
#[test]
fn no_lower_version_would_do() {
    let desk = Desk::new();
    let versions = ["0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"];
    for change in changes().iter().filter(|change| change.good) {
        let Ok(spec) = Spec::parse(changed(&[change]).to_string().as_bytes()) else {
            continue;
        };
        let mut document: Value = serde_json::from_slice(&spec.render().expect("a spec")).expect("JSON");
        let lowest = document["cdiVersion"].as_str().expect("a version").to_owned();
        for version in versions.iter().take_while(|version| **version != lowest) {
            document["cdiVersion"] = Value::from(*version);
            let json = document.to_string();
            assert!(desk.theirs(json.as_bytes()).is_err(), "{version} would do: {json}");
            assert!(Spec::parse(json.as_bytes()).is_err(), "{version} would do: {json}");
        }
    }
}
