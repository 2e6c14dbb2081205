//! The administrator's settings: the chart's values under `translate`.

use std::collections::BTreeSet;

use serde::Deserialize;
use vgpu_api::class;
use vgpu_api::config::Dialect;

use crate::names::ResourceNames;

pub(crate) const DEFAULT_SCHEDULER: &str = "default-scheduler";

/// The chart's values that change a translation.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Settings {
    /// The dialects that are read (`translate.dialects`). Requests in other dialects are left as they are.
    pub dialects: BTreeSet<Dialect>,
    /// Schedulers that are replaced by kube-scheduler in translated pods (`translate.schedulers`).
    pub schedulers: BTreeSet<String>,
    /// The DeviceClass that grants priority High, for HAMi's `nvidia.com/priority: 0`
    /// (`translate.highPriorityClass`). Empty or none: such pods get priority Low, and a warning.
    pub high_priority_class: Option<String>,
    /// GPUSharing's rule: `tencent.com/vcuda-core` is always a limit (`translate.limitVcudaCores`). If false, as for
    /// gpu-manager, the pod's annotation decides whether there is a limit.
    pub limit_vcuda_cores: bool,
    /// Resource names that the cluster chose instead of a dialect's own (`translate.resourceNames`).
    #[serde(skip)]
    pub resource_names: ResourceNames,
    /// DeviceClasses that are ours although their name does not show it (`admission.derivedClasses`): a container must
    /// not request one of them in addition to a dialect's resources.
    pub derived_classes: BTreeSet<String>,
}

impl Default for Settings {
    /// Every dialect, and no scheduler is replaced.
    fn default() -> Self {
        Self {
            dialects: Dialect::ALL.into(),
            schedulers: BTreeSet::new(),
            high_priority_class: None,
            limit_vcuda_cores: false,
            resource_names: ResourceNames::default(),
            derived_classes: BTreeSet::new(),
        }
    }
}

impl Settings {
    pub(crate) fn reads(&self, dialect: Dialect) -> bool {
        self.dialects.contains(&dialect)
    }

    pub(crate) fn is_our_class(&self, name: &str) -> bool {
        class::is_ours(name) || self.derived_classes.contains(name) || self.high_priority_class.as_deref() == Some(name)
    }
}
