//! The demo's output: numbered steps, each with one line of what was shown and one of why it matters.
//!
//! `V=1` prints the details too: whole documents and the output of each pod.

use std::time::{Duration, Instant};

/// The environment variable that asks for details.
pub const VARIABLE: &str = "V";

/// Prints steps, each with the time that it began at.
#[derive(Debug)]
pub struct Progress {
    start: Instant,
    step: u32,
    steps: u32,
    details: bool,
}

impl Progress {
    /// Of a run that will have `steps` steps.
    #[must_use]
    pub fn new(steps: u32) -> Self {
        Self::resume(steps, 0, Duration::ZERO)
    }

    /// Continues a run whose first steps another process took.
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

    /// Something that was shown in the step.
    pub fn note(&self, text: &str) {
        for line in text.lines() {
            println!("        {line}");
        }
    }

    /// Why it matters.
    pub fn why(&self, text: &str) {
        println!("        why: {text}");
    }

    /// Printed with `V=1` only.
    pub fn detail(&self, text: &str) {
        if self.details {
            self.note(text);
        }
    }

    /// How many steps were taken, and the time since the start.
    #[must_use]
    pub fn so_far(&self) -> (u32, Duration) {
        (self.step, self.start.elapsed())
    }
}
