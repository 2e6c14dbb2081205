//! What a DeviceClass is to us, as far as its text tells.

use vgpu_allocator::model::DeviceClass;
use vgpu_api::{DRIVER_NAME, device_type};
use vgpu_planner::State;

/// Whether the class selects our devices. Whoever derives a class from ours names the driver: a class must, or it would
/// select everybody's devices. One that cannot be read is told by its name alone.
pub(crate) fn is_ours(class: &DeviceClass) -> bool {
    selects(class, DRIVER_NAME) || class.unreadable.is_some() && vgpu_api::class::is_ours(&class.metadata.name)
}

/// The same of a class by its name, which may not exist.
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

/// Whether one of its selectors names the value.
fn selects(class: &DeviceClass, value: &str) -> bool {
    let expressions = class.spec.selectors.iter().filter_map(|selector| selector.cel.as_ref());
    let quoted = [format!("\"{value}\""), format!("'{value}'")];
    expressions
        .flat_map(|cel| quoted.iter().map(|quoted| cel.expression.contains(quoted)))
        .any(|contains| contains)
}
