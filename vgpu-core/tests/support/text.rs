//! Parses the output of clients, and waits for conditions.

use std::process::Output;
use std::time::{Duration, Instant};

pub(crate) fn lines(output: &Output) -> Vec<String> {
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(String::from)
        .collect()
}

/// Word `index` of a line, as a number.
pub(crate) fn number(line: &str, index: usize) -> u64 {
    let word = line
        .split(' ')
        .nth(index)
        .unwrap_or_else(|| panic!("no word {index} in {line:?}"));
    word.parse()
        .unwrap_or_else(|_| panic!("word {index} of {line:?} is no number"))
}

/// Waits until `done`, for a minute at most.
#[track_caller]
pub(crate) fn until(mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < end, "still not so after a minute");
        std::thread::sleep(Duration::from_millis(20));
    }
}
