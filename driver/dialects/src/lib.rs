//! Converts pods written for other GPU sharing systems into pods with our claims.
//!
//! ```text
//!  Pod ──► translate ──► Translation { pod, patch, templates: [name, Request], warnings }, or a Refusal
//!                            │ each container that asks: one of hami, koordinator, volcano, volcano_vgpu,
//!                            │ gpu_manager, kai (with kai_container) reads what it asks into a Request
//!  Request, Inventory ──► template ──► ResourceClaimTemplateSpec
//!  bound pod, its Record ──► legacy_view ──► annotations
//!  allocated claim ──► environment ──► variables
//! ```
//!
//! The webhook, the controller and `vgpu translate` share these functions. None does I/O, depends on `kube`, or can
//! panic on input: tenants write the pods.
//!
//! **Admission is a function of the pod alone.** A translated pod names a template by the hash of a [`Request`], and
//! its annotation `dra.vgpu/translated` keeps what was asked and the requests, from which the controller makes the
//! templates ([`recorded`]). A translation of a translated pod changes nothing.
//!
//! Refusals and warnings name the field's path and its value, and say what to do.

#![forbid(unsafe_code)]

mod applied;
mod gpu_manager;
mod hami;
mod instance;
mod instead;
mod inventory;
mod kai;
mod kai_container;
mod keys;
mod koordinator;
mod legacy_view;
mod literal;
mod names;
mod owners;
mod patch;
mod plan;
mod pod;
mod problem;
mod profile;
mod record;
mod request;
mod resources;
mod selector;
mod settings;
mod template;
mod translate;
mod translation;
mod unsupported;
mod volcano;
mod volcano_vgpu;

pub use k8s_openapi::api::core::v1::Pod;
pub use k8s_openapi::api::resource::v1::ResourceSlice;
pub use legacy_view::{
    Bound, Environment, GpuShare, LEGACY_VIEW_ANNOTATIONS, LEGACY_VIEW_LABEL, LEGACY_VIEW_PREFIX, LegacyView,
    environment, legacy_view,
};

pub use inventory::{Gpu, Inventory};
pub use keys::{
    asking_annotations, asking_resources, asks_by_annotation, asks_by_resource, is_resource, resource_names,
};
pub use names::{ResourceNames, ResourceNamesError};
pub use plan::OTHER_CLAIMS;
pub use problem::{Problem, Refusal, Warning};
pub use profile::Instance;
pub use record::{Asked, CLAIM_PREFIX, Record, TRANSLATED, recorded};
pub use request::{COUNT_MAX, Devices, LIST_MAX, MILLION, Memory, NAME_PREFIX, Request};
pub use settings::Settings;
pub use template::{ALTERNATIVES_MAX, REQUEST_NAME, template};
pub use translate::{translate, update};
pub use translation::{NamedRequest, Translation};
pub use unsupported::{unread, without_profile};
pub use vgpu_api::config::Dialect;
