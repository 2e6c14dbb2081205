//! The decisions for one namespace.

use vgpu_api::PodRef;
use vgpu_planner::About;

use crate::Now;
use crate::notice::Notice;
use crate::plan::Write;

#[derive(Debug, Default)]
pub(crate) struct Decision {
    pub(crate) write: Option<Write>,
    /// The pods whose gates to remove, with the names and UIDs of their claims.
    pub(crate) ungate: Vec<(PodRef, Vec<(String, String)>)>,
    pub(crate) notices: Vec<(About, Notice)>,
    pub(crate) wake: Option<Now>,
    /// Something can be done only after this leader has written its epoch.
    pub(crate) takes_over: bool,
}

impl Decision {
    pub(crate) fn wake(&mut self, at: Now) {
        self.wake = Some(self.wake.map_or(at, |known| known.min(at)));
    }
}
