//! `vgpu-circles ALLOWED.yaml Cargo.toml...`: fails on an import circle that ALLOWED.yaml does not list. `vgpu-circles
//! --list Cargo.toml...` prints the circles in the form of that file.
#![forbid(unsafe_code)]

use anyhow::{Context, bail};
use std::path::Path;
use std::process::ExitCode;
use vgpu_circles::allowed::{self, Entry};
use vgpu_circles::circle::{self, Circle};
use vgpu_circles::{crates, source};

fn main() -> anyhow::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [list, manifests @ ..] = arguments.as_slice() else {
        bail!("usage: vgpu-circles ALLOWED.yaml|--list Cargo.toml...");
    };
    let mut circles: Vec<Circle> = Vec::new();
    let mut crates_seen = 0;
    for manifest in manifests {
        for target in crates::of_workspace(Path::new(manifest))? {
            crates_seen += 1;
            let modules = source::read(&target.root).with_context(|| format!("crate {}", target.name))?;
            for circle in circle::find(&target.name, &modules) {
                // A circle in a support module appears in every test that uses the module; report it once.
                if !circles
                    .iter()
                    .any(|known| known.of_crate == circle.of_crate && known.modules == circle.modules)
                {
                    circles.push(circle);
                }
            }
        }
    }
    if list == "--list" {
        print!("{}", allowed::written(&circles));
        return Ok(ExitCode::SUCCESS);
    }
    let text = std::fs::read_to_string(list).with_context(|| list.clone())?;
    let entries: Vec<Entry> = serde_saphyr::from_str(&text).with_context(|| list.clone())?;
    let verdict = allowed::compare(&circles, &entries);
    for note in &verdict.notes {
        println!("{note}");
    }
    for mistake in &verdict.mistakes {
        eprintln!("{mistake}");
    }
    println!(
        "{crates_seen} crates, {} import circles, {} of them not allowed",
        circles.len(),
        verdict.new_circles
    );
    Ok(if verdict.mistakes.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
