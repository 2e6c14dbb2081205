//! The contexts of this process.

/// The contexts of one GPU.
#[derive(Debug, Default)]
pub(crate) struct Contexts {
    pub(crate) retains: u32,
    pub(crate) created: u32,
    /// Handle of the primary context; 0: not retained yet.
    pub(crate) primary: usize,
}

impl Contexts {
    pub(crate) fn any(&self) -> bool {
        self.retains > 0 || self.created > 0
    }
}

/// A context that is not the primary one.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) gpu: usize,
    /// How often cuCtxAttach was called for it, less cuCtxDetach.
    pub(crate) attached: u32,
    pub(crate) is_green: bool,
}
