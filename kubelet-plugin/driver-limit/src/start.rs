//! A container that starts, and what is done with the limits of its cgroups.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use crate::{
    apply::{self, Driver},
    arguments::Node,
    claim::{self, Share},
    clock::Clock,
    error::Reason,
    hierarchy::{Hierarchy, Leaf},
    records::{self, Limit, Record, Records},
    strangers::Strangers,
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
    /// Limits the container to the shares of its claims, and its pod to what was started in it. `is_required`: otherwise a
    /// failure leaves the container and its pod without a limit, which might lack the claim's shares.
    pub(crate) fn set(
        &self,
        shares: Result<Vec<Share>, claim::Error>,
        node: &Node,
        is_required: bool,
    ) -> Result<(), Reason> {
        let (shares, unread) = match shares {
            Err(error) if is_required => return Err(error.into()),
            Err(error) => (Vec::new(), Some(error)),
            Ok(shares) => (shares, None),
        };
        // Loaded before anything is changed: on a driver without limits nothing is.
        let (driver, done) = match (self.clock.load(node), unread) {
            (driver, Some(error)) => (driver.ok(), Err(error.into())),
            (Err(error), None) => (None, Err(error.into())),
            (Ok(driver), None) => {
                let done = self.limit(&driver, &shares, is_required);
                (Some(driver), done)
            }
        };
        if let Err(reason) = &done
            && !is_required
        {
            self.give_up(driver.as_ref(), &shares, reason);
        }
        done
    }

    fn limit(&self, driver: &impl Driver, shares: &[Share], is_required: bool) -> Result<(), Reason> {
        let exists = |cgroup: &str| self.hierarchy.exists(cgroup);
        records::remove_ended(self.records, exists);
        let records = Records::lock(self.record(), self.clock.to_set())?;
        let mut record = records.add(&self.leaf, shares, is_required, exists)?;
        if let Some(why) = record.why_unlimited(&self.leaf.path) {
            return Err(Reason::GivenUp(why.to_owned()));
        }
        self.hierarchy.enable_controllers(&self.leaf.path)?;
        // A container without a hook may use the GPU already.
        let gpus = gpus(shares);
        let known = record.leaves();
        if Strangers::new(self.hierarchy, driver).lift(&mut record, &gpus, &known) {
            record.write()?;
        }
        Ok(apply::apply(driver, &record.limits(&self.leaf), self.folder())?)
    }

    /// The container starts all the same. A limit that it or its pod has by an earlier claim lacks this one's shares, so they have
    /// none any more. A container with a claim that requires its limit keeps that one. A step that fails stops no other, and is
    /// not reported: `reason` is. `shares`: none if they could not be read.
    fn give_up(&self, driver: Option<&impl Driver>, shares: &[Share], reason: &Reason) {
        let exists = |cgroup: &str| self.hierarchy.exists(cgroup);
        let why = format!("container {} started without a limit: {reason}", self.id);
        let records = Records::lock(self.record(), self.clock.to_note());
        let record = match &records {
            Ok(records) => records.give_up(&self.leaf, shares, &why, exists).ok(),
            // Not noted: a check may set the limits again.
            Err(_) => Record::read(&self.record()).ok(),
        };
        let of_claim = gpus(shares);
        let of_record = record.as_ref().map_or_else(BTreeSet::new, |record| record.gpus());
        let Some(driver) = driver else { return };
        let is_required = record
            .as_ref()
            .is_some_and(|record| record.is_required(&self.leaf.path));
        let leaf = (!is_required).then_some(&self.leaf.path);
        for gpu in of_record.union(&of_claim) {
            let is_lifted = of_claim.is_empty() || of_claim.contains(gpu);
            let pod = self.leaf.pod.as_ref().filter(|_| is_lifted).map(|pod| &pod.path);
            for cgroup in pod.into_iter().chain(leaf) {
                let limit = Limit {
                    cgroup: cgroup.clone(),
                    gpu: gpu.clone(),
                    bytes: None,
                };
                // Each for itself.
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
            records::remove_ended(self.records, |cgroup| self.hierarchy.exists(cgroup));
            let records = Records::lock(self.record(), self.clock.to_set())?;
            records.lift(&self.leaf, gpus, &why)?
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

    fn record(&self) -> PathBuf {
        records::path(self.records, &self.leaf, self.id)
    }

    fn folder(&self) -> impl Fn(&str) -> PathBuf {
        |cgroup| self.hierarchy.folder(cgroup)
    }
}

fn gpus(shares: &[Share]) -> BTreeSet<String> {
    shares.iter().map(|share| share.gpu.clone()).collect()
}
