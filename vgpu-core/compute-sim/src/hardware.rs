//! How long operations of the GPU and of the machine take.

use crate::{MS, Ns, US};

/// The time of each operation of the hardware, the driver and the operating system.
#[derive(Clone, Copy, Debug)]
pub struct Hardware {
    /// How long a context runs while others have work.
    pub slice: Ns,
    /// The change from one context to another.
    pub switch: Ns,
    /// The CPU's time for a launch.
    pub launch: Ns,
    /// From the end of the work to the return of a wait.
    pub wait: Ns,
    /// From a wake-up, or the end of a sleep, to the thread that runs.
    pub wake: Ns,
    /// Work that a context queues before a further launch blocks.
    pub depth: usize,
    /// The CPU's time for cuEventRecord, cuEventQuery and cuEventElapsedTime.
    pub record: Ns,
    pub query: Ns,
    pub elapsed: Ns,
    /// The CPU's time for a look at the other shares' pages.
    pub look: Ns,
    /// The CPU's time for the wake-up of others (a futex).
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
