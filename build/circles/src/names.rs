//! Finds the module that defines the target of a path.

use crate::source::{Import, Module};

/// Maximum chain of re-exports, so that two globs that import each other come to an end.
const DEPTH: usize = 16;

/// The target of a path inside the crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    Module(usize),
    /// An item of this module.
    ItemOf(usize),
}

/// Resolves `path` from module `at`. Returns `None` for another crate, a local variable or a parameter.
pub fn resolve(modules: &[Module], at: usize, path: &[String]) -> Option<Found> {
    follow(modules, at, path, DEPTH)
}

fn follow(modules: &[Module], at: usize, path: &[String], depth: usize) -> Option<Found> {
    let depth = depth.checked_sub(1)?;
    let mut place = at;
    let mut is_anchored = false;
    for (index, segment) in path.iter().enumerate() {
        let is_last = index + 1 == path.len();
        match segment.as_str() {
            "crate" => place = 0,
            "self" => {}
            "super" => place = modules[place].parent?,
            name => match member(modules, place, name, is_last, depth) {
                Some(Found::Module(next)) => place = next,
                Some(Found::ItemOf(owner)) => return Some(Found::ItemOf(owner)),
                // Presumably defined by a macro.
                None if is_anchored => return Some(Found::ItemOf(place)),
                None => return None,
            },
        }
        is_anchored = true;
    }
    Some(Found::Module(place))
}

/// A module and a function may share a name; the last segment of a path is then the function.
fn member(modules: &[Module], place: usize, name: &str, is_last: bool, depth: usize) -> Option<Found> {
    let module = &modules[place];
    let child = module.children.get(name).map(|child| Found::Module(*child));
    if let Some(child) = child
        && !is_last
    {
        return Some(child);
    }
    if module.items.contains(name) {
        return Some(Found::ItemOf(place));
    }
    let imported = module
        .imports
        .iter()
        .filter(|import| import.name.as_deref() == Some(name));
    let mut imported = imported.filter_map(|import| target(modules, place, import, depth));
    if let Some(found) = imported.find(|found| child.is_none() || matches!(found, Found::ItemOf(_))) {
        return Some(found);
    }
    child.or_else(|| {
        let globs = module.imports.iter().filter(|import| import.name.is_none());
        globs
            .filter_map(|glob| target(modules, place, glob, depth))
            .find_map(|found| match found {
                Found::Module(other) if other != place => member(modules, other, name, is_last, depth.checked_sub(1)?),
                _ => None,
            })
    })
}

/// Returns the target of an import; for a glob, the module whose names it imports.
pub fn target(modules: &[Module], at: usize, import: &Import, depth: usize) -> Option<Found> {
    // An import whose whole path is its own name would resolve to itself forever.
    if import.path.len() == 1 && import.path.first() == import.name.as_ref() {
        return None;
    }
    follow(modules, at, &import.path, depth.min(DEPTH))
}

/// Returns the target of an import.
pub fn imported(modules: &[Module], at: usize, import: &Import) -> Option<Found> {
    target(modules, at, import, DEPTH)
}
