//! Decides whether devices of a DeviceClass count toward a quota.

use vgpu_allocator::Index;
use vgpu_allocator::model::DeviceClass;

use crate::names::IMPLICIT;

/// What a request for the class adds to the quota's usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counts {
    /// Shares of our GPUs.
    Shares,
    /// Devices of other drivers, or devices for monitoring.
    Nothing,
    /// The class does not exist yet.
    Unknown,
}

pub(crate) fn counts(index: &Index, class: &str) -> Counts {
    match index.class(class) {
        None => Counts::Unknown,
        Some(class) if class.may_give_shares() => Counts::Shares,
        Some(_) => Counts::Nothing,
    }
}

/// The class whose devices a container gets that asks for this extended resource, if these are shares of our GPUs.
pub(crate) fn giving<'a>(index: &'a Index, resource: &'a str) -> Option<&'a str> {
    if let Some(class) = resource.strip_prefix(IMPLICIT) {
        return (counts(index, class) == Counts::Shares).then_some(class);
    }
    let gives = |class: &&DeviceClass| {
        class.spec.extended_resource_name.as_deref() == Some(resource) && class.may_give_shares()
    };
    let giving = index.classes().filter(gives);
    giving.map(|class| class.metadata.name.as_str()).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use vgpu_allocator::Features;

    fn class(name: &str, spec: serde_json::Value) -> DeviceClass {
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
    }

    #[test]
    fn a_class_counts_if_it_may_give_our_gpus() {
        let cel = |text: &str| json!({"selectors": [{"cel": {"expression": text}}]});
        let mut index = Index::new(Features::default());
        index.set_class(class("mine", cel("device.driver == \"dra.vgpu\"")));
        index.set_class(class(
            "monitor",
            cel("device.driver == 'dra.vgpu' && device.attributes['dra.vgpu'].type == 'monitor'"),
        ));
        index.set_class(class(
            "working",
            cel("device.driver == 'dra.vgpu' && device.attributes['dra.vgpu'].type != 'monitor'"),
        ));
        index.set_class(class(
            "picky",
            cel("device.driver == 'dra.vgpu' && device.attributes['dra.vgpu'].productName == 'A'"),
        ));
        index.set_class(class("nic", cel("device.driver == 'nic.example'")));
        index.set_class(class("any", json!({})));
        let mut whole = cel("device.driver == 'dra.vgpu'");
        whole["extendedResourceName"] = json!("nvidia.com/gpu");
        index.set_class(class("gpu", whole));
        for (name, counts) in [
            ("mine", Counts::Shares),
            ("any", Counts::Shares),
            ("working", Counts::Shares),
            ("picky", Counts::Shares),
            ("monitor", Counts::Nothing),
            ("nic", Counts::Nothing),
            ("none", Counts::Unknown),
        ] {
            assert_eq!(super::counts(&index, name), counts, "{name}");
        }
        assert!(giving(&index, "nvidia.com/gpu").is_some());
        assert!(giving(&index, "deviceclass.resource.kubernetes.io/mine").is_some());
        assert!(giving(&index, "deviceclass.resource.kubernetes.io/nic").is_none());
        assert!(giving(&index, "amd.com/gpu").is_none());
    }
}
