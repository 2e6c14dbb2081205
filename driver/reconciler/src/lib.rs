//! What the leader does for translated pods: it maintains the templates that they name, and writes the annotations that
//! their dialect promises. Pure: it gets changes and the time, and returns intended writes.
//!
//! ```text
//!  pods with dra.vgpu/translated ─┐
//!  templates with our label ──────┼─► Reconciler ─► Plan: create, delete, give back; notices for pods
//!  ResourceSlices ─► Gpus ────────┤       ▲                 │
//!  namespaces that opted in ──────┘       └──── Outcome ◄───┘
//!  a bound pod, its claims, Gpus ─► legacy_patch ─► a patch of annotations
//! ```
//!
//! A template is a function of a request in a pod's annotation and of the GPUs there are, and its name is the hash of
//! that request. So the objects themselves are the only state, and every leader makes the same templates.
//!
//! Failure modes:
//! - **A crash between two writes, a restart:** each write is independent. A template that was deleted to be rebuilt is
//!   missing, and the next leader makes it. The hour after which an unused template is deleted begins again with a
//!   restart.
//! - **Two leaders:** both create the same object; the second gets 409. A deletion names the UID and version of the
//!   template that was decided on, so it never deletes a template that another leader made since. If it deletes a
//!   template that a pod has just begun to need, the watch shows that it is missing and it is made again. Both leaders
//!   write the same annotations.
//! - **A template deleted by hand:** made again while a pod needs it. Claims that were made from it are not touched.
//! - **A template with somebody else's finalizer:** stays until the finalizer is removed; a rebuilt one waits for that.
//! - **Somebody else's template with the same name:** it lacks our label (one of the chart's policies reserves the
//!   label for the controller), so it is never seen, changed or deleted; creating ours fails, and the pod gets an
//!   event.
//! - **A forged annotation:** it is read by the rules of `vgpu_dialects::Record`. In addition, templates are only made
//!   for the pod's own `spec.resourceClaims`, at most one for each claim that Kubernetes makes anyway, only in a
//!   namespace that opted in, and only for classes that a translation uses. So a forged annotation gives whoever may
//!   create pods nothing that they could not get through a dialect.
//! - **GPUs come and go:** a part of a GPU in percent is rebuilt when the memory sizes change. A template's spec is
//!   immutable, so it is deleted and created again: a claim that is due in between is made a moment later, because
//!   kube-controller-manager watches templates. If the creation is then refused, the pods that need it get an event.
//!   Existing claims stay as they are. Such a template that no pod needs is then deleted, unless its pod was gone
//!   before this process started: a claim may still be made from it. A missing GPU is remembered for ten more minutes,
//!   because a restart of kubelet briefly removes all slices of its node; while no GPU fits, an old template stays.
//! - **The API server refuses a write:** tried again with growing pauses, with an event on the pods that wait for it.

#![forbid(unsafe_code)]

mod backoff;
mod bound;
mod gpus;
mod notice;
mod plan;
mod pod;
mod reconciler;
mod template;

pub use bound::{LEGACY_VIEW, NotYet, claim_names, legacy_patch};
pub use gpus::Gpus;
pub use notice::Notice;
pub use plan::{Change, Outcome, Plan, Task, Write};
pub use pod::TranslatedPod;
pub use reconciler::{KEEP, Reconciler, Settings};
pub use template::{Key, LABEL, SPEC_HASH, Template};

/// Time since the start of the process.
pub type Now = std::time::Duration;
