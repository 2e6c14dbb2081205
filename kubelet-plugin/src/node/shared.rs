//! The node's state, shared by what looks at it: one turn at a time, none of which waits.

use super::Node;
use std::sync::{Arc, Mutex, MutexGuard};

/// The node's state, shared by everything that looks at it.
#[derive(Clone)]
pub struct SharedNode(Arc<Mutex<Node>>);

impl SharedNode {
    #[must_use]
    pub fn new(node: Node) -> Self {
        Self(Arc::new(Mutex::new(node)))
    }

    /// The state machine, for one turn without waiting.
    pub fn lock(&self) -> MutexGuard<'_, Node> {
        match self.0.lock() {
            Ok(node) => node,
            Err(poisoned) => {
                // A turn ended in a panic; what is on disk is the truth.
                self.0.clear_poison();
                let mut node = poisoned.into_inner();
                node.forget();
                node
            }
        }
    }
}
