//! A ResourceClaim as the API server writes it, as far as counting needs it.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;

#[derive(Deserialize)]
pub(super) struct Claim {
    pub(super) metadata: Meta,
    #[serde(default)]
    pub(super) spec: Spec,
    #[serde(default)]
    pub(super) status: Status,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Meta {
    #[serde(default)]
    pub(super) name: String,
    #[serde(default)]
    pub(super) namespace: String,
    #[serde(default)]
    pub(super) uid: String,
    #[serde(default)]
    pub(super) annotations: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) owner_references: Vec<Owner>,
}

#[derive(Deserialize)]
pub(super) struct Owner {
    #[serde(default)]
    pub(super) kind: String,
    #[serde(default)]
    pub(super) uid: String,
}

#[derive(Default, Deserialize)]
pub(super) struct Spec {
    #[serde(default)]
    pub(super) devices: Devices,
}

#[derive(Default, Deserialize)]
pub(super) struct Devices {
    pub(super) requests: Option<Vec<Request>>,
    pub(super) constraints: Option<Vec<IgnoredAny>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Request {
    pub(super) exactly: Option<Ask>,
    pub(super) first_available: Option<Vec<Ask>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Ask {
    #[serde(default)]
    pub(super) device_class_name: String,
    pub(super) allocation_mode: Option<String>,
    pub(super) count: Option<i64>,
    pub(super) admin_access: Option<bool>,
    pub(super) capacity: Option<Capacity>,
    pub(super) selectors: Option<Vec<IgnoredAny>>,
}

#[derive(Deserialize)]
pub(super) struct Capacity {
    pub(super) requests: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
pub(super) struct Status {
    pub(super) allocation: Option<Allocation>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Allocation {
    #[serde(default)]
    pub(super) devices: Results,
    pub(super) allocation_timestamp: Option<String>,
}

#[derive(Default, Deserialize)]
pub(super) struct Results {
    pub(super) results: Option<Vec<DeviceResult>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DeviceResult {
    #[serde(default)]
    pub(super) driver: String,
    #[serde(default)]
    pub(super) pool: String,
    #[serde(default)]
    pub(super) device: String,
    pub(super) admin_access: Option<bool>,
    pub(super) consumed_capacity: Option<BTreeMap<String, String>>,
}
