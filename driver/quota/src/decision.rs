//! The decisions for one namespace.

use crate::notice::{Notice, Subject};
use crate::plan::{PodRef, Write};
use crate::time::Now;

#[derive(Debug, Default)]
pub(crate) struct Decision {
    pub(crate) write: Option<Write>,
    /// With the names and UIDs of their claims.
    pub(crate) ungate: Vec<(PodRef, Vec<(String, String)>)>,
    pub(crate) notices: Vec<(Subject, Notice)>,
    pub(crate) wake: Option<Now>,
    /// Something can be done only after this leader has written its epoch.
    pub(crate) takes_over: bool,
}

impl Decision {
    pub(crate) fn wake(&mut self, at: Now) {
        self.wake = Some(self.wake.map_or(at, |known| known.min(at)));
    }
}
