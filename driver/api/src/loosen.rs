//! Schemas of CustomResourceDefinitions, as the chart installs them.

use serde_json::Value;

/// Removes everything but types and descriptions from the derived schema. For a missing field the chart's policy says
/// what to write; `required` would only name the field. A default would appear in every status.
pub(crate) fn loosen(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    for name in ["required", "title", "default"] {
        fields.remove(name);
    }
    // The API server warns of formats that it does not know.
    let is_unsigned = |format: &Value| format.as_str().is_some_and(|format| format.starts_with("uint"));
    if fields.get("format").is_some_and(is_unsigned) {
        fields.remove("format");
    }
    // kube treats a schema without a type as optional.
    if fields.contains_key("x-kubernetes-int-or-string") {
        fields.remove("nullable");
    }
    if let Some(properties) = fields.get_mut("properties").and_then(Value::as_object_mut) {
        properties.values_mut().for_each(loosen);
    }
    fields.get_mut("items").into_iter().for_each(loosen);
    fields.get_mut("additionalProperties").into_iter().for_each(loosen);
}
