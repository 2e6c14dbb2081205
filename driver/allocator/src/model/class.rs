//! DeviceClasses.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use vgpu_api::{DRIVER_NAME, class, device_type};
use vgpu_cel::{Attribute, Device};
use vgpu_quantity::Quantity;

use super::parts::{RequestedConfig, Selector};
use super::{Metadata, fitted};

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(from = "Read")]
pub struct DeviceClass {
    pub metadata: Metadata,
    pub spec: ClassSpec,
    /// Why the class cannot be decoded, set by the caller: it is then unknown what it selects, and a claim that names
    /// it is an error.
    pub unreadable: Option<String>,
    selected: Selected,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClassSpec {
    #[serde(deserialize_with = "fitted")]
    pub selectors: Vec<Selector>,
    #[serde(deserialize_with = "fitted")]
    pub config: Vec<RequestedConfig>,
    /// The resource that containers may request instead of naming a claim. Allocation then works on the claim that
    /// represents it.
    pub extended_resource_name: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Read {
    metadata: Metadata,
    spec: ClassSpec,
}

impl From<Read> for DeviceClass {
    fn from(Read { metadata, spec }: Read) -> Self {
        Self {
            selected: Selected::by(&spec.selectors),
            metadata,
            spec,
            unreadable: None,
        }
    }
}

/// The devices that a class selects, as far as driver and type decide.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Selected {
    /// Devices of our driver, by [`TYPES`].
    ours: [bool; 4],
    /// Devices of any other driver.
    others: bool,
}

const TYPES: [&str; 4] = [
    device_type::GPU,
    device_type::SLOT,
    device_type::MIG,
    device_type::MONITOR,
];

impl DeviceClass {
    /// Returns true if it selects devices of our driver and of no other, whatever else its selectors ask for. A class that
    /// cannot be decoded is recognised by its name.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        match self.unreadable {
            Some(_) => class::is_ours(&self.metadata.name),
            None => self.selected.ours.contains(&true) && !self.selected.others,
        }
    }

    /// Returns true if a request for it may get a share of one of our GPUs, or an instance. Monitors hold nothing.
    #[must_use]
    pub fn may_give_shares(&self) -> bool {
        let kinds = TYPES.iter().filter(|name| **name != device_type::MONITOR);
        kinds.into_iter().any(|name| self.may_give(name))
    }

    /// Returns true if a request for it may get a device of ours of this type. A class whose selectors cannot be decoded
    /// may select any device.
    #[must_use]
    pub fn may_give(&self, device_type: &str) -> bool {
        let is_named_ours = self.unreadable.is_some() && self.is_ours();
        let mut types = TYPES.into_iter().zip(self.selected.ours);
        is_named_ours || types.any(|(name, selects)| selects && name == device_type)
    }

    /// The type of the devices of ours that it selects; of several, the first of GPU, slot, instance and monitor.
    #[must_use]
    pub fn device_type(&self) -> &'static str {
        let mut types = TYPES.into_iter().zip(self.selected.ours);
        types
            .find(|(_, selects)| *selects)
            .map_or(device_type::GPU, |(name, _)| name)
    }
}

