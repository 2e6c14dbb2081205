//! The GPUs of a cluster, as far as templates depend on them.

/// One published GPU.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Gpu {
    pub uuid: String,
    /// Attribute `productName`.
    pub model: String,
    /// Capacity `memory`, in bytes.
    pub memory: u64,
}

/// Every published GPU of our driver.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventory {
    pub gpus: Vec<Gpu>,
}
