//! Gives memory back to the node. By itself, malloc gives back only free memory at the end of its heap, and after a burst
//! of calls it keeps some MiB between blocks in use.
#![allow(unsafe_code)] // One call of libc.

use std::time::Duration;

const EVERY: Duration = Duration::from_secs(30);

/// Gives memory back until the plugin ends.
pub(crate) async fn keep_small() {
    loop {
        tokio::time::sleep(EVERY).await;
        // SAFETY: it takes a number, and locks the heap for itself.
        unsafe { libc::malloc_trim(0) };
    }
}
