//! Events in an answer: ours on a pod or claim, and any warning about a workload.

use serde_json::Value;

/// Events in an answer, the youngest ones.
const MOST: usize = 5;

/// Returns our events about an object, the youngest first.
pub(super) fn ours(events: &[Value], kind: &str, namespace: &str, name: &str) -> Vec<String> {
    let is_ours = |event: &&Value| {
        let reporter = event["reportingController"].as_str().unwrap_or_default();
        reporter.starts_with("dra.vgpu") && is_about(event, kind, namespace, name)
    };
    youngest(events.iter().filter(is_ours))
}

/// Returns warnings about an object, whoever reports them.
pub(super) fn warnings(events: &[Value], kind: &str, namespace: &str, name: &str) -> Vec<String> {
    let is_it = |event: &&Value| event["type"] == "Warning" && is_about(event, kind, namespace, name);
    youngest(events.iter().filter(is_it))
}

fn is_about(event: &Value, kind: &str, namespace: &str, name: &str) -> bool {
    let about = &event["regarding"];
    // Events of a namespace need not repeat it.
    let is_here = about["namespace"].as_str().is_none_or(|of| of == namespace);
    is_here && about["kind"] == kind && about["name"] == name
}

fn youngest<'v>(events: impl Iterator<Item = &'v Value>) -> Vec<String> {
    let mut found: Vec<(&str, String)> = events
        .map(|event| {
            let time = [
                &event["series"]["lastObservedTime"],
                &event["deprecatedLastTimestamp"],
                &event["eventTime"],
            ];
            let time = time.into_iter().find_map(Value::as_str).unwrap_or_default();
            let text = |field: &str| event[field].as_str().unwrap_or_default();
            (time, format!("{} ({time}): {}", text("reason"), text("note")))
        })
        .collect();
    found.sort_by(|one, other| other.0.cmp(one.0));
    found.into_iter().map(|(_, text)| text).take(MOST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_our_events_of_the_object_are_shown_and_the_youngest_first() {
        let event = |reporter: &str, name: &str, time: &str, note: &str| {
            json!({"reportingController": reporter, "reason": "R", "note": note, "eventTime": time, "type": "Warning",
                "regarding": {"kind": "Pod", "name": name}})
        };
        let mut series = event("dra.vgpu/controller", "a", "2026-01-01T00:00:00Z", "again");
        series["series"] = json!({"lastObservedTime": "2026-01-03T00:00:00Z"});
        let mut elsewhere = event("dra.vgpu", "a", "2026-01-05T00:00:00Z", "other namespace");
        elsewhere["regarding"]["namespace"] = "other".into();
        let events = [
            event("dra.vgpu", "a", "2026-01-02T00:00:00Z", "one"),
            series,
            event("default-scheduler", "a", "2026-01-04T00:00:00Z", "other reporter"),
            event("dra.vgpu", "b", "2026-01-04T00:00:00Z", "other pod"),
            elsewhere,
        ];
        let wanted = ["R (2026-01-03T00:00:00Z): again", "R (2026-01-02T00:00:00Z): one"];
        assert_eq!(ours(&events, "Pod", "ns", "a"), wanted);
        assert_eq!(warnings(&events, "Pod", "ns", "a").len(), 3, "whoever reports it");
        let many: Vec<Value> = (0..20).map(|_| events[0].clone()).collect();
        assert_eq!(ours(&many, "Pod", "ns", "a").len(), MOST);
    }
}
