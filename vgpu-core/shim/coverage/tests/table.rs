//! The table, the hooks and the lists of names agree, nothing is unaccounted, and docs/coverage.md is current.

mod kit;

use kit::{apis, listed};
use vgpu_coverage::document;

#[test]
fn every_name_has_one_row_that_its_hook_agrees_with() {
    for api in apis() {
        let problems = api.problems();
        assert!(problems.is_empty(), "{}:{}", api.title, listed(&problems));
        assert!(!api.hooks.is_empty(), "{}: no hooks were read", api.title);
    }
}

#[test]
fn nothing_is_unaccounted() {
    let gaps: Vec<String> = apis()
        .iter()
        .flat_map(|api| {
            api.gaps()
                .into_iter()
                .map(|gap| format!("{}: {}", gap.exports.join(", "), gap.row.reason))
                .collect::<Vec<_>>()
        })
        .collect();
    assert!(
        gaps.is_empty(),
        "{} functions need a hook:{}",
        gaps.len(),
        listed(&gaps)
    );
}

#[test]
fn the_document_is_current() {
    let path = kit::here().join("../../../docs/coverage.md");
    let fresh = document::render(&apis());
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &fresh).expect("docs/ can be written");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let first = fresh
        .lines()
        .zip(committed.lines())
        .find(|(fresh, committed)| fresh != committed);
    assert!(
        fresh == committed,
        "docs/coverage.md is stale: run `UPDATE=1 cargo test -p vgpu-coverage --test table`. First difference: {first:?}"
    );
}
