//! The account stays correct whatever a program does to itself and its children: nothing hangs, living processes keep
//! their memory, and memory of dead processes is released by the next process that needs memory or reads the figures.
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