impl Selected {
    /// Evaluates the selectors on a device of each type, and on one of another driver.
    ///
    /// Only the type of these devices can be read. So a selector that reads anything else fails on them, and CEL's `&&`
    /// and `||` pass the failure on only if the answer depends on it: then the class selects some devices of this
    /// driver and type. An exception is a selector that fails on any device, for example because it reads attributes of
    /// another driver. A selector may first check whether an attribute exists: see [`probes`].
    ///
    /// A selector that refuses all of these devices, or cannot be compiled, may still accept real ones. It selects all our
    /// types if it names the driver in quotes.
    fn by(selectors: &[Selector]) -> Self {
        let programs: Vec<_> = selectors
            .iter()
            .map(|selector| vgpu_cel::compile(&selector.cel.as_ref()?.expression).ok())
            .collect();
        // `None`: it depends on more than driver and type.
        let selects = |device: &Device| {
            let answers = programs.iter().map(|program| program.as_ref()?.matches(device).ok());
            let answers: Vec<Option<bool>> = answers.collect();
            match answers.contains(&Some(false)) {
                true => Some(false),
                false => (!answers.contains(&None)).then_some(true),
            }
        };
        let others = selects(&Device {
            driver: "another.example".to_owned(),
            allow_multiple_allocations: true,
            ..Device::default()
        });
        let ours = TYPES.map(|name| {
            let mut devices = probes(name, selectors).into_iter();
            devices.any(|device| selects(&device).unwrap_or(others == Some(false)))
        });
        let is_compiled = programs.iter().all(Option::is_some);
        let is_undecided = others == Some(false) || (others.is_none() && !is_compiled);
        let is_guarded = !ours.contains(&true) && is_undecided && selectors.iter().any(names_driver);
        Self {
            ours: if is_guarded { [true; 4] } else { ours },
            others: others == Some(true),
        }
    }
}

/// Devices of ours of one type: one without further attributes or capacities, and others with each that the selectors
/// may name. The value of such an attribute cannot be read. A capacity's value can always be read, so there is a device
/// with the smallest and one with the largest value.
fn probes(kind: &str, selectors: &[Selector]) -> Vec<Device> {
    const NAMES_MAX: usize = 256;
    let expressions = selectors.iter().filter_map(|selector| selector.cel.as_ref());
    let is_in_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let names = expressions.flat_map(|cel| cel.expression.split(move |c| !is_in_name(c)));
    let names: BTreeSet<&str> = names.filter(|name| !name.is_empty()).collect();
    let names: BTreeSet<&str> = names.into_iter().take(NAMES_MAX).collect();
    let kind = (device_type::ATTRIBUTE.to_owned(), Attribute::String(kind.to_owned()));
    let unreadable = || {
        names
            .iter()
            .map(|name| ((*name).to_owned(), Attribute::Version(String::new())))
    };
    let of_capacity = |amount: i64| {
        names
            .iter()
            .map(move |name| ((*name).to_owned(), Quantity::from_i64(amount)))
    };
    let all = |capacity| (unreadable().collect::<BTreeMap<_, _>>(), capacity);
    let contents = [
        (BTreeMap::new(), BTreeMap::new()),
        all(BTreeMap::new()),
        all(of_capacity(0).collect()),
        all(of_capacity(i64::MAX).collect()),
    ];
    let devices = contents.into_iter().flat_map(|(mut attributes, capacity)| {
        attributes.extend([kind.clone()]);
        [true, false].map(|allow_multiple_allocations| Device {
            driver: DRIVER_NAME.to_owned(),
            allow_multiple_allocations,
            attributes: attributes.clone(),
            capacity: capacity.clone(),
        })
    });
    devices.collect()
}

