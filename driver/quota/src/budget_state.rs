//! The values of the label of a namespace with a quota.
//!
//! Policies decide by this label alone and not by the quota: an API server that has just started knows the labels of all
//! namespaces before it answers, and needs up to half a minute until it knows a kind of ours.

/// The value of the label `dra.vgpu/quota`. Pods with a GPU get the gate for every value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BudgetState {
    InBudget,
    /// The hours are spent, and `whenSpent` is Yield: new pods get the low priority.
    OverBudget,
    /// No gate opens: the hours are spent and `whenSpent` is Hold, or the quota is refused.
    Held,
}

impl BudgetState {
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::InBudget => "InBudget",
            Self::OverBudget => "OverBudget",
            Self::Held => "Held",
        }
    }
}
