//! What a person sees: numbered steps, the seconds since the start, and what was shown.

use std::time::Instant;

/// Prints steps, each with the time that it began at.
#[derive(Debug)]
pub struct Progress {
    start: Instant,
    step: u32,
    steps: u32,
}

impl Progress {
    /// Of a run that will have `steps` steps.
    #[must_use]
    pub fn new(steps: u32) -> Self {
        Self {
            start: Instant::now(),
            step: 0,
            steps,
        }
    }

    /// Continues a run whose first steps another process took.
    #[must_use]
    pub fn resume(steps: u32, step: u32, elapsed: std::time::Duration) -> Self {
        let now = Instant::now();
        Self {
            start: now.checked_sub(elapsed).unwrap_or(now),
            step,
            steps,
        }
    }

    /// The next step: what is done, and why.
    pub fn step(&mut self, text: &str) {
        self.step += 1;
        println!(
            "\n[{}/{}] {:>5.1}s  {text}",
            self.step,
            self.steps,
            self.start.elapsed().as_secs_f64()
        );
    }

    /// Something that was shown inside the step.
    pub fn note(&self, text: &str) {
        for line in text.lines() {
            println!("                {line}");
        }
    }

    /// How many steps were taken, and the time since the start.
    #[must_use]
    pub fn so_far(&self) -> (u32, std::time::Duration) {
        (self.step, self.start.elapsed())
    }
}
