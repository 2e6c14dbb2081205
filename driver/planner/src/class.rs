//! Recognises our DeviceClasses by their selectors.

use vgpu_allocator::model::DeviceClass;

use crate::names::DRIVER;

/// Returns true if the class selects our devices: a selector names our driver, as it must, or it would select the
/// devices of all drivers. A class that cannot be decoded is recognised by its name.
#[must_use]
pub fn is_ours(class: &DeviceClass) -> bool {
    selects(class, DRIVER) || class.unreadable.is_some() && vgpu_api::class::is_ours(&class.metadata.name)
}

/// Returns true if one of its selectors names the value.
#[must_use]
pub fn selects(class: &DeviceClass, value: &str) -> bool {
    let expressions = class.spec.selectors.iter().filter_map(|selector| selector.cel.as_ref());
    let quoted = [format!("\"{value}\""), format!("'{value}'")];
    expressions
        .flat_map(|cel| quoted.iter().map(|quoted| cel.expression.contains(quoted)))
        .any(|contains| contains)
}
