//! Classes, claims and what they ask for.

use serde_json::{Value, json};

use super::numbers::{CAPACITIES, Random};

pub(super) fn classes(random: &mut Random, multiple: bool) -> Value {
    let selector = |text: &str| json!([{"cel": {"expression": text}}]);
    let shared = match multiple {
        true => "device.allowMultipleAllocations == true",
        false => "true",
    };
    let config = match random.percent(30) {
        true => json!([{"opaque": {"driver": "driver-a", "parameters": {"of": "class"}}}]),
        false => json!([]),
    };
    json!([
        {"metadata": {"name": "any"}, "spec": {"config": config}},
        {"metadata": {"name": "a"}, "spec": {"selectors": selector("device.driver == \"driver-a\""), "config": config}},
        {"metadata": {"name": "b"}, "spec": {"selectors": selector("device.driver == \"driver-b\"")}},
        {"metadata": {"name": "shared"}, "spec": {"selectors": selector(shared)}},
    ])
}

/// `has_boards`: the cluster has GPUs that are divided when claims need it.
pub(super) fn claim(random: &mut Random, index: usize, multiple: bool, has_boards: bool) -> Value {
    let mut names = Vec::new();
    let mut requests = Vec::new();
    for at in 0..*random.pick(&[1, 1, 1, 1, 2, 3]) {
        let name = format!("r{at}");
        names.push(name.clone());
        if random.percent(30) {
            let mut alternatives = Vec::new();
            for alternative in 0..1 + random.below(3) {
                let mut ask = ask(random, false, multiple, has_boards);
                ask["name"] = format!("s{alternative}").into();
                names.push(format!("{name}/s{alternative}"));
                alternatives.push(ask);
            }
            requests.push(json!({"name": name, "firstAvailable": alternatives}));
        } else {
            requests.push(json!({"name": name, "exactly": ask(random, true, multiple, has_boards)}));
        }
    }
    let mut devices = json!({"requests": requests});
    let some = |random: &mut Random| -> Vec<String> {
        match random.percent(50) {
            true => Vec::new(),
            false => names.iter().filter(|_| random.percent(60)).cloned().collect(),
        }
    };
    if random.percent(25) {
        let kind = *random.pick(&["matchAttribute", "distinctAttribute"]);
        let attribute = *random.pick(&[
            "driver-a/numa",
            "driver-a/model",
            "driver-a/ready",
            "driver-a/version",
            "driver-b/numa",
        ]);
        devices["constraints"] = json!([{kind: attribute, "requests": some(random)}]);
    }
    if random.percent(20) {
        let opaque = json!({"driver": "driver-a", "parameters": {"of": "claim"}});
        devices["config"] =
            json!([{"requests": some(random), "opaque": opaque}, {"requests": some(random), "opaque": opaque}]);
    }
    json!({"metadata": {"name": format!("claim-{index}"), "namespace": "ns"}, "spec": {"devices": devices}})
}

fn ask(random: &mut Random, exactly: bool, multiple: bool, has_boards: bool) -> Value {
    let mut ask = json!({
        "deviceClassName": *random.pick(&["any", "any", "any", "a", "a", "b", "shared"]),
        "allocationMode": "ExactCount",
        "count": match random.below(40) { 0 => 20, 1 => 0, 2..9 => 2, 9..12 => 3, _ => 1 },
    });
    if random.percent(12) {
        ask["allocationMode"] = "All".into();
        ask["count"] = 0.into();
    }
    if exactly && random.percent(8) {
        ask["adminAccess"] = random.percent(80).into();
    }
    if random.percent(15) {
        ask["tolerations"] = match random.below(3) {
            0 => json!([{"operator": "Exists"}]),
            1 => json!([{"key": "health", "operator": "Equal", "value": "bad", "effect": "NoSchedule"}]),
            _ => json!([{"key": "health", "operator": "Exists"}]),
        };
    }
    if multiple && random.percent(35) {
        let mut requests = serde_json::Map::new();
        for name in CAPACITIES {
            if random.percent(40) {
                requests.insert(name.into(), random.quantity(false).into());
            }
        }
        if random.percent(2) {
            requests.insert("unknown".into(), "1".into());
        }
        ask["capacity"] = json!({"requests": requests});
    }
    if random.percent(25) {
        let expression = match random.percent(1) {
            true => "noSuchVariable",
            false => *random.pick(&SELECTORS),
        };
        ask["selectors"] = json!([{"cel": {"expression": expression}}]);
    } else if has_boards && random.percent(80) {
        ask["selectors"] = json!([{"cel": {"expression": *random.pick(&PROFILES)}}]);
    }
    ask
}

