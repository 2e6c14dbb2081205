//! A share that a pod waits for, without a place.

/// One share.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Demand {
    /// Bytes; `None`: all of a GPU.
    pub(crate) memory: Option<u64>,
    /// Percent of a GPU's time.
    pub(crate) cores: u64,
    /// The value of the attribute `type` of its devices; `None`: any of ours.
    pub(crate) kind: Option<String>,
}
