//! CEL selectors for the GPUs that a request allows. Text of a user reaches CEL only as a literal.

use vgpu_api::DRIVER_NAME;

use crate::literal::literal;
use crate::request::Devices;

/// A list as a CEL literal.
fn list(items: &[String]) -> String {
    let items: Vec<String> = items.iter().map(|item| literal(item)).collect();
    format!("[{}]", items.join(", "))
}

/// The selectors, each below Kubernetes' 10 KiB. None where every GPU is allowed.
pub(crate) fn selectors(devices: &Devices) -> Vec<String> {
    let uuid = format!(r#"device.attributes["{DRIVER_NAME}"].uuid"#);
    let model = format!(r#"device.attributes["{DRIVER_NAME}"].productName.lowerAscii()"#);
    let parts = [
        (&devices.use_uuids, "", format!("{uuid} in ITEMS")),
        (&devices.not_uuids, "!", format!("({uuid} in ITEMS)")),
        (
            &devices.use_types,
            "",
            format!("ITEMS.exists(part, {model}.contains(part))"),
        ),
        (
            &devices.not_types,
            "!",
            format!("ITEMS.exists(part, {model}.contains(part))"),
        ),
    ];
    parts
        .into_iter()
        .filter(|(items, ..)| !items.is_empty())
        .map(|(items, not, text)| format!("{not}{}", text.replace("ITEMS", &list(items))))
        .collect()
}
