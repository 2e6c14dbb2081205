//! The flags of the webhook.

use std::collections::BTreeSet;

use vgpu_dialects::{Dialect, ResourceNamesError, Settings, resource_names};

use super::name::is_name;
use crate::webhook::Config;
use crate::webhook::names::Names;
use crate::webhook::review::Mode;

#[derive(Debug, clap::Args)]
pub struct TranslateFlags {
    /// Other systems whose pods get claims, separated by commas: hami, koordinator, volcano, volcano-vgpu, gpu-manager,
    /// kai. Empty: no webhook.
    #[arg(long, default_value = "")]
    pub translate_dialects: String,
    /// What becomes of such pods: they get claims, or only warnings.
    #[arg(long, value_enum, default_value_t)]
    pub translate_mode: Mode,
    /// Schedulers whose pods kube-scheduler gets instead, separated by commas.
    #[arg(long, default_value = "")]
    pub translate_schedulers: String,
    /// DeviceClass that grants priority High, for pods of HAMi that ask for it. Empty: they get priority Low.
    #[arg(long, default_value = "")]
    pub translate_high_priority_class: String,
    /// Take `tencent.com/vcuda-core` for a limit in every pod, as GPUSharing does, and not only where the pod's
    /// annotation says so.
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    pub translate_limit_vcuda_cores: bool,
    /// Resource names that the cluster chose instead of a system's own, as HAMi's chart allows, separated by commas:
    /// nvidia.com/vgpu=nvidia.com/gpu.
    #[arg(long, default_value = "")]
    pub translate_resource_names: String,
    /// DeviceClasses that were derived from the chart's, separated by commas.
    #[arg(long, default_value = "")]
    pub translate_derived_classes: String,
    /// Address of the webhook.
    #[arg(long, default_value = "0.0.0.0:9443")]
    pub webhook_address: String,
    /// Name of the webhook's Service and Secret, in the namespace of the Lease, and of its MutatingWebhookConfiguration.
    #[arg(long, default_value = "vgpu-webhook")]
    pub webhook_name: String,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TranslateError {
    #[error(
        "--translate-dialects {0:?} is not a list of {known}",
        known = Dialect::ALL.map(Dialect::name).join(", ")
    )]
    Dialects(String),
    #[error("--translate-high-priority-class {0:?} is not a name of a DeviceClass")]
    HighPriorityClass(String),
    #[error("--translate-resource-names: {0}")]
    ResourceNames(#[from] ResourceNamesError),
    #[error("--webhook-address {0:?} is not an address with a port; write one, for example 0.0.0.0:9443")]
    Address(String),
    #[error("--webhook-name {0:?} is not a name of a Service; write lower case letters, digits and `-`")]
    Name(String),
}

impl TranslateFlags {
    /// `None` without dialects.
    pub(super) fn config(self, namespace: &str) -> Result<Option<Config>, TranslateError> {
        let dialects = list(&self.translate_dialects).map(str::parse);
        let Ok(dialects) = dialects.collect::<Result<BTreeSet<Dialect>, _>>() else {
            return Err(TranslateError::Dialects(self.translate_dialects));
        };
        let high = self.translate_high_priority_class;
        if !high.is_empty() && !is_name(&high, 253) {
            return Err(TranslateError::HighPriorityClass(high));
        }
        let Ok(address) = self.webhook_address.parse() else {
            return Err(TranslateError::Address(self.webhook_address));
        };
        if !is_name(&self.webhook_name, 63) || self.webhook_name.contains('.') {
            return Err(TranslateError::Name(self.webhook_name));
        }
        let names = |text: &str| list(text).map(str::to_owned).collect();
        let config = Config {
            address,
            names: Names {
                namespace: namespace.to_owned(),
                name: self.webhook_name,
            },
            mode: self.translate_mode,
            settings: Settings {
                schedulers: names(&self.translate_schedulers),
                high_priority_class: (!high.is_empty()).then_some(high),
                limit_vcuda_cores: self.translate_limit_vcuda_cores,
                resource_names: resource_names(&self.translate_resource_names)?,
                derived_classes: names(&self.translate_derived_classes),
                dialects,
            },
        };
        Ok((!config.settings.dialects.is_empty()).then_some(config))
    }
}

/// The items of a comma-separated list; none for an empty text.
fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').filter(move |_| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn config(args: &[&str]) -> Option<Config> {
        let flags = crate::Flags::try_parse_from([&["vgpu-controller"], args].concat()).expect("clap takes any text");
        flags.translate.config("ns").expect("valid")
    }

    #[test]
    fn without_dialects_there_is_no_webhook() {
        assert_eq!(config(&[]), None);
        assert_eq!(
            config(&["--translate-mode=report", "--translate-schedulers=volcano"]),
            None
        );
    }

    #[test]
    fn flags_are_the_translators_settings() {
        let config = config(&[
            "--translate-dialects=kai,hami",
            "--translate-mode=report",
            "--translate-schedulers=volcano,koord-scheduler",
            "--translate-high-priority-class=vgpu-high",
            "--translate-limit-vcuda-cores=true",
            "--translate-resource-names=nvidia.com/vgpu=nvidia.com/gpu",
            "--translate-derived-classes=mine",
            "--webhook-name=x-webhook",
        ])
        .expect("a webhook");
        assert_eq!(config.settings.dialects, BTreeSet::from([Dialect::Hami, Dialect::Kai]));
        assert_eq!(
            config.settings.schedulers.into_iter().collect::<Vec<_>>(),
            ["koord-scheduler", "volcano"]
        );
        assert_eq!(config.settings.high_priority_class.as_deref(), Some("vgpu-high"));
        assert!(config.settings.limit_vcuda_cores);
        assert_eq!(
            config.settings.resource_names.known("nvidia.com/vgpu"),
            "nvidia.com/gpu"
        );
        assert_eq!(
            config.settings.derived_classes.into_iter().collect::<Vec<_>>(),
            ["mine"]
        );
        assert_eq!((config.mode, config.address.port()), (Mode::Report, 9443));
        let (name, namespace) = (config.names.name, config.names.namespace);
        assert_eq!((name.as_str(), namespace.as_str()), ("x-webhook", "ns"));
    }

    #[test]
    fn a_system_that_is_none_is_refused_with_all_there_are() {
        let flags = crate::Flags::try_parse_from(["vgpu-controller", "--translate-dialects=nvshare"]).unwrap();
        let names = ["vgpu-controller", "--translate-resource-names=cpu=nvidia.com/gpu"];
        let said = crate::Flags::try_parse_from(names)
            .unwrap()
            .translate
            .config("ns")
            .unwrap_err();
        assert!(
            said.to_string()
                .starts_with("--translate-resource-names: \"cpu\" is not a name of an extended resource"),
            "{said}"
        );
        assert_eq!(
            flags.translate.config("ns").unwrap_err().to_string(),
            "--translate-dialects \"nvshare\" is not a list of hami, koordinator, volcano, volcano-vgpu, gpu-manager, kai"
        );
    }
}
