//! The contexts of this process.

/// The contexts of one GPU.
#[derive(Debug, Default)]
pub struct Contexts {
    pub retains: u32,
    pub created: u32,
    /// Handle of the primary context; 0: not retained yet.
    pub primary: usize,
}

impl Contexts {
    pub fn any(&self) -> bool {
        self.retains > 0 || self.created > 0
    }
}

/// A context that is not the primary one.
#[derive(Debug)]
pub struct Made {
    pub gpu: usize,
    /// How often cuCtxAttach was called for it, less cuCtxDetach.
    pub attached: u32,
    pub is_green: bool,
}
