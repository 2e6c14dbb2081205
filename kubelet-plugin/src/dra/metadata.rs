//! The metadata of a claim's devices: a file for each of its requests, which containers read at the paths of KEP-5304. Pure:
//! `claimdir` writes the files, and `edits` mounts them.
//!
//! ```text
//! <claims>/<uid>/<request>.metadata.json ─► /var/run/kubernetes.io/dra-device-attributes/...
//!     .../resourceclaims/<claim>/<request>/dra.vgpu-metadata.json
//!     .../resourceclaimtemplates/<the pod's name of the claim>/<request>/dra.vgpu-metadata.json    made from a template
//! ```
//!
//! A file belongs to a claim by its UID, because a claim that was deleted and created again has the same name. It is mounted
//! by the CDI devices of the request's shares: a second CDI file could outlive the first after a crash, so there is none.
//!
//! Failure modes:
//! - A file cannot be written: Prepare fails and names it.
//! - Names in the claim that lead out of a folder: refused here, before they become part of a path. Any user may write the
//!   annotation with the pod's name of the claim.
//! - A file that has changed is replaced by rename with its next generation: a container that runs keeps the former one.
//! - It is not known by which name pods find the claim, because its record was rebuilt or is of an older release: no file is
//!   written, mounted or removed, until the plugin has read the claim again.

use crate::dra::checkpoint::NamedBy;
use crate::dra::share::{ClaimId, Role, Share};
use crate::publish::inventory::Gpu;
use crate::publish::slice;
use crate::text::{is_dns_label, is_dns_subdomain};
use k8s_openapi::api::resource::v1::DeviceAttribute;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use vgpu_api::{DRIVER_NAME, Pools, device_type};

/// The annotation of a claim that was made from a template: the pod's name of the claim.
pub const POD_CLAIM_NAME: &str = "resource.kubernetes.io/pod-claim-name";
/// The end of the name of each file on the node.
pub const SUFFIX: &str = ".metadata.json";
const FOLDER: &str = "/var/run/kubernetes.io/dra-device-attributes";
const API_VERSION: &str = "metadata.resource.k8s.io/v1beta1";
const KIND: &str = "DeviceMetadata";
/// Kubernetes' limit for the attributes of a device.
const MAX_ATTRIBUTES: usize = 32;
const _: () = assert!(slice::ATTRIBUTES.len() + OWN.len() <= MAX_ATTRIBUTES);

/// Why a claim can have no metadata.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error(
        "metadata.annotations[{POD_CLAIM_NAME}] {0:?} is not a claim's name in a pod ([a-z0-9-], at most 63); remove the \
         annotation from the ResourceClaim; kubelet retries"
    )]
    PodClaimName(String),
    #[error("metadata.name {0:?} is not the name of a ResourceClaim ([a-z0-9.-], at most 253)")]
    ClaimName(String),
    #[error(
        "request {0:?} of status.allocation is not a request's name ([a-z0-9-], at most 63, with /subrequest); delete pod \
         and claim, so that it is allocated again"
    )]
    Request(String),
}

