//! Compares random selectors on random devices with Kubernetes' own packages: whether they compile, their result and
//! their cost.
//!
//! `VGPU_CEL_CASES` (default 8,000) is the number of cases, `VGPU_CEL_SECONDS` (default 60) the time limit,
//! `VGPU_CEL_SEED` (default 1) the seed. A disagreement is reduced as far as possible before it is printed. Add it to
//! `testdata/disagreements.jsonl`; `VGPU_CEL_KEEP=FILE` appends each one to FILE.
//!
//! One disagreement is known and accepted: a URL can be a key of a map in Kubernetes, but not here.

#[path = "../support/device.rs"]
mod device;
mod generate;
mod kubernetes;

use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use vgpu_cel::{Device, EvalError, compile};

use generate::{Random, Templates};
use kubernetes::{Answer, Kubernetes};

fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|e| panic!("{name}={text}: {e}")),
        Err(_) => default,
    }
}

/// Our answer.
fn ours(expression: &str, device: &Device) -> Answer {
    match compile(expression) {
        Err(why) => Answer {
            compiles: false,
            result: None,
            cost: 0,
            error: why.to_string(),
            panics: false,
        },
        Ok(program) => {
            let (result, cost) = program.matches_with_cost(device);
            Answer {
                compiles: true,
                result: result.as_ref().ok().copied(),
                cost,
                error: match result {
                    Ok(_) => String::new(),
                    Err(EvalError::CostLimit) => "cost limit exceeded".to_owned(),
                    Err(why) => why.to_string(),
                },
                panics: false,
            }
        }
    }
}

/// Returns the difference between two answers, if it is relevant.
fn difference(ours: &Answer, theirs: &Answer) -> Option<&'static str> {
    if theirs.panics {
        return None;
    }
    if ours.compiles != theirs.compiles {
        return Some("one compiles");
    }
    if ours.is_over_cost() || theirs.is_over_cost() {
        // An expression near the cost limit may exceed it on one side only. Below half of the limit and above twice
        // the limit, both must agree; the cost of the side that finished decides.
        let other = if ours.is_over_cost() { theirs } else { ours };
        let agree = ours.is_over_cost() == theirs.is_over_cost() || other.cost * 2 > vgpu_cel::COST_LIMIT;
        return (!agree).then_some("one is over the cost");
    }
    if ours.result != theirs.result {
        return Some("the results differ");
    }
    let far = |a: u64, b: u64| a > 2 * b + 10;
    (far(ours.cost, theirs.cost) || far(theirs.cost, ours.cost)).then_some("the costs differ")
}

struct Cases {
    kubernetes: Kubernetes,
    devices: Vec<(Value, Device)>,
}

impl Cases {
    fn differs(&mut self, expression: &str, device: usize) -> Option<&'static str> {
        let (text, device) = &self.devices[device];
        let theirs = self.kubernetes.ask(expression, text);
        difference(&ours(expression, device), &theirs)
    }
}

/// Appends a case to a file of testdata; the device is the number of a sample.
fn keep(file: &str, expression: &str, device: usize, said: &Answer) {
    let line = json!({"expression": expression, "device": device, "compiles": said.compiles, "result": said.result,
        "cost": said.cost, "over": said.is_over_cost()});
    let mut file = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(file)
        .unwrap();
    writeln!(file, "{line}").unwrap();
}

#[test]
fn kubernetes_says_the_same() {
    let kubernetes = match Kubernetes::start() {
        Ok(kubernetes) => kubernetes,
        Err(why) => return vgpu_skip::skip("kubernetes_says_the_same", &why),
    };
    let devices = device::samples();
    let devices: Vec<_> = devices
        .into_iter()
        .map(|text| {
            let device = device::read(&text);
            (text, device)
        })
        .collect();
    let mut cases = Cases { kubernetes, devices };
    let templates = Templates::read();
    let mut random = Random::new(number("VGPU_CEL_SEED", 1));
    let end = Instant::now() + Duration::from_secs(number("VGPU_CEL_SECONDS", 60));
    // The same seed on every machine, so that a change is not blamed for a disagreement that only a new seed finds.
    // Other seeds are tried on purpose.
    let most_tried = number("VGPU_CEL_CASES", 8000);
    let (mut tried, mut compiled, mut answered, mut same_cost, mut over) = (0u64, 0u64, 0u64, 0u64, 0u64);
    let mut panics = 0u64;
    let (mut least, mut most) = (1f64, 1f64);
    let mut found = Vec::new();
    let mut first = 0;
    while Instant::now() < end && tried < most_tried && found.len() < 25 {
        let mut expression = templates.around(first, &mut random);
        first += 1;
        let which = random.below(cases.devices.len());
        let text = expression.to_string();
        if text.len() > vgpu_cel::LONGEST_EXPRESSION {
            continue;
        }
        let theirs = cases.kubernetes.ask(&text, &cases.devices[which].0);
        let mine = ours(&text, &cases.devices[which].1);
        tried += 1;
        if let Ok(file) = std::env::var("VGPU_CEL_RECORD")
            && first <= templates.len()
        {
            keep(&file, &text, which, &theirs);
        }
        compiled += u64::from(theirs.compiles);
        answered += u64::from(theirs.result.is_some());
        over += u64::from(theirs.is_over_cost());
        panics += u64::from(theirs.panics);
        if theirs.compiles && mine.compiles {
            same_cost += u64::from(mine.cost == theirs.cost);
            if std::env::var_os("VGPU_CEL_COSTS").is_some() && mine.cost != theirs.cost {
                eprintln!(
                    "cost {} ours, {} theirs: {text} ({:?})",
                    mine.cost, theirs.cost, theirs.result
                );
            }
            if theirs.cost > 20 && !theirs.is_over_cost() {
                let ratio = mine.cost as f64 / theirs.cost as f64;
                (least, most) = (least.min(ratio), most.max(ratio));
            }
        }
        if difference(&mine, &theirs).is_none() {
            continue;
        }
        // Reduce it while the answers still differ.
        let until = Instant::now() + Duration::from_secs(5);
        'smaller: while Instant::now() < until {
            for smaller in expression.smaller(&templates) {
                let text = smaller.to_string();
                if text.len() < expression.to_string().len() && cases.differs(&text, which).is_some() {
                    expression = smaller;
                    continue 'smaller;
                }
            }
            break;
        }
        let text = expression.to_string();
        let theirs = cases.kubernetes.ask(&text, &cases.devices[which].0);
        let mine = ours(&text, &cases.devices[which].1);
        if let Ok(file) = std::env::var("VGPU_CEL_KEEP") {
            keep(&file, &text, which, &theirs);
        }
        found.push(format!(
            "{text}\n    on device {which}\n    ours   {mine:?}\n    theirs {theirs:?}"
        ));
        found.dedup();
    }
    eprintln!(
        "{tried} selectors over {} forms: {compiled} compile, {answered} have an answer, {over} over the cost, \
         {panics} make Kubernetes panic; \
         {same_cost} cost exactly the same, the others between {least:.2} and {most:.2} times as much",
        templates.len()
    );
    assert!(tried > 0 && compiled > tried / 4, "the generator has gone wrong");
    assert!(found.is_empty(), "{} disagreements:\n{}", found.len(), found.join("\n"));
}
