//! What a program may do to itself and to its children, and the account stays whole: nothing hangs, the
//! living keep what they hold, and what the dead held is there for the next who needs it or looks.
//!
//! ```text
//! forks.rs      fork, clone, exec: children, orphans, sleepers
//! threads.rs    threads that come, go and are cancelled; the last lane
//! resources.rs  without the library, descriptors, address space, system calls
//! deaths.rs     stopped, without a first thread, with another's PID; who gives back
//! ```

mod deaths;
mod forks;
mod resources;
#[path = "../support/mod.rs"]
mod support;
mod threads;
