//! A container that starts, and what is done with the limits of its cgroups.

use std::path::{Path, PathBuf};

use crate::{
    apply::{self, Driver},
    arguments::Node,
    claim::Share,
    clock::Clock,
    error::Reason,
    hierarchy::{Hierarchy, Leaf},
    records::{Limit, Records},
};

pub(crate) struct Start<'a> {
    pub(crate) hierarchy: &'a Hierarchy,
    pub(crate) leaf: Leaf,
    /// The container's ID.
    pub(crate) id: &'a str,
    /// The folder of records.
    pub(crate) records: &'a Path,
    pub(crate) clock: &'a Clock,
}

impl Start<'_> {
    /// Limits the container to the shares of its claims, and its pod to what was started in it. `is_required`: otherwise a pod
    /// without this container's share in its limit has none afterwards.
    pub(crate) fn set(&self, shares: &[Share], node: &Node, is_required: bool) -> Result<(), Reason> {
        // Loaded before anything is changed: on a driver without limits nothing is.
        let (driver, done) = match self.clock.load(node) {
            Ok(driver) => {
                let done = self.limit(&driver, shares);
                (Some(driver), done)
            }
            Err(error) => (None, Err(error.into())),
        };
        if let Err(reason) = &done
            && !is_required
        {
            self.give_up(driver.as_ref(), shares, reason);
        }
        done
    }

    fn limit(&self, driver: &impl Driver, shares: &[Share]) -> Result<(), Reason> {
        let records = Records::lock(self.records, self.clock.answered)?;
        let exists = |cgroup: &str| self.hierarchy.exists(cgroup);
        records.remove_ended(exists);
        let record = records.add(&self.leaf, self.id, shares, exists)?;
        self.hierarchy.enable_controllers(&self.leaf.path)?;
        Ok(apply::apply(driver, &record.limits(&self.leaf), self.folder())?)
    }

    /// The container starts all the same. A limit that its pod has from an earlier container lacks its share, so the pod gets
    /// none any more. Does as much as it can: the reason for the failure is what is reported.
    fn give_up(&self, driver: Option<&impl Driver>, shares: &[Share], reason: &Reason) {
        let Ok(records) = Records::lock(self.records, self.clock.noted) else {
            return;
        };
        let exists = |cgroup: &str| self.hierarchy.exists(cgroup);
        let noted = records.add(&self.leaf, self.id, shares, exists).and_then(|record| {
            let gpus: Vec<String> = shares.iter().map(|share| share.gpu.clone()).collect();
            let why = format!("container {} started without a limit: {reason}", self.id);
            match self.leaf.pod {
                Some(_) => records.lift(&self.leaf, self.id, &gpus, &why),
                None => Ok(record),
            }
        });
        if let (Ok(record), Some(driver)) = (noted, driver) {
            // Each for itself: the container's own limit may still be set.
            for limit in record.limits(&self.leaf) {
                let _ = apply::apply(driver, &[limit], self.folder());
            }
        }
    }

    /// Removes the pod's limit of these GPUs, now and for containers that start later.
    pub(crate) fn lift(&self, gpus: &[String], node: &Node) -> Result<(), Reason> {
        if self.leaf.pod.is_none() {
            return Ok(());
        }
        let why = format!("container {} has a claim without a limit", self.id);
        let record = {
            let records = Records::lock(self.records, self.clock.answered)?;
            records.remove_ended(|cgroup| self.hierarchy.exists(cgroup));
            records.lift(&self.leaf, self.id, gpus, &why)?
        };
        // Without shares so far, nobody has set a limit.
        let limited = record.gpus();
        let gpus = gpus.iter().filter(|gpu| limited.contains(*gpu));
        let limits: Vec<Limit> = gpus.filter_map(|gpu| record.of_pod(gpu)).collect();
        if limits.is_empty() {
            return Ok(());
        }
        let driver = self.clock.load(node)?;
        Ok(apply::apply(&driver, &limits, self.folder())?)
    }

    fn folder(&self) -> impl Fn(&str) -> PathBuf {
        |cgroup| self.hierarchy.folder(cgroup)
    }
}
