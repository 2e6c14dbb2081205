//! Converts the chosen devices of a claim to `status.allocation`.

use std::sync::Arc;

use crate::model::{
    Allocation, AllocationConfig, ConfigSource, DeviceResult, DeviceResults, NodeSelector, NodeSelectorRequirement,
    NodeSelectorTerm, RequestedConfig,
};
use crate::plan::ClaimPlan;
use crate::pools::{Candidate, NodeView};
use crate::search::Pick;

/// The devices that the search chose for one claim.
pub(crate) struct Outcome<'a> {
    pub(crate) view: &'a NodeView,
    pub(crate) plan: &'a ClaimPlan<'a>,
    /// The alternative of each request.
    pub(crate) chosen: &'a [usize],
    pub(crate) picks: &'a [Pick],
    pub(crate) conditions: bool,
}

impl Outcome<'_> {
    /// The allocation; each share gets an id of its own.
    pub(crate) fn allocation(&self, share_id: &mut dyn FnMut() -> String) -> Allocation {
        let results = self.picks.iter().map(|pick| self.result(pick, share_id));
        Allocation {
            devices: DeviceResults {
                results: results.collect(),
                config: self.config(),
            },
            node_selector: self.node_selector(),
            allocation_timestamp: None,
        }
    }

    fn result(&self, pick: &Pick, share_id: &mut dyn FnMut() -> String) -> DeviceResult {
        let ask = &self.plan.requests[pick.request].asks[pick.alternative];
        let candidate = &self.view.candidates[pick.candidate];
        let device = candidate.device();
        let conditions = self.conditions.then_some(device);
        DeviceResult {
            request: ask.full_name(),
            driver: candidate.driver().to_owned(),
            pool: candidate.slice.spec.pool.name.clone(),
            device: device.name.clone(),
            admin_access: ask.is_admin().then_some(true),
            tolerations: ask.exactly.tolerations.clone(),
            binding_conditions: conditions
                .and_then(|device| device.binding_conditions.clone())
                .unwrap_or_default(),
            binding_failure_conditions: conditions
                .map(|device| device.binding_failure_conditions.clone())
                .unwrap_or_default(),
            share_id: pick.share.as_ref().map(|_| share_id()),
            consumed_capacity: pick.share.clone().unwrap_or_default(),
        }
    }

    /// Each class's entries once, then those of the claim's entries that concern a request or a chosen alternative. An
    /// entry without requests concerns every request.
    fn config(&self) -> Vec<AllocationConfig> {
        let mut all: Vec<AllocationConfig> = Vec::new();
        let mut classes: Vec<(&str, std::ops::Range<usize>)> = Vec::new();
        for (request, chosen) in self.plan.requests.iter().zip(self.chosen) {
            let ask = &request.asks[*chosen];
            let class = ask.class;
            if let Some((_, range)) = classes.iter().find(|(name, _)| *name == class.metadata.name) {
                for entry in &mut all[range.clone()] {
                    entry.requests.push(ask.full_name());
                }
                continue;
            }
            let start = all.len();
            all.extend(class.spec.config.iter().map(|config| AllocationConfig {
                source: ConfigSource::FromClass,
                requests: vec![ask.full_name()],
                opaque: config.opaque.clone(),
            }));
            classes.push((&class.metadata.name, start..all.len()));
        }
        let own = self.plan.claim.spec.devices.config.iter();
        all.extend(
            own.filter(|config| self.concerns(config))
                .map(|config| AllocationConfig {
                    source: ConfigSource::FromClaim,
                    requests: config.requests.clone(),
                    opaque: config.opaque.clone(),
                }),
        );
        for entry in &mut all {
            let names = self.names();
            if names
                .into_iter()
                .all(|names| names.iter().any(|name| entry.requests.contains(name)))
            {
                entry.requests.clear();
            }
        }
        all
    }

    fn concerns(&self, config: &RequestedConfig) -> bool {
        config.requests.is_empty() || self.names().iter().flatten().any(|name| config.requests.contains(name))
    }

    /// Returns the names by which a config entry may refer to each request.
    fn names(&self) -> Vec<Vec<String>> {
        let requests = self.plan.requests.iter().zip(self.chosen);
        requests
            .map(|(request, chosen)| match request.is_list {
                true => vec![request.name.to_owned(), request.asks[*chosen].full_name()],
                false => vec![request.name.to_owned()],
            })
            .collect()
    }

    /// Selects the node alone if any device belongs only to this node; otherwise combines the devices' selectors;
    /// `None` if all devices are available everywhere.
    fn node_selector(&self) -> Option<Arc<NodeSelector>> {
        let candidates = self.picks.iter().map(|pick| &self.view.candidates[pick.candidate]);
        if candidates.clone().any(is_local) {
            return Some(self.view.only.clone());
        }
        let mut term = NodeSelectorTerm::default();
        for selector in candidates.filter_map(selector) {
            // The API server allows one term.
            if let [from] = &selector.node_selector_terms[..] {
                add_new(&mut term.match_fields, &from.match_fields);
                add_new(&mut term.match_expressions, &from.match_expressions);
            }
        }
        let is_empty = term.match_fields.is_empty() && term.match_expressions.is_empty();
        (!is_empty).then(|| {
            Arc::new(NodeSelector {
                node_selector_terms: vec![term],
            })
        })
    }
}

fn is_local(candidate: &Candidate) -> bool {
    let device = candidate.device();
    let name = match candidate.slice.selects_per_device() {
        true => &device.node_name,
        false => &candidate.slice.spec.node_name,
    };
    name.is_some() || device.binds_to_node
}

fn selector(candidate: &Candidate) -> Option<&NodeSelector> {
    match candidate.slice.selects_per_device() {
        true => candidate.device().node_selector.as_ref(),
        false => candidate.slice.spec.node_selector.as_ref(),
    }
}

fn add_new(to: &mut Vec<NodeSelectorRequirement>, from: &[NodeSelectorRequirement]) {
    for requirement in from {
        let same = |known: &NodeSelectorRequirement| {
            known.key == requirement.key
                && known.operator == requirement.operator
                && known.values.iter().all(|value| requirement.values.contains(value))
                && requirement.values.iter().all(|value| known.values.contains(value))
        };
        if !to.iter().any(same) {
            to.push(requirement.clone());
        }
    }
}
