//! A quota in a line, for `vgpu explain`.

use std::fmt;

use vgpu_api::quota::{Dimension, millionths};

use crate::status::Quota;

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VgpuQuota {} of namespace {}: ", self.name, self.namespace)?;
        if let Err(problem) = &self.spec {
            return write!(f, "refused, so no gate opens: {problem}");
        }
        let mut parts = Vec::new();
        for dimension in Dimension::ALL {
            if let Some(ceiling) = self.status.hard.of(dimension) {
                let ceiling = dimension.text(ceiling);
                let used = dimension.text(self.status.used.of(dimension));
                let whose = self.status.limited_by.get(dimension.name());
                let whose = whose.map(|whose| format!(" (by {whose})")).unwrap_or_default();
                parts.push(format!("{dimension} {used} of {ceiling} used{whose}"));
            }
        }
        if let Some(sum) = &self.status.budget {
            let state = if sum.is_spent { "spent" } else { "in budget" };
            let (used, hours) = (sum.used.hours(), millionths(sum.gpu_hours));
            let reset = sum.period_end.text();
            parts.push(format!("{used} of {hours} GPU hours used, {state}, reset at {reset}"));
        }
        if parts.is_empty() {
            parts.push("no ceiling, no budget".to_owned());
        }
        f.write_str(&parts.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_line_names_what_is_used_of_how_much() {
        let mut quota = json!({"metadata": {"name": "vgpu", "namespace": "team"}, "spec": {}, "status": {
            "hard": {"memory": "80Gi", "shares": 8}, "limitedBy": {"shares": "ResourceQuota q requests.nvidia.com/gpu"},
            "used": {"memory": "60Gi", "cores": 25, "gpus": "0.75", "shares": 3},
            "budget": {"state": "Spent", "gpuHours": "1.5", "usedGpuHours": "1.5", "usedGpuSeconds": "5400.000000000",
                "periodStart": "2026-11-24T00:00:00Z", "periodEnd": "2026-11-25T00:00:00Z", "asOf": "2026-11-24T09:00:00Z"}}});
        let read = |quota: &serde_json::Value| serde_json::from_value::<Quota>(quota.clone()).unwrap().to_string();
        assert_eq!(
            read(&quota),
            "VgpuQuota vgpu of namespace team: memory 60Gi of 80Gi used; shares 3 of 8 used (by ResourceQuota q requests.nvidia.com/gpu); 1.5 of 1.5 GPU hours used, spent, reset at 2026-11-25T00:00:00Z"
        );
        quota["spec"] = json!({"hard": {"shares": -1}});
        assert!(
            read(&quota).contains("refused, so no gate opens: spec.hard.shares"),
            "{}",
            read(&quota)
        );
    }
}
