//! A client of the driver API and of NVML, as the tests need one: it does what its arguments say,
//! one after the other, and prints a line for each. It finds the libraries as every program does.
//!
//! ```text
//!  gpu-client init alloc:20GiB info wait free:0 ...
//!  gpu-client serve                               steps from stdin, a line each
//!  gpu-client calls                               any function, a call a line: calls.rs
//!  gpu-client sizes | limit | hold BYTES          a program that knows no limit: share.rs
//! ```
//!
//! Steps: `basic.rs` makes one call or a few, `odd.rs` calls that are seldom made; `storm.rs`, `crowd.rs` and
//! `exchange.rs` use many threads at once; `process.rs` has what a program may do to itself and to its children, `timing.rs`
//! and `compute.rs` use GPU time.
//! All stand on `client.rs` (what the client has) and `library.rs` (how it calls).
#![allow(unsafe_code)] // Calls through dlsym.

mod basic;
mod calls;
mod client;
mod compute;
mod crowd;
mod exchange;
mod library;
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

/// Does a step and prints its line: its name, its result and what else it has to say.
fn run(client: &mut Client, step: &str) {
    let (name, value) = step.split_once(':').unwrap_or((step, ""));
    let outcome = basic::step(client, name, value)
        .or_else(|| storm::step(client, name, value))
        .or_else(|| process::step(client, name, value))
        .or_else(|| crowd::step(client, name, value))
        .or_else(|| odd::step(client, name, value))
        .or_else(|| timing::step(client, name, value))
        .or_else(|| exchange::step(client, name, value))
        .or_else(|| compute::step(client, name, value))
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
