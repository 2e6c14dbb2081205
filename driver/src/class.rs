//! Recognises our DeviceClasses by their selectors.

use vgpu_allocator::model::DeviceClass;
use vgpu_api::device_type;
use vgpu_planner::State;
pub(crate) use vgpu_planner::is_ours;

/// As [`is_ours`], for the name of a class that may not exist.
pub(crate) fn is_ours_by_name(class: &str, state: &State) -> bool {
    state
        .class(class)
        .map_or_else(|| vgpu_api::class::is_ours(class), is_ours)
}

/// The attribute `type` that the class selects.
pub(crate) fn device_type(class: &DeviceClass) -> &'static str {
    let special = [device_type::MONITOR, device_type::SLOT];
    let selected = special.into_iter().find(|value| vgpu_planner::selects(class, value));
    selected.unwrap_or(device_type::GPU)
}
