//! Recognises our DeviceClasses by their selectors.

use vgpu_allocator::model::DeviceClass;
use vgpu_api::{DRIVER_NAME, device_type};
use vgpu_planner::State;

/// Returns true if the class selects our devices: a selector names our driver, as it must, or it would select the
/// devices of all drivers. A class that cannot be decoded is recognised by its name.
pub(crate) fn is_ours(class: &DeviceClass) -> bool {
    selects(class, DRIVER_NAME) || class.unreadable.is_some() && vgpu_api::class::is_ours(&class.metadata.name)
}

/// As [`is_ours`], for the name of a class that may not exist.
pub(crate) fn is_ours_by_name(class: &str, state: &State) -> bool {
    state
        .class(class)
        .map_or_else(|| vgpu_api::class::is_ours(class), is_ours)
}

/// The attribute `type` that the class selects.
pub(crate) fn device_type(class: &DeviceClass) -> &'static str {
    let special = [device_type::MONITOR, device_type::SLOT];
    let selected = special.into_iter().find(|value| selects(class, value));
    selected.unwrap_or(device_type::GPU)
}

/// Returns true if one of its selectors names the value.
fn selects(class: &DeviceClass, value: &str) -> bool {
    let expressions = class.spec.selectors.iter().filter_map(|selector| selector.cel.as_ref());
    let quoted = [format!("\"{value}\""), format!("'{value}'")];
    expressions
        .flat_map(|cel| quoted.iter().map(|quoted| cel.expression.contains(quoted)))
        .any(|contains| contains)
}
