//! What the leader does for translated pods: keeps the templates that they name, and gives the pods back what their
//! dialect promises. Pure: it gets changes and the time, and returns intended writes.
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
//! - **A crash between two writes, a restart:** each write stands alone. A template that was deleted to be made again is
//!   missing, and the next leader makes it. The hour after which an unused template goes begins again with a restart.
//! - **Two leaders:** both create the same object; the second gets 409. A deletion has the uid and version of the template
//!   that was decided on, so it never hits a template that another leader made since. If it hits a template that a pod just
//!   began to need, the watch shows the gap and the template is made again. Annotations are the same from both.
//! - **A template deleted by hand:** made again while a pod needs it. Claims that were made from it are not touched.
//! - **A template with a finalizer of somebody's:** stays until that goes; a rebuilt one waits for it.
//! - **Somebody else's template under the name:** has no label of ours (a policy of the chart keeps the label to the
//!   controller), so it is never seen, changed or deleted; creating ours fails, and the pod gets an event.
//! - **A forged annotation:** it is read by the rules of `vgpu_dialects::Record`. Beyond that, only what the pod's own
//!   `spec.resourceClaims` names is made, at most one template for each claim that Kubernetes makes anyway; only in a
//!   namespace that opted in; and only of classes that a translation gives. So whoever may create pods gets by it what
//!   they get by a dialect, and nothing else.
//! - **GPUs come and go:** a part of a GPU in percent is made again when there are other sizes of memory. A template's spec
//!   is immutable, so it is deleted and created again: a claim that falls into the gap is made a moment later, because
//!   kube-controller-manager watches templates. If the creation is refused then, the pods that need it get an event. Claims
//!   that were made before keep what they have. A part that no pod needs is deleted then, unless its pod was gone before
//!   this process started: a claim may still be made from it. A GPU that is gone is kept for ten more minutes, because a
//!   restart of kubelet removes all slices of its node for a moment; while no GPU fits, an old template stays.
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
