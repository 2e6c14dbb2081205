//! Where a test may stop the node's work, as a crash would: after each change to the machine.

/// The work was stopped by a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stopped after step {0:?}")]
pub struct Stopped(pub &'static str);

/// Told of every step; production lets all of them pass.
pub trait Steps: Send {
    /// # Errors
    /// The step after which to stop.
    fn reached(&mut self, step: &'static str) -> Result<(), Stopped>;
}

/// Stops nowhere.
pub struct Always;

impl Steps for Always {
    fn reached(&mut self, _: &'static str) -> Result<(), Stopped> {
        Ok(())
    }
}

/// Stops after a number of steps.
pub struct StopAfter(pub usize);

impl Steps for StopAfter {
    fn reached(&mut self, step: &'static str) -> Result<(), Stopped> {
        self.0 = self.0.checked_sub(1).ok_or(Stopped(step))?;
        Ok(())
    }
}
