//! The list of circles that may stay, each with its reason.

use crate::circle::Circle;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// One circle that may stay.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    #[serde(rename = "crate")]
    pub of_crate: String,
    pub reason: String,
    /// The circle may contain all or some of these modules, and no others.
    pub modules: BTreeSet<String>,
}

#[derive(Debug, Default)]
pub struct Verdict {
    pub mistakes: Vec<String>,
    /// Modules that left a circle, so that their entry can be shortened.
    pub notes: Vec<String>,
    pub new_circles: usize,
}

/// Compares the circles with the list. A circle that shrank is allowed; an entry without a circle or without a reason
/// is a mistake.
pub fn compare(circles: &[Circle], entries: &[Entry]) -> Verdict {
    let mut verdict = Verdict::default();
    for circle in circles {
        if !entries.iter().any(|entry| allows(entry, circle)) {
            verdict.new_circles += 1;
            verdict.mistakes.push(described(circle, entries));
        }
    }
    for entry in entries {
        let name = format!(
            "allowed circle of crate {} ({})",
            entry.of_crate,
            listed(entry.modules.iter(), 4)
        );
        if entry.reason.trim().is_empty() {
            verdict
                .mistakes
                .push(format!("{name}: reason: is empty; say why the circle has to stay"));
        }
        let mut left = entry.modules.clone();
        let mut is_used = false;
        for circle in circles.iter().filter(|circle| circle.of_crate == entry.of_crate) {
            is_used |= allows(entry, circle);
            left.retain(|module| !circle.modules.contains(module));
        }
        if !is_used && !circles.iter().any(|circle| is_grown(entry, circle)) {
            verdict
                .mistakes
                .push(format!("{name}: no such circle is left: remove the entry"));
        } else if !left.is_empty() {
            let left = listed(left.iter(), usize::MAX);
            verdict.notes.push(format!(
                "note: {name}: no longer in a circle, take them off the list: {left}"
            ));
        }
    }
    verdict
}

/// Returns the circles as entries of the list.
pub fn written(circles: &[Circle]) -> String {
    let mut text = String::new();
    for circle in circles {
        let modules = listed(circle.modules.iter(), usize::MAX);
        text += &format!("- crate: {}\n  reason: \n  modules: [{modules}]\n", circle.of_crate);
    }
    text
}

fn allows(entry: &Entry, circle: &Circle) -> bool {
    entry.of_crate == circle.of_crate && circle.modules.is_subset(&entry.modules)
}

/// Returns true if the entry describes this circle before it got new modules. Then only the circle is reported, and not
/// also the entry as one without a circle.
fn is_grown(entry: &Entry, circle: &Circle) -> bool {
    entry.of_crate == circle.of_crate && circle.modules.intersection(&entry.modules).count() > 1
}

fn described(circle: &Circle, entries: &[Entry]) -> String {
    let listed_before: BTreeSet<&String> = entries
        .iter()
        .filter(|entry| is_grown(entry, circle))
        .flat_map(|entry| &entry.modules)
        .collect();
    let fresh: Vec<&String> = circle
        .modules
        .iter()
        .filter(|module| !listed_before.contains(module))
        .collect();
    let start = fresh.first().copied().or(circle.modules.first());
    let mut text = format!(
        "import circle in crate {}: {}\n",
        circle.of_crate,
        listed(circle.modules.iter(), usize::MAX)
    );
    if !listed_before.is_empty() && !fresh.is_empty() {
        text += &format!(
            "  new in a circle that is allowed: {}\n",
            listed(fresh.into_iter(), usize::MAX)
        );
    }
    for step in circle.shortest(start.map_or("", String::as_str)) {
        text += &format!("  {} needs {}: {}\n", step.from, step.to, step.place);
    }
    text + "  move what one of them needs into a module below both; build/circles/src/lib.rs has the rules"
}

fn listed<'a>(names: impl Iterator<Item = &'a String>, most: usize) -> String {
    let names: Vec<&str> = names.map(String::as_str).collect();
    let shown = names.iter().take(most).copied().collect::<Vec<_>>().join(", ");
    if names.len() > most {
        format!("{shown} and {} more", names.len() - most)
    } else {
        shown
    }
}
