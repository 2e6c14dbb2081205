//! Makes a case smaller, for as long as it stays interesting.

use serde_json::Value;

/// Leaves out one part after the other, and keeps the change if the rest is still interesting.
pub(crate) fn shrink(mut case: Value, mut is_interesting: impl FnMut(&Value) -> bool) -> Value {
    let mut changed = true;
    while changed {
        changed = false;
        for path in parts(&case, String::new()) {
            let mut smaller = case.clone();
            if remove(&mut smaller, &path) && is_interesting(&smaller) {
                case = smaller;
                changed = true;
                break;
            }
        }
    }
    case
}

/// JSON pointers to all parts that can be removed, the largest first.
fn parts(value: &Value, at: String) -> Vec<String> {
    let mut parts = Vec::new();
    let children: Vec<(String, &Value)> = match value {
        Value::Array(items) => items
            .iter()
            .enumerate()
            .map(|(index, item)| (format!("{at}/{index}"), item))
            .collect(),
        Value::Object(fields) => fields
            .iter()
            .map(|(name, field)| (format!("{at}/{}", name.replace('~', "~0").replace('/', "~1")), field))
            .collect(),
        _ => Vec::new(),
    };
    for (path, _) in &children {
        parts.push(path.clone());
    }
    for (path, child) in children {
        parts.extend(self::parts(child, path));
    }
    parts
}

fn remove(value: &mut Value, path: &str) -> bool {
    let Some((parent, last)) = path.rsplit_once('/') else {
        return false;
    };
    let last = last.replace("~1", "/").replace("~0", "~");
    // Without these the case cannot be read, or means something else.
    if [
        "metadata",
        "name",
        "spec",
        "driver",
        "pool",
        "allocationMode",
        "deviceClassName",
        "count",
        "generation",
        "resourceSliceCount",
        "node",
        "claims",
        "features",
    ]
    .contains(&&*last)
    {
        return false;
    }
    match value.pointer_mut(parent) {
        Some(Value::Array(items)) => last.parse::<usize>().is_ok_and(|index| {
            items.remove(index);
            true
        }),
        Some(Value::Object(fields)) => fields.remove(&last).is_some(),
        _ => false,
    }
}
