//! Random clusters and claims.
//!
//! They are small, so that both allocators can try everything, and difficult: incomplete pools, pools with two
//! generations, devices that other claims hold, numbers that do not fit, and every field that allocation reads.

#[path = "random/board.rs"]
mod board;
#[path = "random/claims.rs"]
mod claims;
#[path = "random/numbers.rs"]
mod numbers;

use serde_json::{Value, json};

use claims::{claim, classes};
use numbers::CAPACITIES;
pub(crate) use numbers::Random;

const DRIVERS: [&str; 2] = ["driver-a", "driver-b"];
const GATES: [&str; 6] = [
    "DRAAdminAccess",
    "DRAConsumableCapacity",
    "DRADeviceBindingConditions+DRAResourceClaimDeviceStatus",
    "DRADeviceTaints",
    "DRAPartitionableDevices",
    "DRAPrioritizedList",
];

/// One case, in the form of the conformance vectors, without answers.
pub(crate) fn case(random: &mut Random) -> Value {
    let mut features: Vec<&str> = GATES.to_vec();
    if random.percent(15) {
        features.retain(|_| random.percent(70));
    }
    if random.percent(20) {
        features.push("DRAFractionalCapacityRange");
    }
    let multiple = features.contains(&"DRAConsumableCapacity");
    let mut cluster = Cluster {
        random,
        slices: Vec::new(),
        devices: Vec::new(),
        held: Vec::new(),
    };
    let has_boards = cluster.random.percent(25);
    for pool in 0..1 + cluster.random.below(if has_boards { 2 } else { 4 }) {
        match has_boards && cluster.random.percent(80) {
            true => cluster.board(pool),
            false => cluster.pool(pool),
        }
    }
    let Cluster {
        random,
        mut slices,
        devices,
        held,
    } = cluster;
    // The order of slices must not matter.
    if random.percent(50) {
        slices.reverse();
    }
    let mut dedicated = Vec::new();
    let mut shared = Vec::new();
    let mut consumed = serde_json::Map::new();
    let held = held.into_iter().map(|(path, is_multiple)| (path, is_multiple, true));
    let devices = devices
        .into_iter()
        .map(|(path, is_multiple)| (path, is_multiple, false));
    for (path, is_multiple, is_held) in devices.chain(held) {
        match if is_held { 0 } else { random.below(10) } {
            0 if !is_multiple || random.percent(20) => dedicated.push(path),
            0 | 1 if is_multiple && multiple => {
                let mut amounts = serde_json::Map::new();
                for name in CAPACITIES {
                    if random.percent(70) {
                        amounts.insert(name.into(), (*random.pick(&["1", "2", "3", "512Mi"])).into());
                    }
                }
                shared.push(format!("{path}/share"));
                if random.percent(80) {
                    consumed.insert(path, amounts.into());
                }
            }
            _ => {}
        }
    }
    let claims: Vec<Value> = (0..*random.pick(&[1, 1, 1, 2, 2, 2]))
        .map(|index| claim(random, index, multiple, has_boards))
        .collect();
    json!({
        "features": features,
        "node": {"metadata": {"name": "node-1", "labels": {"zone": "a", "gpus": "4"}}},
        "classes": classes(random, multiple),
        "slices": slices,
        "claims": claims,
        "allocatedDevices": dedicated,
        "allocatedShared": shared,
        "aggregatedCapacity": consumed,
    })
}

struct Cluster<'r> {
    random: &'r mut Random,
    slices: Vec<Value>,
    /// Paths, and whether the device is given in shares.
    devices: Vec<(String, bool)>,
    /// The same of devices that claims hold.
    held: Vec<(String, bool)>,
}

