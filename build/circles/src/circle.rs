//! The dependencies between modules, and the circles in them.

use crate::names::{Found, imported, resolve};
use crate::source::Module;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Modules of one crate that all reach each other.
#[derive(Debug, Clone)]
pub struct Circle {
    pub of_crate: String,
    pub modules: BTreeSet<String>,
    steps: Vec<Step>,
}

/// A module that needs another one, and the line that shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub from: String,
    pub to: String,
    pub place: String,
}

/// Returns the circles of a crate, each with at least two modules.
pub fn find(of_crate: &str, modules: &[Module]) -> Vec<Circle> {
    let edges = dependencies(modules);
    let reach: Vec<BTreeSet<usize>> = (0..modules.len()).map(|at| reachable(&edges, at)).collect();
    let mut circles = Vec::new();
    let mut seen: BTreeSet<usize> = BTreeSet::new();
    for at in 0..modules.len() {
        if seen.contains(&at) || !reach[at].contains(&at) {
            continue;
        }
        let members: BTreeSet<usize> = reach[at]
            .iter()
            .copied()
            .filter(|other| reach[*other].contains(&at))
            .collect();
        seen.extend(&members);
        let steps = edges
            .iter()
            .filter(|((from, to), _)| members.contains(from) && members.contains(to));
        circles.push(Circle {
            of_crate: of_crate.into(),
            modules: members.iter().map(|member| modules[*member].name.clone()).collect(),
            steps: steps
                .map(|((from, to), place)| Step {
                    from: modules[*from].name.clone(),
                    to: modules[*to].name.clone(),
                    place: place.clone(),
                })
                .collect(),
        });
    }
    circles
}

impl Circle {
    /// Returns the shortest path from `start` back to itself.
    pub fn shortest(&self, start: &str) -> Vec<&Step> {
        let mut came_by: BTreeMap<&str, &Step> = BTreeMap::new();
        let mut queue = VecDeque::from([start]);
        while let Some(at) = queue.pop_front() {
            for step in self.steps.iter().filter(|step| step.from == at) {
                if !came_by.contains_key(step.to.as_str()) {
                    came_by.insert(&step.to, step);
                    queue.push_back(&step.to);
                }
            }
        }
        let mut way = Vec::new();
        let mut at = start;
        while let Some(step) = came_by.get(at) {
            way.push(*step);
            at = &step.from;
            if at == start {
                break;
            }
        }
        way.reverse();
        way
    }
}

/// Every dependency between two modules, with the first line that causes it.
fn dependencies(modules: &[Module]) -> BTreeMap<(usize, usize), String> {
    let mut edges = BTreeMap::new();
    for (at, module) in modules.iter().enumerate() {
        let mut add = |to: usize, line: usize, path: &[String]| {
            if to != at {
                let text = || format!("{}:{line}: {}", module.file.display(), path.join("::"));
                edges.entry((at, to)).or_insert_with(text);
            }
        };
        for import in &module.imports {
            match imported(modules, at, import) {
                Some(Found::ItemOf(to)) if import.is_reexport && is_inside(modules, to, at) => {}
                Some(Found::ItemOf(to)) => add(to, import.line, &import.path),
                // A glob's names are dependencies where they are used; its traits are dependencies at once.
                Some(Found::Module(to)) if import.name.is_none() && !import.is_reexport && modules[to].has_traits => {
                    add(to, import.line, &import.path);
                }
                _ => {}
            }
        }
        for reference in &module.paths {
            if let Some(Found::ItemOf(to)) = resolve(modules, at, &reference.path) {
                add(to, reference.line, &reference.path);
            }
        }
    }
    edges
}

fn is_inside(modules: &[Module], mut module: usize, of: usize) -> bool {
    while let Some(parent) = modules[module].parent {
        if parent == of {
            return true;
        }
        module = parent;
    }
    false
}

fn reachable(edges: &BTreeMap<(usize, usize), String>, start: usize) -> BTreeSet<usize> {
    let mut reached = BTreeSet::new();
    let mut open = vec![start];
    while let Some(at) = open.pop() {
        for ((_, to), _) in edges.range((at, 0)..=(at, usize::MAX)) {
            if reached.insert(*to) {
                open.push(*to);
            }
        }
    }
    reached
}
