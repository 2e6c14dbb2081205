//! CEL selectors for the GPUs that a request allows. Text of a user reaches CEL only as a literal.

use vgpu_api::DRIVER_NAME;
use vgpu_api::device_type::{ATTRIBUTE, GPU, PROFILE};

use crate::literal::literal;
use crate::request::Devices;

/// A list as a CEL literal.
fn list(items: &[String]) -> String {
    let items: Vec<String> = items.iter().map(|item| literal(item)).collect();
    format!("[{}]", items.join(", "))
}

/// The selectors, with the attribute that has the GPU's UUID, each below Kubernetes' 10 KiB. None where every GPU is allowed.
pub(crate) fn selectors(devices: &Devices, uuid: &str) -> Vec<String> {
    let uuid = format!(r#"device.attributes["{DRIVER_NAME}"].{uuid}"#);
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

/// Selects instances with one of these profiles.
pub(crate) fn profiles(names: &[String]) -> String {
    let profile = format!(r#"device.attributes["{DRIVER_NAME}"].{PROFILE}"#);
    match names {
        [name] => format!("{profile} == {}", literal(name)),
        names => format!("{profile} in {}", list(names)),
    }
}

/// Selects GPUs and no instances.
pub(crate) fn is_gpu() -> String {
    format!(r#"device.attributes["{DRIVER_NAME}"].{ATTRIBUTE} == "{GPU}""#)
}
