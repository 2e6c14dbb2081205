//! Compares our answers for random clusters and claims with those of Kubernetes' own allocator, which is built from its
//! Go module.
//!
//! A disagreement is made as small as possible and printed; put it under `testdata/differential`, where
//! `kept_cases_agree` checks it from then on. `VGPU_DIFFERENTIAL_SECONDS` sets how long it runs,
//! `VGPU_DIFFERENTIAL_SEED` the seed.

mod common;
#[path = "common/go.rs"]
mod go;
#[path = "common/random.rs"]
mod random;
#[path = "common/shrink.rs"]
mod shrink;

use std::time::{Duration, Instant};

use common::{Case, normalised};
use go::{Answer, Kubernetes};
use serde_json::Value;
use vgpu_allocator::SelectorCache;
use vgpu_api::config::AllocationPolicy;

const CASES: u64 = 6_000;
const SECONDS: u64 = 30;

#[test]
fn random_cases_agree_with_kubernetes() {
    let mut kubernetes = match Kubernetes::start() {
        Ok(kubernetes) => kubernetes,
        Err(reason) => return vgpu_skip::skip("random_cases_agree_with_kubernetes", &reason),
    };
    let longer = number("VGPU_DIFFERENTIAL_SECONDS");
    let limit = Duration::from_secs(longer.unwrap_or(SECONDS));
    let first = number("VGPU_DIFFERENTIAL_SEED").unwrap_or(1);
    let begin = Instant::now();
    let mut theirs = Duration::ZERO;
    let mut cache = SelectorCache::default();
    let (mut cases, mut fit, mut divided, mut errors, mut timeouts) = (0, 0, 0, 0, 0);
    while begin.elapsed() < limit && (longer.is_some() || cases < CASES) {
        let case = random::case(&mut random::Random::new(first + cases));
        let other = AllocationPolicy::ALL[cases as usize % AllocationPolicy::ALL.len()];
        let asked = Instant::now();
        let answer = kubernetes.ask(&case);
        theirs += asked.elapsed();
        cases += 1;
        match &answer {
            Answer { timeout: true, .. } => timeouts += 1,
            Answer { error: Some(_), .. } => errors += 1,
            Answer {
                results: Some(results), ..
            } => {
                fit += 1;
                divided += u64::from(results.to_string().contains("\"board-"));
            }
            _ => {}
        }
        if disagreement(&case, &answer, other, &mut cache).is_some() {
            let small = shrink::shrink(case, |case| {
                serde_json::from_value::<Case>(case.clone()).is_ok()
                    && disagreement(case, &kubernetes.ask(case), other, &mut cache).is_some()
            });
            let answer = kubernetes.ask(&small);
            panic!(
                "seed {}: {}\n{}",
                first + cases - 1,
                disagreement(&small, &answer, other, &mut cache).unwrap_or_default(),
                serde_json::to_string_pretty(&small).unwrap()
            );
        }
    }
    println!(
        "differential: {cases} cases agree: {fit} fit, {divided} of them on instances, {errors} end in an error, {timeouts} had no answer in time; {theirs:?} of {:?} were theirs",
        begin.elapsed()
    );
    assert!(
        fit * 5 > cases && divided * 50 > cases && errors * 2 < cases,
        "the cases say too little: {fit} of {cases} fit, {divided} on instances, {errors} errors"
    );
}

/// Cases that once disagreed, with Kubernetes' answers.
#[test]
fn kept_cases_agree() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/differential");
    let mut cache = SelectorCache::default();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let case: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let answer = serde_json::from_value(case["answer"].clone()).unwrap();
        for other in AllocationPolicy::ALL {
            assert_eq!(
                disagreement(&case, &answer, other, &mut cache),
                None,
                "{}",
                path.display()
            );
        }
    }
}

/// Returns our answer if it differs from Kubernetes'.
fn disagreement(
    case: &Value,
    answer: &Answer,
    other: AllocationPolicy,
    cache: &mut SelectorCache<'_>,
) -> Option<String> {
    if answer.timeout {
        return None;
    }
    let Ok(read) = serde_json::from_value::<Case>(case.clone()) else {
        return Some("the case cannot be read".to_owned());
    };
    let ours = read.allocate(AllocationPolicy::FirstFit, cache);
    let theirs = answer
        .results
        .clone()
        .map(|results| normalised(serde_json::from_value(results).unwrap(), &read.claims));
    let agree = match (&ours, &theirs, &answer.error) {
        (Err(_), None, Some(_)) | (Ok(None), None, None) => true,
        (Ok(Some(ours)), Some(theirs), None) => normalised(ours.clone(), &read.claims) == *theirs,
        (Ok(Some(ours)), None, None) => ours.is_empty(), // no claims
        _ => false,
    };
    if !agree {
        return Some(format!("ours {ours:?}\ntheirs {answer:?}"));
    }
    // Other policies choose other devices, but the same claims fit. They may hit errors that this policy does not
    // reach.
    let same = match (&ours, &read.allocate(other, cache)) {
        (Ok(ours), Ok(other)) => ours.is_some() == other.is_some(),
        _ => true,
    };
    (!same).then(|| format!("{} disagrees with first-fit: {ours:?}", other.name()))
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok().filter(|text| !text.is_empty())?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable}={text:?} is not a number")),
    )
}
