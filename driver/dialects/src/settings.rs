//! What an administrator decides: the chart's values under `translate`.

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
    /// The dialects that are read (`translate.dialects`). What a pod says in another one is left as it is.
    pub dialects: BTreeSet<Dialect>,
    /// Schedulers whose pods kube-scheduler gets instead (`translate.schedulers`).
    pub schedulers: BTreeSet<String>,
    /// The DeviceClass that grants priority High, for HAMi's `nvidia.com/priority: 0`
    /// (`translate.highPriorityClass`). Empty or none: such pods get priority Low, and a warning.
    pub high_priority_class: Option<String>,
    /// GPUSharing's rule: `tencent.com/vcuda-core` is always a limit (`translate.limitVcudaCores`). Else, as for
    /// gpu-manager, the pod's annotation says whether there is one.
    pub limit_vcuda_cores: bool,
    /// Resource names that the cluster chose instead of a dialect's own (`translate.resourceNames`).
    #[serde(skip)]
    pub resource_names: ResourceNames,
    /// DeviceClasses that are ours by more than their name (`admission.derivedClasses`): a container must not ask for
    /// one of them beside a dialect's resources.
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
