//! Tables with a column for each law.

use vgpu_compute_sim::law::LawKind;
use vgpu_compute_sim::{MS, Ns, S, US};

pub(super) const LAWS: [(&str, LawKind); 2] = [("hardware", LawKind::Hardware), ("limiter", LawKind::Limiter)];

/// Prints the head of a table: this first column and a column for each law.
pub(super) fn head(first: &str) {
    let names = LAWS.map(|(name, _)| name).join(" | ");
    println!("| {first} | {names} |\n|---|{}", "---|".repeat(LAWS.len()));
}

pub(super) fn row(what: &str, cell: impl Fn(LawKind) -> String) {
    println!("| {what} | {} |", LAWS.map(|(_, law)| cell(law)).join(" | "));
}

pub(super) fn length(ns: Ns) -> String {
    if ns >= S {
        format!("{} s", ns as f64 / S as f64)
    } else if ns >= MS {
        format!("{} ms", ns as f64 / MS as f64)
    } else {
        format!("{} us", ns / US)
    }
}

pub(super) fn list(values: &[f64]) -> String {
    let values: Vec<String> = values.iter().map(|value| format!("{value:.1}")).collect();
    values.join(" / ")
}
