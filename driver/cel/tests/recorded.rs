//! Kubernetes 1.37.1's answers to selectors, recorded by the differential test and compared exactly, without Go.
//!
//! `testdata/kubernetes-1.37.1.jsonl` has one selector around each form of the library; `disagreements.jsonl` has
//! those on which we once differed.

#[path = "support/device.rs"]
mod device;

use serde_json::Value;
use vgpu_cel::{COST_LIMIT, EvalError, compile};

fn check(name: &str) -> usize {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("testdata")
        .join(name);
    let text = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let mut wrong = Vec::new();
    let samples = device::samples();
    for line in text.lines() {
        let case: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        let expression = case["expression"].as_str().unwrap();
        let program = match (compile(expression), case["compiles"].as_bool().unwrap()) {
            (Ok(program), true) => program,
            (Err(_), false) => continue,
            (ours, _) => {
                wrong.push(format!("{expression}: compiles: {ours:?}"));
                continue;
            }
        };
        let device = match case["device"].as_u64() {
            Some(index) => &samples[index as usize],
            None => &case["device"],
        };
        let (result, cost) = program.matches_with_cost(&device::read(device));
        let over = case["over"].as_bool().unwrap_or(false);
        if result.as_ref().ok().copied() != case["result"].as_bool() || over != (result == Err(EvalError::CostLimit)) {
            wrong.push(format!("{expression}: {result:?} instead of {}", case["result"]));
        }
        // An error may occur at one of several places; then the cost only has to be near, otherwise equal.
        let theirs = case["cost"].as_u64().unwrap();
        let near = cost <= 2 * theirs + 10 && theirs <= 2 * cost + 10;
        if (case["result"].is_boolean() && cost != theirs) || (!near && cost.max(theirs) <= COST_LIMIT) {
            wrong.push(format!("{expression}: costs {cost} instead of {theirs}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {name}:\n{}", wrong.len(), wrong.join("\n"));
    text.lines().count()
}

#[test]
fn every_form_of_the_library_is_as_in_kubernetes() {
    assert!(check("kubernetes-1.37.1.jsonl") > 400);
}

#[test]
fn what_once_differed_does_no_more() {
    assert!(check("disagreements.jsonl") > 0);
}
