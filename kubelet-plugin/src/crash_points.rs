//! Names the points at which a test may stop the node as a crash would: after each change to the machine.

/// A test stopped the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stopped at crash point {0:?}")]
pub struct Stopped(pub &'static str);

/// Is called at every crash point. In production it always returns `Ok`.
pub trait CrashPoints: Send {
    /// # Errors
    /// The crash point after which the work stops.
    fn reached(&mut self, point: &'static str) -> Result<(), Stopped>;
}

/// Never stops.
pub struct NeverStop;

impl CrashPoints for NeverStop {
    fn reached(&mut self, _: &'static str) -> Result<(), Stopped> {
        Ok(())
    }
}

/// Stops after this many crash points.
pub struct StopAfter(pub usize);

impl CrashPoints for StopAfter {
    fn reached(&mut self, point: &'static str) -> Result<(), Stopped> {
        self.0 = self.0.checked_sub(1).ok_or(Stopped(point))?;
        Ok(())
    }
}
