//! What a watched kind tells the allocator's index, and what is kept of it besides.

use std::hash::Hash;

use vgpu_allocator::Event;
use vgpu_allocator::model::{DeviceClass, DeviceTaintRule, Node, NodeSelector, ResourceClaim, ResourceSlice};
use vgpu_api::{DRIVER_NAME, capacity, device_type};
use vgpu_quantity::Quantity;

use crate::cluster::World;
use crate::convert;
use crate::model::{Class, Key, Pod};
use crate::specs::Asked;

/// An object of a watch.
pub trait Object: Sized {
    type Id: Clone + Eq + Hash;
    type Kept;

    fn id(&self) -> Self::Id;

    /// Takes the object in. One that is known already is replaced.
    fn take(self, world: &mut World) -> Self::Kept;

    fn gone(id: &Self::Id, world: &mut World);
}

/// What is kept of a claim: ten thousand of them cost what they hold, which the index has, and little more.
#[derive(Debug)]
pub enum Claim {
    Waiting(Asked),
    /// Where the pods that use it can run, if it says so.
    Allocated(Option<Box<NodeSelector>>),
}

/// What one slice of our driver publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OurDevices {
    pub count: usize,
    /// The memory of its largest GPU in bytes, 0 without one.
    pub largest: u64,
}

impl Object for Pod {
    type Id = Key;
    type Kept = Self;

    fn id(&self) -> Key {
        self.key.clone()
    }

    fn take(self, _: &mut World) -> Self {
        self
    }

    fn gone(_: &Key, _: &mut World) {}
}

impl Object for Node {
    type Id = String;
    type Kept = ();

    fn id(&self) -> String {
        self.metadata.name.clone()
    }

    fn take(self, world: &mut World) {
        world.tell(Event::Node(self));
    }

    fn gone(id: &String, world: &mut World) {
        world.tell(Event::NodeGone { name: id.clone() });
    }
}

impl Object for DeviceClass {
    type Id = String;
    type Kept = Class;

    fn id(&self) -> String {
        self.metadata.name.clone()
    }

    fn take(self, world: &mut World) -> Class {
        let class = convert::class(&self);
        world.tell(Event::Class(self));
        class
    }

    fn gone(id: &String, world: &mut World) {
        world.tell(Event::ClassGone { name: id.clone() });
    }
}

impl Object for ResourceSlice {
    type Id = String;
    type Kept = Option<OurDevices>;

    fn id(&self) -> String {
        self.metadata.name.clone()
    }

    fn take(self, world: &mut World) -> Option<OurDevices> {
        let ours = (self.spec.driver == DRIVER_NAME).then(|| OurDevices::of(&self));
        world.tell(Event::Slice(self));
        ours
    }

    fn gone(id: &String, world: &mut World) {
        world.tell(Event::SliceGone { name: id.clone() });
    }
}

impl Object for ResourceClaim {
    type Id = String;
    type Kept = Claim;

    fn id(&self) -> String {
        self.key()
    }

    fn take(mut self, world: &mut World) -> Claim {
        let kept = match &mut self.status.allocation {
            Some(allocation) => Claim::Allocated(allocation.node_selector.take().map(Box::new)),
            None => Claim::Waiting(world.specs.share(std::mem::take(&mut self.spec))),
        };
        world.tell(Event::Claim(self));
        kept
    }

    fn gone(id: &String, world: &mut World) {
        world.tell(Event::ClaimGone { key: id.clone() });
    }
}

/// The index takes all rules at once, so its table's owner tells it.
impl Object for DeviceTaintRule {
    type Id = String;
    type Kept = Self;

    fn id(&self) -> String {
        self.metadata.name.clone()
    }

    fn take(self, _: &mut World) -> Self {
        self
    }

    fn gone(_: &String, _: &mut World) {}
}

impl OurDevices {
    fn of(slice: &ResourceSlice) -> Self {
        let devices = &slice.spec.devices;
        let gpus = devices.iter().filter(|device| {
            let of_type = device.attributes.get(device_type::ATTRIBUTE);
            of_type.and_then(|value| value.text()) == Some(device_type::GPU)
        });
        let memory = gpus.filter_map(|gpu| gpu.capacity.get(capacity::MEMORY));
        let bytes = memory.filter_map(|memory| Quantity::whole_away_from_zero(&memory.value));
        Self {
            count: devices.len(),
            largest: bytes.max().and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0),
        }
    }
}