fn names_driver(selector: &Selector) -> bool {
    let quoted = |quote| format!("{quote}{DRIVER_NAME}{quote}");
    let cel = selector.cel.as_ref();
    cel.is_some_and(|cel| ['\'', '"'].iter().any(|quote| cel.expression.contains(&quoted(quote))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn class(expressions: &[String]) -> DeviceClass {
        let selectors: Vec<_> = expressions
            .iter()
            .map(|cel| json!({"cel": {"expression": cel}}))
            .collect();
        serde_json::from_value(json!({"metadata": {"name": "c"}, "spec": {"selectors": selectors}})).unwrap()
    }

    /// Each line: is the class ours, can it give shares, the type of its devices, and its selectors. OURS is replaced by our
    /// attributes.
    const CLASSES: &str = r#"
yes yes gpu ["device.driver == 'dra.vgpu'"]
yes yes gpu ["device.driver == 'dra.vgpu'", "device.attributes[\"dra.vgpu\"].type == \"gpu\""]
yes yes gpu ["device.attributes[\"dra.vgpu\"].type == \"gpu\""]
yes yes slot ["device.driver == 'dra.vgpu' && OURS.type == 'slot'"]
yes no monitor ["device.driver == 'dra.vgpu'", "OURS.type == 'monitor'"]
yes yes gpu ["device.driver == 'dra.vgpu'", "OURS.type != 'monitor'"]
yes yes gpu ["device.driver.startsWith('dra.v')"]
yes yes gpu ["device.driver == 'dra.vgpu'", "OURS.productName == 'H100'"]
yes yes gpu ["device.driver == 'dra.vgpu' && device.capacity['dra.vgpu'].memory.compareTo(quantity('40Gi')) >= 0"]
yes yes gpu ["device.driver == 'dra.vgpu' && has(OURS.productName) && OURS.productName == 'H100'"]
yes yes gpu ["device.driver == 'dra.vgpu'", "'productName' in OURS"]
yes yes gpu ["device.attributes[\"dra.vgpu\"].?productName.orValue('') == 'H100'"]
yes yes gpu ["device.driver == 'dra.vgpu' && device.allowMultipleAllocations"]
yes yes gpu ["device.driver == 'dra.vgpu' && (OURS.type == 'monitor' || 'productName' in OURS && OURS.productName == 'H100')"]
yes yes gpu ["device.driver == 'dra.vgpu'", "OURS.type == 'monitor' || has(device.capacity['dra.vgpu'].memory) && device.capacity['dra.vgpu'].memory.isGreaterThan(quantity('40Gi'))"]
yes yes gpu ["device.driver == 'dra.vgpu'", "OURS.type == 'monitor' || !device.allowMultipleAllocations"]
yes no monitor ["device.driver == 'dra.vgpu'", "has(OURS.type) && OURS.type == 'monitor' && has(OURS.uuid)"]
yes yes gpu ["device.driver == 'dra.vgpu' && device.isFast()"]
yes yes mig ["device.driver == 'dra.vgpu' && OURS.type == 'mig'"]
yes yes gpu ["device.driver == 'dra.vgpu' && (OURS.type == 'gpu' || OURS.type == 'mig' && device.allowMultipleAllocations)"]
no no gpu ["device.driver == 'nic.example'"]
no no gpu ["device.driver != 'dra.vgpu'"]
no no gpu ["device.attributes['nic.example'].model == 'a'"]
no yes gpu []
no yes gpu ["device.allowMultipleAllocations"]
no no gpu ["not CEL"]"#;

    #[test]
    fn a_class_may_give_several_types() {
        let given = |cel: &str| {
            let class = class(&[format!("device.driver == 'dra.vgpu' && ({cel})")]);
            TYPES.map(|name| class.may_give(name))
        };
        let kind = "device.attributes['dra.vgpu'].type";
        let shared = format!("{kind} == 'gpu' || {kind} == 'mig' && device.allowMultipleAllocations");
        assert_eq!(given(&shared), [true, false, true, false]);
        assert_eq!(given(&format!("{kind} == 'mig'")), [false, false, true, false]);
        assert_eq!(given(&format!("{kind} != 'mig'")), [true, true, false, true]);
        assert_eq!(given("device.attributes['dra.vgpu'].profile == '3g.40gb'"), [true; 4]);
        let mut unreadable = class(&[]);
        unreadable.metadata.name = "vgpu-mig".to_owned();
        unreadable.unreadable = Some("too deep".to_owned());
        assert!(unreadable.may_give(device_type::MIG) && unreadable.may_give_shares());
    }

    #[test]
    fn driver_and_type_are_what_the_selectors_accept() {
        for row in CLASSES.trim().lines() {
            let cells: Vec<&str> = row.splitn(4, ' ').collect();
            let [ours, shares, kind, expressions] = cells[..] else {
                panic!("{row}")
            };
            let expressions = expressions.replace("OURS", "device.attributes['dra.vgpu']");
            let class = class(&serde_json::from_str::<Vec<String>>(&expressions).expect(row));
            let yes = |is: bool| if is { "yes" } else { "no" };
            let said = (yes(class.is_ours()), yes(class.may_give_shares()), class.device_type());
            assert_eq!(said, (ours, shares, kind), "{expressions}");
        }
    }
}
