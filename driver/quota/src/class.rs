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

/// The classes whose devices a container may get that asks for this extended resource, if these are shares of our GPUs. Several
/// classes may have one name.
pub(crate) fn giving<'a>(index: &'a Index, resource: &'a str) -> Vec<&'a str> {
    if let Some(class) = resource.strip_prefix(IMPLICIT) {
        let gives = counts(index, class) == Counts::Shares;
        return gives.then_some(class).into_iter().collect();
    }
    let gives = |class: &&DeviceClass| {
        class.spec.extended_resource_name.as_deref() == Some(resource) && class.may_give_shares()
    };
    let giving = index.classes().filter(gives);
    let mut giving: Vec<&str> = giving.map(|class| class.metadata.name.as_str()).collect();
    giving.sort_unstable();
    giving
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
        index.set_class(class("gpu", whole.clone()));
        index.set_class(class("a-gpu", whole));
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
        for (resource, classes) in [
            ("nvidia.com/gpu", &["a-gpu", "gpu"][..]),
            ("deviceclass.resource.kubernetes.io/mine", &["mine"]),
            ("deviceclass.resource.kubernetes.io/nic", &[]),
            ("amd.com/gpu", &[]),
        ] {
            assert_eq!(giving(&index, resource), classes, "{resource}");
        }
    }
}
