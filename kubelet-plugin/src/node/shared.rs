//! Shares the node's state between tasks, behind a mutex that is never held across an await.

use super::Node;
use std::sync::{Arc, Mutex, MutexGuard};

/// The node's state, shared between tasks.
#[derive(Clone)]
pub struct SharedNode(Arc<Mutex<Node>>);

impl SharedNode {
    #[must_use]
    pub fn new(node: Node) -> Self {
        Self(Arc::new(Mutex::new(node)))
    }

    /// Locks the state machine for one turn. The holder must not wait while it has the lock.
    pub fn lock(&self) -> MutexGuard<'_, Node> {
        match self.0.lock() {
            Ok(node) => node,
            Err(poisoned) => {
                // A turn panicked: only the files on disk are reliable.
                self.0.clear_poison();
                let mut node = poisoned.into_inner();
                node.forget();
                node
            }
        }
    }
}
