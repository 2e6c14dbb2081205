//! The chart's CustomResourceDefinitions are those of the types.

use std::path::Path;

use serde_json::Value;
use vgpu_api::quota::crd;
use vgpu_api::usage;

const UPDATE: &str = "UPDATE=1 cargo test -p vgpu-api --test crd";

/// A template of the chart: the definitions, with Helm's labels and annotation.
struct Template {
    file: &'static str,
    source: &'static str,
    /// The line that begins a condition on the chart's values, if there is one.
    begins: &'static str,
    ends: &'static str,
    /// The annotations of each definition.
    annotations: &'static str,
    crds: Vec<Value>,
}

fn templates() -> [Template; 2] {
    [
        Template {
            file: "quota-crd.yaml",
            source: "quota",
            begins: "{{- if (.Values.quota).enabled }}\n{{- include \"vgpu.quotaNeeds\" . }}\n",
            ends: "{{- end }}\n",
            annotations: "  annotations:\n    # An uninstall must not delete the quotas of all namespaces.\n    \
                          helm.sh/resource-policy: keep\n",
            crds: crd::all().to_vec(),
        },
        Template {
            file: "usage-crd.yaml",
            source: "usage",
            begins: "",
            ends: "",
            annotations: "",
            crds: usage::crd::all().to_vec(),
        },
    ]
}

impl Template {
    fn text(&self) -> String {
        let mut text = format!(
            "{{{{- /* Generated from driver/api/src/{} by `{UPDATE}`. */ -}}}}\n{}",
            self.source, self.begins
        );
        for (at, crd) in self.crds.iter().enumerate() {
            let spec = serde_saphyr::to_string(&crd["spec"]).expect("YAML");
            let spec: String = spec.lines().map(|line| format!("  {line}\n")).collect();
            let name = crd["metadata"]["name"].as_str().expect("a name");
            text += &format!(
                "{}apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata:\n  name: {name}\n  \
                 labels: {{{{- include \"vgpu.labels\" . | nindent 4 }}}}\n{}spec:\n{spec}",
                if at > 0 { "---\n" } else { "" },
                self.annotations,
            );
        }
        text + self.ends
    }
}

#[test]
fn the_chart_has_the_definitions_of_the_types() {
    for template in templates() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/helm/dra-driver-vgpu/templates");
        let (file, wanted) = (folder.join(template.file), template.text());
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&file, &wanted).expect("written");
        }
        let found = std::fs::read_to_string(&file).expect("the chart's template");
        assert!(found == wanted, "{} is stale: run `{UPDATE}`", file.display());
    }
}

/// `kubectl explain` has a text for each field, and a status of ours is written by `/status` alone.
#[test]
fn every_field_has_a_description() {
    fn visit(at: &str, schema: &Value) {
        assert!(schema["description"].is_string(), "{at} has no description");
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            visit(&format!("{at}.{name}"), field);
        }
        for inner in ["items", "additionalProperties"] {
            if schema.get(inner).is_some() {
                visit(&format!("{at}.{inner}"), &schema[inner]);
            }
        }
    }
    for crd in crd::all().into_iter().chain(usage::crd::all()) {
        let version = &crd["spec"]["versions"][0];
        let kind = crd["spec"]["names"]["kind"].as_str().expect("a kind");
        visit(kind, &version["schema"]["openAPIV3Schema"]);
        assert_eq!(version["subresources"]["status"].is_object(), kind == "VgpuQuota");
    }
}
