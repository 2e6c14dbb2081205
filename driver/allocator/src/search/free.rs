//! Computes the free part of a device, for policies.

use super::state::Search;
use crate::capacity::MEMORY;
use crate::headroom;
use crate::model::{Capacity, Device};
use crate::policy::Stock;
use crate::pools::Candidate;
use vgpu_quantity::Quantity;

impl<'a> Search<'a, '_, '_> {
    /// Returns the largest amount of a capacity that the device could give to one more request, if any, and the
    /// capacity's name on this device.
    pub(crate) fn room(&self, index: usize, name: &str) -> Option<(&'a str, Quantity)> {
        let candidate = &self.view.candidates[index];
        let (name, capacity) = capacity_of(candidate.device(), candidate.driver(), name)?;
        let most = headroom::largest(
            capacity,
            &self.left(index, name, capacity),
            self.features.fractional_range,
        )?;
        Some((name, most))
    }

    fn left(&self, index: usize, name: &str, capacity: &Capacity) -> Quantity {
        let mut left = capacity.value.clone();
        let used = self.usage[index].map(crate::allocated::Usage::consumed);
        for used in used.into_iter().chain([self.in_flight[index].consumed()]) {
            if let Some(used) = used.get(name) {
                left.subtract(used);
            }
        }
        left
    }
}

impl<'a> Stock<'a> for Search<'a, '_, '_> {
    fn candidates(&self) -> &'a [Candidate] {
        &self.view.candidates
    }

    fn free(&self, index: usize, name: &str) -> i128 {
        let candidate = &self.view.candidates[index];
        let dedicated = self.usage[index].is_some_and(crate::allocated::Usage::is_dedicated);
        if dedicated || !self.marked[index].is_empty() {
            return 0;
        }
        let capacity = capacity_of(candidate.device(), candidate.driver(), name);
        capacity.map_or(0, |(name, capacity)| self.left(index, name, capacity).rank())
    }

    fn has_room(&self, index: usize) -> bool {
        let device = self.view.candidates[index].device();
        self.is_unused(index) || self.is_multiple(device) && self.free(index, MEMORY) > 0
    }

    fn is_unused(&self, index: usize) -> bool {
        self.usage[index].is_none() && self.marked[index].is_empty() && self.in_flight[index].is_none()
    }
}

/// A device's capacity by name, and the name that the device uses for it.
pub(crate) fn capacity_of<'a>(device: &'a Device, driver: &str, name: &str) -> Option<(&'a str, &'a Capacity)> {
    let found = device.capacity.find_index(name).ok();
    let entry = found.and_then(|at| device.capacity.get_indexed(at)).or_else(|| {
        let mut all = device.capacity.iter();
        all.find(|(key, _)| key.split_once('/') == Some((driver, name)))
    });
    entry.map(|(key, capacity)| (&**key, capacity))
}
