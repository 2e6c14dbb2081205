//! The demo's output: numbered steps, each with a line about the result and one about its meaning.
//!
//! `V=1` also prints details: whole documents and the output of each pod.

use std::time::{Duration, Instant};

/// The environment variable that asks for details.
pub const VARIABLE: &str = "V";

/// Prints steps with their start times.
#[derive(Debug)]
pub struct Progress {
    start: Instant,
    step: u32,
    steps: u32,
    details: bool,
}

impl Progress {
    /// Starts a run of `steps` steps.
    #[must_use]
    pub fn new(steps: u32) -> Self {
        Self::resume(steps, 0, Duration::ZERO)
    }

    /// Continues a run whose first steps ran in another process.
    #[must_use]
    pub fn resume(steps: u32, step: u32, elapsed: Duration) -> Self {
        let now = Instant::now();
        Self {
            start: now.checked_sub(elapsed).unwrap_or(now),
            step,
            steps,
            details: std::env::var(VARIABLE).is_ok_and(|value| !matches!(value.as_str(), "" | "0")),
        }
    }

    /// Begins the next step.
    pub fn step(&mut self, text: &str) {
        self.step += 1;
        let seconds = self.start.elapsed().as_secs_f64();
        println!("[{:>2}/{}] {seconds:>5.1}s  {text}", self.step, self.steps);
    }

    /// Prints a result of the step.
    pub fn note(&self, text: &str) {
        for line in text.lines() {
            println!("        {line}");
        }
    }

    /// Prints why it matters.
    pub fn why(&self, text: &str) {
        println!("        why: {text}");
    }

    /// Printed only with `V=1`.
    pub fn detail(&self, text: &str) {
        if self.details {
            self.note(text);
        }
    }

    /// The number of steps so far, and the time since the start.
    #[must_use]
    pub fn so_far(&self) -> (u32, Duration) {
        (self.step, self.start.elapsed())
    }
}
