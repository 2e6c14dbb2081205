//! Decides for each promise to a share if it holds. Pure: values in, verdicts out.

pub(super) mod compute;
pub(super) mod finding;
pub(super) mod memory;
pub(super) mod mounts;
pub(super) mod refusals;
pub(super) mod second_wall;
pub(super) mod settled;
