//! The translation itself.

use k8s_openapi::api::core::v1::Pod;

use crate::problem::Refusal;
use crate::settings::Settings;
use crate::translation::Translation;

/// Translates a pod that is being created. `None`: nothing to change, because it asks in no dialect that is read, is
/// translated already, or carries the label `hami.io/webhook: ignore`.
///
/// # Errors
/// Everything because of which the pod cannot run as it asks.
pub fn translate(pod: &Pod, settings: &Settings) -> Result<Option<Translation>, Refusal> {
    let _ = (pod, settings);
    Ok(None)
}

/// The same for an update. A pod that was not translated when it was created is left alone. One that was stays
/// translated as it was, whatever the settings are now.
///
/// # Errors
/// As [`translate`].
pub fn update(old: &Pod, new: &Pod, settings: &Settings) -> Result<Option<Translation>, Refusal> {
    let _ = (old, new, settings);
    Ok(None)
}
