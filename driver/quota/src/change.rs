//! Changes of objects, as the watches report them to the desk.

use crate::ceilings::ResourceQuota;
use crate::claim::Claim;
use crate::class::Class;
use crate::default::QuotaDefault;
use crate::gpus::Slice;
use crate::keeper::NamespaceLabels;
use crate::pod::Pod;
use crate::status::Quota;

/// One change. The end of a list names all objects there are.
#[derive(Debug, Clone)]
pub enum Change {
    Quota(Box<Quota>),
    QuotaGone {
        namespace: String,
        uid: String,
    },
    Quotas {
        uids: Vec<String>,
    },
    Claim(Claim),
    ClaimGone {
        namespace: String,
        uid: String,
    },
    Claims {
        uids: Vec<String>,
    },
    /// Also one that matters no more: without a gate, claim or extended resource.
    Pod(Pod),
    PodGone {
        namespace: String,
        uid: String,
    },
    Pods {
        uids: Vec<String>,
    },
    Class(Class),
    ClassGone {
        name: String,
    },
    Classes {
        names: Vec<String>,
    },
    Slice(Slice),
    SliceGone {
        name: String,
    },
    Slices {
        names: Vec<String>,
    },
    ResourceQuota(ResourceQuota),
    ResourceQuotaGone {
        namespace: String,
        name: String,
    },
    ResourceQuotas {
        names: Vec<(String, String)>,
    },
    Namespace(NamespaceLabels),
    NamespaceGone {
        name: String,
        uid: String,
    },
    Namespaces {
        uids: Vec<String>,
    },
    Default(QuotaDefault),
    DefaultGone {
        name: String,
    },
    Defaults {
        names: Vec<String>,
    },
}
