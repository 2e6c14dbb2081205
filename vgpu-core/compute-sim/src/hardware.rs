//! Durations of the operations of the GPU and of the machine.

use crate::{MS, Ns, US};

/// Durations of the operations of hardware, driver and operating system.
#[derive(Clone, Copy, Debug)]
pub struct Hardware {
    /// The time slice of a context while other contexts have work.
    pub slice: Ns,
    /// A switch between contexts.
    pub switch: Ns,
    /// CPU time of a launch.
    pub launch: Ns,
    /// From the end of the work until a wait returns.
    pub wait: Ns,
    /// From a wake-up or the end of a sleep until the thread runs.
    pub wake: Ns,
    /// Number of operations that a context queues before a further launch blocks.
    pub depth: usize,
    /// CPU time of cuEventRecord, cuEventQuery and cuEventElapsedTime.
    pub record: Ns,
    pub query: Ns,
    pub elapsed: Ns,
    /// CPU time to read the other shares' pages.
    pub look: Ns,
    /// CPU time to wake other threads (a futex).
    pub rouse: Ns,
    /// How long a stream of the GPU stops at an event.
    pub stop: Ns,
}

impl Default for Hardware {
    fn default() -> Self {
        Self {
            slice: 2 * MS,
            switch: 100 * US,
            launch: 4 * US,
            wait: 8 * US,
            wake: 60 * US,
            depth: 1024,
            record: 1500,
            query: 500,
            elapsed: US,
            look: 800,
            rouse: 300,
            stop: 1500,
        }
    }
}