/// Select instances by profile, or whether they are shared.
const PROFILES: [&str; 9] = [
    "device.attributes[\"driver-a\"].?model.orValue(\"\") == \"1g.10gb\"",
    "device.attributes[\"driver-a\"].?model.orValue(\"\") == \"1g.10gb+me\"",
    "device.attributes[\"driver-a\"].?model.orValue(\"\") == \"2g.20gb\"",
    "device.attributes[\"driver-a\"].?model.orValue(\"\") == \"3g.40gb\"",
    "device.attributes[\"driver-a\"].?model.orValue(\"\") == \"4g.40gb\"",
    "device.attributes[\"driver-a\"].?model.orValue(\"\") in [\"whole\", \"7g.80gb\"]",
    "device.attributes[\"driver-a\"].?model.orValue(\"\").startsWith(\"1g\")",
    "device.allowMultipleAllocations",
    "!device.allowMultipleAllocations",
];

/// Each uses a part of Kubernetes' library. A missing key is an error, which the first ones may cause.
const SELECTORS: [&str; 24] = [
    "device.attributes[\"driver-a\"].model == \"x\"",
    "device.capacity[\"driver-a\"].memory.compareTo(quantity(\"4\")) >= 0",
    "device.driver == \"driver-a\" && device.attributes[\"driver-a\"].numa == 1",
    "device.attributes[device.driver].version.isGreaterThan(semver(\"1.2.3\"))",
    "device.driver == \"driver-b\" || device.driver == \"driver-a\"",
    "false",
    "true",
    "!(device.driver == \"driver-b\")",
    "has(device.attributes[\"driver-a\"].model)",
    "device.attributes[\"driver-a\"].?model.orValue(\"y\") == \"y\"",
    "device.attributes[\"driver-a\"].?numa.orValue(0) in [0, 2]",
    "device.attributes[\"driver-a\"].?ready.hasValue() ? device.attributes[\"driver-a\"].ready : true",
    "device.driver.matches(\"^driver-[ab]$\")",
    "device.driver.find(\"[ab]$\") == \"a\"",
    "device.driver.split(\"-\")[1].upperAscii() == \"A\"",
    "sets.contains([\"driver-a\", \"driver-c\"], [device.driver])",
    "[1, 2, 3].sum() == 6 && [device.driver].exists(d, d.endsWith(\"a\"))",
    "cel.bind(all, device.capacity[device.driver], \"memory\" in all && all.memory.isGreaterThan(quantity(\"1\")))",
    "\"memory\" in device.capacity[device.driver] && device.capacity[device.driver].memory.add(quantity(\"1\")).asApproximateFloat() > 3.5",
    "\"memory\" in device.capacity[device.driver] && device.capacity[device.driver].memory.isInteger() && device.capacity[device.driver].memory.asInteger() % 2 == 0",
    "device.attributes[\"other\"].size() == 0",
    "device.capacity[\"driver-a\"].?cores.orValue(quantity(\"3\")).sign() == 1",
    "isURL(\"https://\" + device.driver) && url(\"https://\" + device.driver).getHost() == \"driver-a\"",
    "\"%s-%d\".format([device.driver, 1]) == \"driver-a-1\"",
];
