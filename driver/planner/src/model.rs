//! The API objects as the planner needs them, each decoded from the API server's JSON. Derived values (a pod's
//! requests) are computed once, while decoding.

mod claim;
mod container;
mod labels;
mod meta;
mod node;
mod pod;
mod requests;
mod slice;
mod taken;

pub use claim::{Claim, Consumer, Unreadable};
pub use container::{Extended, HostPort};
pub use labels::LabelSelector;
pub use meta::{Meta, Version, VersionError};
pub use node::Node;
pub use pod::{Pod, PodClaim, PodTerm, Spread, UnnamedClaim, Unusual};
pub use requests::Requests;
pub use slice::Slice;
