//! Kubernetes' own cases, with its own answers.

mod common;

use common::{Case, conformance, normalised};
use vgpu_allocator::SelectorCache;
use vgpu_api::config::AllocationPolicy;

#[test]
fn every_case_of_kubernetes_agrees() {
    let Some(folder) = conformance() else {
        return vgpu_skip::skip(
            "every_case_of_kubernetes_agrees",
            "no folder ../shared/conformance/allocator beside the clone",
        );
    };
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} holds no case", folder.display());
    let mut disagreements = Vec::new();
    for file in &files {
        let text = std::fs::read_to_string(file).unwrap();
        let case: Case = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        if let Err(difference) = check(&case) {
            disagreements.push(format!("{}: {difference}", case.name));
        }
    }
    println!(
        "conformance: {} of {} cases passed",
        files.len() - disagreements.len(),
        files.len()
    );
    assert!(disagreements.is_empty(), "{}", disagreements.join("\n"));
}

fn check(case: &Case) -> Result<(), String> {
    let ours = case.allocate(AllocationPolicy::FirstFit, &mut SelectorCache::default());
    match (&ours, &case.results, &case.error) {
        (Err(_), None, Some(_)) | (Ok(None), None, None) => Ok(()),
        (Ok(Some(ours)), Some(theirs), None) => {
            let ours = normalised(ours.clone(), &case.claims);
            let theirs = normalised(theirs.clone(), &case.claims);
            if ours == theirs {
                return Ok(());
            }
            Err(format!("ours {ours:#?}\ntheirs {theirs:#?}"))
        }
        // No claims to allocate: Kubernetes gives no list, we give an empty one.
        (Ok(Some(ours)), None, None) if ours.is_empty() => Ok(()),
        _ => Err(format!(
            "ours {ours:?}\ntheirs {:?} error {:?}",
            case.results, case.error
        )),
    }
}