/// The file of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct File {
    /// The request, without a subrequest.
    pub request: String,
    /// The file's path in containers.
    pub target: String,
    document: Document,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    api_version: &'static str,
    kind: &'static str,
    metadata: Metadata,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod_claim_name: Option<String>,
    requests: [Request; 1],
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Metadata {
    name: String,
    namespace: String,
    uid: String,
    generation: i64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Request {
    /// With the subrequest, if there is one.
    name: String,
    devices: Vec<Device>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Device {
    driver: &'static str,
    pool: String,
    name: String,
    attributes: BTreeMap<String, DeviceAttribute>,
}

/// An attribute of a share, beside those of its device in the ResourceSlice.
pub(crate) struct OfShare {
    pub(crate) name: &'static str,
    /// Its meaning, for docs/devices.md.
    #[cfg_attr(not(test), expect(dead_code))]
    pub(crate) about: &'static str,
    pub(crate) value: fn(&Share) -> DeviceAttribute,
}

/// docs/devices.md is generated from this table.
pub(crate) const OWN: [OfShare; 4] = [
    OfShare {
        name: "memory",
        about: "bytes of the GPU's memory that the share has, which is its limit",
        value: |share| int(share.memory),
    },
    OfShare {
        name: "cores",
        about: "percent of the GPU's time that the share is guaranteed",
        value: |share| int(share.cores.into()),
    },
    OfShare {
        name: "hostMemory",
        about: "bytes of the node's memory that the share may use beside its own (`Oversubscribe`); 0 if none",
        value: |share| int(share.host_memory),
    },
    OfShare {
        name: "share",
        about: "the share's ID: its folder in the container is `/dev/vgpu/<share>`",
        value: |share| DeviceAttribute {
            string: Some(share.name.clone()),
            ..DeviceAttribute::default()
        },
    },
];

/// Returns the files of a claim, from its shares in the order of its results.
///
/// # Errors
/// A name that cannot be part of a path.
pub fn files(id: &ClaimId, named_by: &NamedBy, shares: &[(&Share, &Gpu)], pools: &Pools) -> Result<Vec<File>, Error> {
    let mut files: Vec<File> = Vec::new();
    for (share, gpu) in shares {
        let device = device(share, gpu, pools);
        match files.iter_mut().find(|file| file.request == share.base_request()) {
            Some(file) => file.document.requests[0].devices.push(device),
            None => files.push(file(id, named_by, share, device)?),
        }
    }
    Ok(files)
}

fn file(id: &ClaimId, named_by: &NamedBy, share: &Share, device: Device) -> Result<File, Error> {
    let request = share.base_request();
    if !share.request.split('/').all(is_dns_label) || share.request.split('/').count() > 2 {
        return Err(Error::Request(share.request.clone()));
    }
    let (folder, name) = match named_by {
        NamedBy::Claim => ("resourceclaims", &id.name),
        NamedBy::Pod(name) => ("resourceclaimtemplates", name),
    };
    match named_by {
        NamedBy::Claim if !is_dns_subdomain(name) => return Err(Error::ClaimName(name.clone())),
        NamedBy::Pod(_) if !is_dns_label(name) => return Err(Error::PodClaimName(name.clone())),
        _ => {}
    }
    Ok(File {
        request: request.to_owned(),
        target: format!("{FOLDER}/{folder}/{name}/{request}/{DRIVER_NAME}-metadata.json"),
        document: Document {
            api_version: API_VERSION,
            kind: KIND,
            metadata: Metadata {
                name: id.name.clone(),
                namespace: id.namespace.clone(),
                uid: id.uid.clone(),
                generation: 1,
            },
            pod_claim_name: match named_by {
                NamedBy::Claim => None,
                NamedBy::Pod(name) => Some(name.clone()),
            },
            requests: [Request {
                name: share.request.clone(),
                devices: vec![device],
            }],
        },
    })
}

fn device(share: &Share, gpu: &Gpu, pools: &Pools) -> Device {
    let (kind, own) = match share.role {
        Role::Share => (slice::type_of(gpu), OWN.as_slice()),
        Role::Monitor => (device_type::MONITOR, &[][..]),
    };
    let mut attributes = slice::attributes(kind, gpu);
    attributes.extend(own.iter().map(|own| (own.name.to_owned(), (own.value)(share))));
    Device {
        driver: DRIVER_NAME,
        pool: pools.of_device(&share.device),
        name: share.device.clone(),
        attributes,
    }
}

// === impl File ===

impl File {
    /// The file's name in the claim's directory.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}{SUFFIX}", self.request)
    }

    /// Returns what is to be written if `found` is in the file; None if that says the same. A damaged file is replaced by the
    /// first generation.
    #[must_use]
    pub fn replacement(&self, found: Option<&[u8]>) -> Option<Vec<u8>> {
        #[derive(Deserialize)]
        struct Found {
            metadata: Metadata,
        }
        let known = found.and_then(|bytes| serde_json::from_slice::<Found>(bytes).ok());
        match known.map(|known| known.metadata.generation) {
            Some(generation) if found == Some(&self.render(generation)) => None,
            Some(generation) => Some(self.render(generation.max(0).saturating_add(1))),
            None => Some(self.render(1)),
        }
    }

    fn render(&self, generation: i64) -> Vec<u8> {
        let mut document = self.document.clone();
        document.metadata.generation = generation;
        // Strings and integers alone, so it cannot fail.
        let mut bytes = serde_json::to_vec_pretty(&document).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }
}

/// Kubernetes' integers are signed; no amount of ours is that large.
fn int(value: u64) -> DeviceAttribute {
    DeviceAttribute {
        int: Some(i64::try_from(value).unwrap_or(i64::MAX)),
        ..DeviceAttribute::default()
    }
}

#[cfg(test)]
#[path = "metadata_tests.rs"]
mod tests;
