//! Builds objects for the tests below.

mod answers;
mod input;
mod objects;
mod policies;
mod reasons;

use serde_json::{Value, json};

use super::*;
use objects::{claim, class, gpu, held, memory, node, objects, slice};

fn allocate(objects: &Objects, options: &Options) -> Result<Report, OfflineError> {
    let mut count = 0;
    run(objects, options, &mut SelectorCache::default(), &mut || {
        count += 1;
        format!("share-{count}")
    })
}

fn report(all: impl IntoIterator<Item = Value>) -> Report {
    allocate(&objects(all), &Options::default()).unwrap()
}

fn with_policy(all: impl IntoIterator<Item = Value>, policy: AllocationPolicy) -> Vec<String> {
    let options = Options {
        policy,
        ..Options::default()
    };
    devices(&allocate(&objects(all), &options).unwrap())
}

/// `pool/device` of every result.
fn devices(report: &Report) -> Vec<String> {
    let list = report.document();
    let items = list["items"].as_array().unwrap().clone();
    let results = items.iter().flat_map(|item| {
        let results = item["status"]["allocation"]["devices"]["results"].as_array();
        results.cloned().unwrap_or_default()
    });
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    results
        .map(|result| format!("{}/{}", text(&result["pool"]), text(&result["device"])))
        .collect()
}

fn kinds(report: &Report) -> Vec<(ReasonKind, &str)> {
    assert!(!report.fits());
    let reasons = report.reasons().iter();
    reasons.map(|reason| (reason.reason, reason.device.as_str())).collect()
}
