//! The chart's CustomResourceDefinitions match the types.

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

/// `kubectl explain` has a text for each field, and our status fields can only be written through `/status`.
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

/// The schema that a path of kubectl's leads to, such as `.status.gpus[*].device`.
fn at_path<'a>(crd: &'a Value, path: &str) -> Option<&'a Value> {
    // A filter, as `[?(@.type=="Ready")]`, has dots of its own.
    let plain = match path.split_once("[?(") {
        Some((before, rest)) => format!("{before}[*]{}", rest.split_once(")]")?.1),
        None => path.to_owned(),
    };
    let mut schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    for part in plain.strip_prefix('.')?.split('.') {
        let name = part.strip_suffix("[*]");
        schema = schema["properties"].get(name.unwrap_or(part))?;
        if name.is_some() {
            schema = schema.get("items")?;
        }
    }
    Some(schema)
}

/// k9s' views and kubectl's columns name fields that exist.
#[test]
fn columns_and_views_name_fields_of_the_kinds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/dashboards");
    let read =
        |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let kinds: Vec<Value> = crd::all().into_iter().chain(usage::crd::all()).collect();
    let views: Value = serde_saphyr::from_str(&read("k9s-views.yaml")).expect("YAML");
    let mut checked = 0;
    for (key, view) in views["views"].as_object().expect("views") {
        let plural = key.strip_prefix("dra.vgpu/v1alpha1/").expect("our group and version");
        let columns = read(&format!("columns/{plural}.txt"));
        let [names, paths] = columns.lines().collect::<Vec<_>>()[..] else {
            panic!("columns/{plural}.txt: two lines, of names and of paths");
        };
        assert_eq!(
            names.split_whitespace().count(),
            paths.split_whitespace().count(),
            "columns/{plural}.txt: a path for each name"
        );
        let crd = kinds
            .iter()
            .find(|crd| crd["spec"]["names"]["plural"] == plural)
            .expect(plural);
        let columns = view["columns"].as_array().expect("columns");
        let of_view = columns
            .iter()
            .filter_map(|column| column.as_str()?.split_once(':'))
            .map(|(_, path)| path);
        for path in of_view
            .chain(paths.split_whitespace())
            .filter(|path| !path.starts_with(".metadata."))
        {
            assert!(at_path(crd, path).is_some(), "{plural}: {path}: no such field");
            checked += 1;
        }
    }
    assert!(checked > 40, "{checked} paths");
}