impl Cluster<'_> {
    fn pool(&mut self, index: usize) {
        let driver = *self.random.pick(&DRIVERS);
        let name = format!("pool-{index}");
        let generation = 1 + self.random.below(2);
        let count = 1 + self.random.below(2);
        let partitions = self.random.percent(25);
        let target = self.target();
        let mut all = Vec::new();
        for at in 0..count {
            all.push(self.slice(driver, &name, at, partitions, &target));
        }
        if partitions {
            let mut counters = json!({"sharedCounters": [{"name": "set", "counters": {
                "memory": {"value": self.random.quantity(true)}, "engines": {"value": self.random.pick(&["4", "7"])},
            }}]});
            merge(&mut counters, &target);
            all.push(counters);
        }
        let declared = if self.random.percent(95) {
            all.len()
        } else {
            all.len() + 1
        };
        for (at, mut spec) in all.into_iter().enumerate() {
            let old = self.random.percent(2);
            spec["driver"] = driver.into();
            spec["pool"] = json!({
                "name": name, "generation": if old { generation - 1 } else { generation }, "resourceSliceCount": declared,
            });
            let name = format!("slice-{index}-{}", (at + 7 * index) % 4);
            self.slices.push(json!({"metadata": {"name": name}, "spec": spec}));
        }
    }

    /// A GPU that is divided when claims need it.
    fn board(&mut self, index: usize) {
        let name = format!("board-{index}");
        let (counters, devices, placements) = board::board(self.random);
        let held = board::held(self.random, placements);
        let paths = held
            .into_iter()
            .map(|(device, is_shared)| (format!("driver-a/{name}/{device}"), is_shared));
        self.held.extend(paths);
        for (at, mut spec) in [counters, devices].into_iter().enumerate() {
            spec["driver"] = "driver-a".into();
            spec["nodeName"] = "node-1".into();
            spec["pool"] = json!({"name": name, "generation": 1, "resourceSliceCount": 2});
            self.slices
                .push(json!({"metadata": {"name": format!("{name}-{at}")}, "spec": spec}));
        }
    }

    fn target(&mut self) -> Value {
        let selector = |value: &str| json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [value]}]}]});
        match self.random.below(20) {
            0 => json!({"nodeName": "node-2"}),
            1 | 2 => json!({"allNodes": true}),
            3 => json!({"nodeSelector": selector("a")}),
            4 => json!({"nodeSelector": selector("b")}),
            5 => {
                json!({"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "gpus", "operator": "Gt", "values": ["3"]}]}]}})
            }
            6 | 7 => json!({"perDeviceNodeSelection": true}),
            _ => json!({"nodeName": "node-1"}),
        }
    }

    fn slice(&mut self, driver: &str, pool: &str, at: usize, partitions: bool, target: &Value) -> Value {
        let mut devices = Vec::new();
        for index in 0..self.random.below(5) {
            let name = match self.random.percent(1) {
                true => "twin".to_owned(),
                false => format!("device-{at}-{index}"),
            };
            let mut device = self.device(&name, partitions);
            if target.get("perDeviceNodeSelection").is_some() {
                let target = loop {
                    let target = self.target();
                    if target.get("perDeviceNodeSelection").is_none() {
                        break target;
                    }
                };
                merge(&mut device, &target);
            }
            let is_multiple = device.get("allowMultipleAllocations").is_some();
            self.devices.push((format!("{driver}/{pool}/{name}"), is_multiple));
            devices.push(device);
        }
        let mut spec = json!({"devices": devices});
        merge(&mut spec, target);
        spec
    }

    fn device(&mut self, name: &str, partitions: bool) -> Value {
        let random = &mut *self.random;
        let mut device = json!({"name": name, "attributes": {}, "capacity": {}});
        for (attribute, value) in [
            ("numa", json!({"int": random.below(2)})),
            ("model", json!({"string": *random.pick(&["x", "y"])})),
            ("ready", json!({"bool": random.percent(50)})),
            ("version", json!({"version": *random.pick(&["1.0.0", "2.0.0"])})),
        ] {
            if random.percent(96) {
                device["attributes"][attribute] = value;
            }
        }
        let multiple = random.percent(45);
        if multiple {
            device["allowMultipleAllocations"] = true.into();
        }
        for name in CAPACITIES {
            if random.percent(80) {
                device["capacity"][name] = capacity(random, multiple);
            }
        }
        if partitions && random.percent(85) {
            device["consumesCounters"] = json!([{"counterSet": if random.percent(98) {"set"} else {"unset"}, "counters": {
                "memory": {"value": random.quantity(false)}, "engines": {"value": *random.pick(&["1", "2", "3"])},
            }}]);
        }
        if random.percent(15) {
            device["taints"] = json!([{
                "key": "health", "value": *random.pick(&["bad", "odd"]),
                "effect": *random.pick(&["NoSchedule", "NoExecute", "None"]),
            }]);
        }
        if random.percent(10) {
            device["bindingConditions"] = json!(["ready"]);
            device["bindingFailureConditions"] = json!(["failed"]);
            device["bindsToNode"] = random.percent(50).into();
        }
        device
    }
}

fn capacity(random: &mut Random, multiple: bool) -> Value {
    let mut capacity = json!({"value": random.quantity(true)});
    if !multiple || random.percent(40) {
        return capacity;
    }
    capacity["requestPolicy"] = match random.below(4) {
        0 => json!({"default": "1", "validValues": ["1", "2", "4"]}),
        1 => json!({"default": "2", "validRange": {"min": "2", "max": "8", "step": "2"}}),
        2 => json!({"default": "1", "validRange": {"min": "1"}}),
        _ => json!({"default": "500m", "validRange": {"min": "250m", "step": "250m"}}),
    };
    capacity
}

fn merge(into: &mut Value, from: &Value) {
    if let (Value::Object(into), Value::Object(from)) = (into, from) {
        into.extend(from.clone());
    }
}
