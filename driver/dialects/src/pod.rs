//! A pod as the dialects read it: metadata, settings, and the findings so far.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use vgpu_api::config::AllocationPolicy;

use crate::problem::Problem;
use crate::request::{Devices, ITEM_MAX, LIST_BYTES_MAX, LIST_MAX, cel_bytes};
use crate::resources::Findings;
use crate::settings::{DEFAULT_SCHEDULER, Settings};

/// The most keys of a pod that get a warning each. A tenant decides how many keys there are.
pub(crate) const MOST_KEYS: usize = 8;

pub(crate) struct PodView<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) settings: &'a Settings,
    pub(crate) findings: Findings,
    /// Lists of GPUs that were read already, by their first key: they are the same for every container.
    known: Vec<(&'static str, Option<Devices>)>,
}

/// The path of an annotation.
pub(crate) fn annotation_at(key: &str) -> String {
    format!("metadata.annotations[{key}]")
}

impl<'a> PodView<'a> {
    pub(crate) fn new(pod: &'a Pod, settings: &'a Settings) -> Self {
        Self {
            pod,
            settings,
            findings: Findings::default(),
            known: Vec::new(),
        }
    }

    pub(crate) fn annotations(&self) -> Option<&'a BTreeMap<String, String>> {
        self.pod.metadata.annotations.as_ref()
    }

    pub(crate) fn annotation(&self, key: &str) -> Option<&'a str> {
        self.annotations()?.get(key).map(String::as_str)
    }

    pub(crate) fn label(&self, key: &str) -> Option<&'a str> {
        self.pod.metadata.labels.as_ref()?.get(key).map(String::as_str)
    }

    /// The scheduler that the pod names, unless it is kube-scheduler.
    pub(crate) fn other_scheduler(&self) -> Option<&'a str> {
        let name = self.pod.spec.as_ref()?.scheduler_name.as_deref()?;
        (!name.is_empty() && name != DEFAULT_SCHEDULER).then_some(name)
    }

    /// Returns true if another scheduler than kube-scheduler places the pod, translated or not.
    pub(crate) fn keeps_scheduler(&self) -> bool {
        self.other_scheduler()
            .is_some_and(|name| !self.settings.schedulers.contains(name))
    }

    /// Refuses an annotation's value.
    pub(crate) fn refuse_annotation(&mut self, key: &str, advice: impl Into<String>) {
        let value = self.annotation(key).unwrap_or_default();
        self.findings
            .refuse(Problem::invalid(annotation_at(key), value, advice));
    }

    /// A list separated by commas, in order and each item once, or `None` after a problem.
    fn list(&mut self, key: &str, lowercase: bool) -> Option<Vec<String>> {
        let written = self.annotation(key).unwrap_or_default();
        let items = || written.split(',').map(str::trim).filter(|item| !item.is_empty());
        // Counted before anything is copied: the text is as long as the API server allows.
        if items().take(LIST_MAX + 1).count() > LIST_MAX {
            self.refuse_annotation(key, format!("names more than {LIST_MAX}; name fewer"));
            return None;
        }
        if items().any(|item| item.len() > ITEM_MAX) {
            self.refuse_annotation(
                key,
                format!("has a name of more than {ITEM_MAX} bytes, which no GPU has; correct it"),
            );
            return None;
        }
        let mut list: Vec<String> = items()
            .map(|item| match lowercase {
                true => item.to_ascii_lowercase(),
                false => item.to_owned(),
            })
            .collect();
        list.sort_unstable();
        list.dedup();
        if cel_bytes(&list) > LIST_BYTES_MAX {
            self.refuse_annotation(key, "is too long for a selector; name fewer GPUs, without quotes");
            return None;
        }
        Some(list)
    }

    /// The GPUs that annotations allow and forbid. `None` after a problem.
    pub(crate) fn devices(&mut self, keys: &DeviceKeys) -> Option<Devices> {
        if let Some((_, devices)) = self.known.iter().find(|(key, _)| *key == keys.use_uuids) {
            return devices.clone();
        }
        let devices = self.read_devices(keys);
        self.known.push((keys.use_uuids, devices.clone()));
        devices
    }

    fn read_devices(&mut self, keys: &DeviceKeys) -> Option<Devices> {
        Some(Devices {
            use_uuids: self.list(keys.use_uuids, false)?,
            not_uuids: self.list(keys.not_uuids, false)?,
            use_types: self.list(keys.use_types, true)?,
            not_types: self.list(keys.not_types, true)?,
        })
    }

    /// The mode in which the pod shares GPUs. One that is not known is refused.
    pub(crate) fn mode(&mut self, key: &str) -> Mode {
        let mode = self.annotation(key).unwrap_or_default().trim().to_ascii_lowercase();
        match mode.as_str() {
            "" | "hami-core" => {}
            "mig" => return Mode::Mig,
            "mps" => self.refuse_annotation(key, "MPS is not supported; remove it, or write hami-core"),
            _ => self.refuse_annotation(key, "is not a mode; remove it, or write hami-core or mig"),
        }
        Mode::Library
    }

    /// HAMi's policies for the GPUs of a node, as ours. The second value is true for `mutex`: idle GPUs only.
    pub(crate) fn gpu_policy(&mut self, key: &str) -> (Option<AllocationPolicy>, bool) {
        let written = self.annotation(key).unwrap_or_default();
        let mut policy = None;
        let mut idle_only = false;
        for word in written
            .split([',', ';', '|', '+', ' '])
            .filter(|word| !word.is_empty())
            .take(8)
        {
            let meant = match word.to_ascii_lowercase().as_str() {
                "binpack" => AllocationPolicy::Binpack,
                "spread" => AllocationPolicy::Spread,
                "topology-aware" => AllocationPolicy::Pcie,
                "numa" => AllocationPolicy::Numa,
                "mutex" => {
                    idle_only = true;
                    continue;
                }
                _ => {
                    let text = format!(
                        "{} is not a policy, and is ignored; use one of binpack, spread, topology-aware, numa, mutex",
                        vgpu_quantity::quoted(word)
                    );
                    self.findings.warn(annotation_at(key), text);
                    continue;
                }
            };
            if policy.is_some_and(|first| first != meant) {
                let text = "names several policies; the first one counts";
                self.findings.warn(annotation_at(key), text);
                continue;
            }
            policy = Some(meant);
        }
        (policy, idle_only)
    }
}

/// How a pod of HAMi or Volcano shares GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Fractions, by a library.
    Library,
    /// Instances.
    Mig,
}

/// The annotations with lists of GPUs.
pub(crate) struct DeviceKeys {
    pub(crate) use_uuids: &'static str,
    pub(crate) not_uuids: &'static str,
    pub(crate) use_types: &'static str,
    pub(crate) not_types: &'static str,
}
