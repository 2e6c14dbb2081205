//! The objects that a plan is made from, as far as it looks at them. Each reads itself from the API server's JSON; what
//! is derived (a pod's requests) is derived there, once.

mod claim;
mod container;
mod labels;
mod meta;
mod node;
mod pod;
mod requests;
mod slice;

pub use claim::{Claim, Consumer};
pub use container::{Extended, HostPort};
pub use labels::LabelSelector;
pub use meta::{Meta, Version, VersionError};
pub use node::Node;
pub use pod::{Pod, PodClaim, PodTerm, Spread};
pub use requests::Requests;
pub use slice::Slice;
