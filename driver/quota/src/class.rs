//! The DeviceClasses, as far as counting needs them.

use std::collections::BTreeMap;

use serde::Deserialize;
use vgpu_api::{DRIVER_NAME, device_type};

use crate::names::IMPLICIT;

/// A DeviceClass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Class {
    pub name: String,
    /// It selects our GPUs, or may.
    is_ours: bool,
    /// It selects the devices for monitoring, which hold nothing.
    is_monitor: bool,
    /// The value of the attribute `type` that it selects by; the outer `None`: by something else.
    kind: Option<Option<String>>,
    extended: Option<String>,
}

impl<'de> Deserialize<'de> for Class {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Whole {
            metadata: Meta,
            #[serde(default)]
            spec: Spec,
        }
        #[derive(Deserialize)]
        struct Meta {
            #[serde(default)]
            name: String,
        }
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Spec {
            #[serde(default)]
            selectors: Vec<Selector>,
            extended_resource_name: Option<String>,
        }
        #[derive(Deserialize)]
        struct Selector {
            cel: Option<Cel>,
        }
        #[derive(Deserialize)]
        struct Cel {
            #[serde(default)]
            expression: String,
        }
        let whole = Whole::deserialize(deserializer)?;
        let expressions: Vec<String> = whole
            .spec
            .selectors
            .into_iter()
            .filter_map(|selector| Some(selector.cel?.expression))
            .collect();
        let names = |value: &str| {
            let quoted = [format!("\"{value}\""), format!("'{value}'")];
            expressions
                .iter()
                .any(|cel| quoted.iter().any(|quoted| cel.contains(quoted)))
        };
        let kind = kind(&expressions);
        Ok(Self {
            name: whole.metadata.name,
            // Without a selector it has the devices of all drivers.
            is_ours: expressions.is_empty() || names(DRIVER_NAME),
            // A class that only excludes monitors names them too.
            is_monitor: kind
                .as_ref()
                .is_some_and(|kind| kind.as_deref() == Some(device_type::MONITOR)),
            kind,
            extended: whole.spec.extended_resource_name.filter(|name| !name.is_empty()),
        })
    }
}

/// The type that expressions select by, if they select by driver and type alone.
fn kind(expressions: &[String]) -> Option<Option<String>> {
    let mut kind = None;
    for term in expressions.iter().flat_map(|cel| cel.split("&&")) {
        let (left, right) = term.split_once("==")?;
        let (left, right) = (left.trim().replace('\'', "\""), right.trim());
        let quoted = |mark: char| right.strip_prefix(mark)?.strip_suffix(mark);
        let value = quoted('"').or_else(|| quoted('\''))?;
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-".contains(&byte);
        if !value.bytes().all(is_plain) {
            return None;
        }
        match left.as_str() {
            "device.driver" if value == DRIVER_NAME => {}
            left if left == format!("device.attributes[\"{DRIVER_NAME}\"].{}", device_type::ATTRIBUTE) => {
                kind = Some(value.to_owned());
            }
            _ => return None,
        }
    }
    Some(kind)
}

/// All of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Classes(BTreeMap<String, Class>);

/// How devices of a class count toward a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counts {
    /// Shares of our GPUs.
    Shares,
    /// Devices of other drivers, or devices for monitoring.
    Nothing,
    /// There is no such class yet.
    Unknown,
}

impl Classes {
    /// Returns true if it is new or changed.
    pub(crate) fn set(&mut self, class: Class) -> bool {
        self.0.insert(class.name.clone(), class.clone()).as_ref() != Some(&class)
    }

    pub(crate) fn remove(&mut self, name: &str) -> bool {
        self.0.remove(name).is_some()
    }

    pub(crate) fn retain(&mut self, listed: &[String]) -> bool {
        let before = self.0.len();
        self.0.retain(|name, _| listed.contains(name));
        self.0.len() != before
    }

    pub(crate) fn counts(&self, name: &str) -> Counts {
        match self.0.get(name) {
            None => Counts::Unknown,
            Some(class) if class.is_ours && !class.is_monitor => Counts::Shares,
            Some(_) => Counts::Nothing,
        }
    }

    /// Of a class of ours: the type that it selects by (`None`: any); the outer `None` if it selects by more.
    pub(crate) fn kind(&self, name: &str) -> Option<Option<&str>> {
        self.0.get(name)?.kind.as_ref().map(Option::as_deref)
    }

    /// The class that gives this extended resource.
    pub(crate) fn giving<'a>(&'a self, resource: &'a str) -> Option<&'a str> {
        match resource.strip_prefix(IMPLICIT) {
            Some(class) => Some(class),
            None => Some(self.of_extended(resource)?.name.as_str()),
        }
    }

    /// Returns true if a container that asks for this extended resource gets our GPUs.
    pub(crate) fn is_extended(&self, resource: &str) -> bool {
        if let Some(class) = resource.strip_prefix(IMPLICIT) {
            return self.counts(class) == Counts::Shares;
        }
        self.of_extended(resource)
            .is_some_and(|class| class.is_ours && !class.is_monitor)
    }

    /// A class that bears this extended resource's name: Kubernetes itself counts it in ResourceQuotas.
    pub(crate) fn of_extended(&self, resource: &str) -> Option<&Class> {
        self.0
            .values()
            .find(|class| class.extended.as_deref() == Some(resource))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn class(name: &str, spec: serde_json::Value) -> Class {
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
    }

    #[test]
    fn a_class_counts_if_it_may_give_our_gpus() {
        let cel = |text: &str| json!({"selectors": [{"cel": {"expression": text}}]});
        let mut classes = Classes::default();
        assert!(classes.set(class("mine", cel("device.driver == \"dra.vgpu\""))));
        assert!(
            !classes.set(class("mine", cel("device.driver == 'dra.vgpu'"))),
            "nothing that matters changed"
        );
        classes.set(class(
            "monitor",
            cel("device.driver == 'dra.vgpu' && device.attributes['dra.vgpu'].type == 'monitor'"),
        ));
        classes.set(class(
            "working",
            cel("device.driver == 'dra.vgpu' && device.attributes['dra.vgpu'].type != 'monitor'"),
        ));
        classes.set(class("picky", cel("device.driver == 'dra.vgpu' && true")));
        classes.set(class("nic", cel("device.driver == 'nic.example'")));
        classes.set(class("any", json!({})));
        let mut whole = cel("device.driver == 'dra.vgpu'");
        whole["extendedResourceName"] = json!("nvidia.com/gpu");
        classes.set(class("gpu", whole));
        for (name, kind) in [
            ("mine", Some(None)),
            ("picky", None),
            ("monitor", Some(Some("monitor"))),
            ("nic", None),
            ("any", Some(None)),
            ("gpu", Some(None)),
        ] {
            assert_eq!(classes.kind(name), kind, "{name}");
        }
        for (name, counts) in [
            ("mine", Counts::Shares),
            ("any", Counts::Shares),
            ("working", Counts::Shares),
            ("monitor", Counts::Nothing),
            ("nic", Counts::Nothing),
            ("none", Counts::Unknown),
        ] {
            assert_eq!(classes.counts(name), counts, "{name}");
        }
        assert!(classes.is_extended("nvidia.com/gpu"));
        assert!(classes.is_extended("deviceclass.resource.kubernetes.io/mine"));
        assert!(!classes.is_extended("deviceclass.resource.kubernetes.io/nic"));
        assert!(!classes.is_extended("amd.com/gpu"));
    }
}
