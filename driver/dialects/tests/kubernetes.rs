//! Compiles the selectors of the longest lists with Kubernetes' own CEL (`e2e/kubernetes-go cel`): the API server
//! refuses a template whose selector does not compile or whose estimated cost is too high.

mod support;

use serde_json::{Value, json};
use support::{annotated, request, translated};
use vgpu_cache::go;
use vgpu_dialects::{Gpu, Inventory, Memory, Request, template};

/// `CELSelectorExpressionMaxCost` of `k8s.io/api/resource/v1`.
const MOST_COST: u64 = 1_000_000;

/// Every selector of a request's template.
fn selectors(request: &Request, inventory: &Inventory) -> Vec<String> {
    fn find(value: &Value, into: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                into.extend(map.get("expression").and_then(Value::as_str).map(str::to_owned));
                map.values().for_each(|value| find(value, into));
            }
            Value::Array(items) => items.iter().for_each(|item| find(item, into)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    find(&json!(template(request, inventory)), &mut found);
    found
}

#[test]
fn kubernetes_admits_the_longest_selectors() {
    let mut kubernetes = match go::Answers::of_kubernetes("cel") {
        Ok(answers) => answers,
        Err(why) => return vgpu_skip::skip("kubernetes_admits_the_longest_selectors", &why),
    };
    let device = json!({
        "driver": "dra.vgpu", "allowMultipleAllocations": true,
        "attributes": {
            "type": {"string": "gpu"}, "uuid": {"string": "GPU-x"}, "productName": {"string": "NVIDIA H100 80GB HBM3"},
        },
        "capacity": {"memory": "81559Mi"},
    });
    let mut check = |selector: &str, expected: Option<bool>| {
        let question = json!({"expression": selector, "device": device}).to_string();
        let answer: Value = serde_json::from_str(&kubernetes.ask(&question).unwrap()).unwrap();
        let short: String = selector.chars().take(200).collect();
        assert_eq!(answer["compiles"], true, "{short}: {answer}");
        assert!(answer["estimate"].as_u64().unwrap() <= MOST_COST, "{short}: {answer}");
        assert_eq!(
            answer["result"].as_bool(),
            Some(expected.unwrap_or(true)),
            "{short}: {answer}"
        );
    };
    let long: Vec<String> = (0..128).map(|at| format!("GPU-{at:060}")).collect();
    let hostile = ["\"] || true || [\"", "a\nb\u{0}\u{1f600}\\", "'''\"\"\"", "${x}", "%s"]
        .map(str::to_owned)
        .to_vec();
    for key in ["use-gpuuuid", "nouse-gpuuuid", "use-gputype", "nouse-gputype"] {
        for list in [&long[..], &hostile, &["h100".to_owned(), "GPU-x".to_owned()]] {
            let asked = annotated(
                &format!("nvidia.com/{key}"),
                &list.join(","),
                json!({"nvidia.com/gpumem": 3000}),
            );
            let used = key.starts_with("use") == (list.len() == 2);
            for selector in selectors(&request(&translated(&asked)), &Inventory::default()) {
                // Beside GPUs that are forbidden the type is selected.
                check(&selector, Some(used || selector.contains(".type ==")));
            }
        }
    }
    let gpu = |mebibytes: u64| Gpu {
        uuid: "GPU-x".to_owned(),
        model: "x".to_owned(),
        memory: mebibytes << 20,
        parent: None,
        profile: "none".to_owned(),
    };
    let half = Request::fraction(1, Memory::Millionths(500_000), vgpu_dialects::Dialect::Kai);
    for selector in selectors(
        &half,
        &Inventory {
            gpus: vec![gpu(81_559)],
        },
    ) {
        check(&selector, Some(true));
    }
    let many = Inventory {
        gpus: (1..20).map(|at| gpu(at * 9_000)).collect(),
    };
    let groups = selectors(&half, &many);
    assert_eq!(groups.len(), 8);
    for selector in groups {
        // Every selector compiles; which one matches this device is tested in templates.rs.
        let question = json!({"expression": selector}).to_string();
        let answer: Value = serde_json::from_str(&kubernetes.ask(&question).unwrap()).unwrap();
        assert!(
            answer["compiles"] == true && answer["estimate"].as_u64().unwrap() <= MOST_COST,
            "{selector}: {answer}"
        );
    }
}
