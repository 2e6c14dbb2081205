//! A client of the driver API and of NVML, for tests: it makes the steps in its arguments, one after the other, and
//! prints a line for each. It finds the libraries like any program.
//!
//! ```text
//!  gpu-client init alloc:20GiB info wait free:0 ...
//!  gpu-client serve                               steps from stdin, a line each
//!  gpu-client calls                               any function, a call a line: calls.rs
//!  gpu-client sizes | limit | hold BYTES          a program that knows no limit: share.rs
//! ```
//!
//! Steps: `basic.rs`, `memory.rs` and `answers.rs` make one call or a few, `odd.rs` makes rare calls, and `mig.rs` those of
//! an administrator of GPUs in MIG mode; `storm.rs`, `crowd.rs` and `exchange.rs` use many threads at once; `process.rs` has what a program may do to itself and to its
//! children, `timing.rs` and `compute.rs` use GPU time. All use `client.rs` (what the client has), `alloc.rs`
//! (allocations of each kind) and `library.rs` (how it calls).
#![allow(unsafe_code)] // Calls through dlsym.

mod alloc;
mod answers;
mod basic;
mod calls;
mod client;
mod compute;
mod crowd;
mod exchange;
mod library;
mod memory;
mod mig;
mod odd;
mod process;
mod share;
mod storm;
mod timing;

mod built_from {
    include!(concat!(env!("OUT_DIR"), "/built_from.rs"));
}

use client::Client;
use std::io::Write;

type Step = fn(&mut Client, name: &str, value: &str) -> Option<String>;

/// Each function runs the steps whose names it knows, and returns None for others.
const STEPS: [Step; 11] = [
    basic::step,
    memory::step,
    answers::step,
    storm::step,
    process::step,
    crowd::step,
    odd::step,
    timing::step,
    exchange::step,
    compute::step,
    mig::step,
];

/// Does a step and prints its line: its name, its result and further output.
fn run(client: &mut Client, step: &str) {
    let (name, value) = step.split_once(':').unwrap_or((step, ""));
    let outcome = STEPS
        .iter()
        .find_map(|step| step(client, name, value))
        .unwrap_or_else(|| panic!("unknown step {name}"));
    println!("{name} {outcome}");
    std::io::stdout().flush().expect("stdout");
}

fn run_all(client: &mut Client, mut steps: std::vec::IntoIter<String>) {
    while let Some(step) = steps.next() {
        match step.as_str() {
            "serve" => std::io::stdin()
                .lines()
                .for_each(|line| run(client, &line.expect("a line"))),
            "calls" => calls::serve(client),
            "leave" => {
                let left = std::mem::replace(client, Client::new());
                return process::leave(left, move |client| run_all(client, steps));
            }
            _ => run(client, &step),
        }
    }
}

fn main() {
    storm::parent();
    let words: Vec<String> = std::env::args().skip(1).collect();
    if !share::command(&words) {
        run_all(&mut Client::new(), words.into_iter());
    }
}
