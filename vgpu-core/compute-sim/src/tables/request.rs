//! The request of one run: the laws (a column each) and the sets of pairs.

use vgpu_compute_sim::law::LawKind;
use vgpu_compute_sim::{MS, Ns, S, US};

pub(super) type Laws = Vec<(&'static str, LawKind)>;

pub(crate) struct Request {
    pub laws: Laws,
    /// The sets of drawn pairs, at least one.
    pub sets: Vec<u64>,
}

impl Request {
    /// Prints the head of a table: this first column and a column for each law.
    pub(super) fn head(&self, first: &str) {
        let names: Vec<&str> = self.laws.iter().map(|(name, _)| *name).collect();
        println!(
            "| {first} | {} |\n|---|{}",
            names.join(" | "),
            "---|".repeat(names.len())
        );
    }

    pub(super) fn row(&self, what: &str, cell: impl Fn(LawKind) -> String) {
        let cells: Vec<String> = self.laws.iter().map(|(_, law)| cell(*law)).collect();
        println!("| {what} | {} |", cells.join(" | "));
    }

    /// The laws other than the hardware alone.
    pub(super) fn limiting(&self) -> impl Iterator<Item = &(&'static str, LawKind)> {
        self.laws.iter().filter(|(_, law)| *law != LawKind::Hardware)
    }
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
