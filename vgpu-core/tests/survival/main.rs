//! The account stays right whatever a program does to itself and its children: nothing hangs, the living keep their
//! memory, and the memory of the dead is free for the next process that needs it or reads the figures.
//!
//! ```text
//! forks.rs      fork, clone, exec: children, orphans, sleepers
//! threads.rs    threads that start, end and are cancelled; the last lane
//! resources.rs  without the library, descriptors, address space, system calls
//! deaths.rs     stopped, without a first thread, with a reused PID; the release of dead processes' memory
//! ```

mod deaths;
mod forks;
mod resources;
#[path = "../support/mod.rs"]
mod support;
mod threads;
