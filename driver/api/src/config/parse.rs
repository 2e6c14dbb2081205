//! Parses JSON to [`VgpuConfig`], and refuses everything unknown.
//!
//! If a field occurs twice, the last occurrence is used, as in the API server's own admission policies.

use serde_json::{Map, Value};

use super::{
    AllocationPolicy, Capabilities, Capability, ComputePolicy, ConfigError, Dialect, MemoryEnforcement, MemoryPolicy,
    Priority, Sharing, VgpuConfig, Words,
};
use crate::request::HOST_MEMORY_MAX;
use crate::{CONFIG_API_VERSION, CONFIG_KIND};

const FIELDS: &[&str] = &[
    "apiVersion",
    "kind",
    "computePolicy",
    "priority",
    "memoryPolicy",
    "memoryEnforcement",
    "allocationPolicy",
    "sharing",
    "reportAs",
    "driverCapabilities",
];
/// A device without a limit, in the words of messages.
pub(super) const AN_EXCLUSIVE_GPU: &str = "an Exclusive GPU";

const MEMORY_FIELDS: &[&str] = &["type", "hostMemory"];

/// Reads opaque parameters; `at` is their path, for example `spec.devices.config[0].opaque.parameters`.
pub fn parse(at: &str, parameters: &Value) -> Result<VgpuConfig, ConfigError> {
    let fields = object(at, parameters)?;
    exactly(at, fields, "apiVersion", CONFIG_API_VERSION)?;
    exactly(at, fields, "kind", CONFIG_KIND)?;
    known(at, fields, FIELDS)?;
    let config = VgpuConfig {
        compute_policy: word::<ComputePolicy>(at, fields, "computePolicy")?,
        priority: word::<Priority>(at, fields, "priority")?,
        memory_policy: fields
            .get("memoryPolicy")
            .map(|v| memory_policy(&format!("{at}.memoryPolicy"), v))
            .transpose()?,
        memory_enforcement: word::<MemoryEnforcement>(at, fields, "memoryEnforcement")?,
        allocation_policy: word::<AllocationPolicy>(at, fields, "allocationPolicy")?,
        sharing: word::<Sharing>(at, fields, "sharing")?,
        report_as: word::<Dialect>(at, fields, "reportAs")?,
        driver_capabilities: fields
            .get("driverCapabilities")
            .map(|v| capabilities(&format!("{at}.driverCapabilities"), v))
            .transpose()?,
    };
    // Every claim with it would be refused.
    let is_exclusive = config.sharing == Some(Sharing::Exclusive);
    if is_exclusive && config.memory_enforcement == Some(MemoryEnforcement::Require) {
        return Err(ConfigError::RequireWithoutLimit {
            at: format!("{at}.memoryEnforcement"),
            what: AN_EXCLUSIVE_GPU,
        });
    }
    Ok(config)
}

/// Like [`parse`], from bytes.
pub fn parse_slice(at: &str, parameters: &[u8]) -> Result<VgpuConfig, ConfigError> {
    let value = serde_json::from_slice(parameters).map_err(|e| ConfigError::NotJson {
        at: at.to_owned(),
        reason: e.to_string(),
    })?;
    parse(at, &value)
}

/// An empty list is refused: no program could work without any capability, so it is probably a mistake.
fn capabilities(at: &str, value: &Value) -> Result<Capabilities, ConfigError> {
    let entries = value.as_array().ok_or_else(|| wrong_type(at, value, "a list"))?;
    if !(1..=Capability::ALL.len()).contains(&entries.len()) {
        return Err(ConfigError::BadCount {
            at: at.to_owned(),
            count: entries.len(),
            allowed: words::<Capability>(),
        });
    }
    let entries = entries.iter().enumerate();
    let members = entries.map(|(index, entry)| one_word::<Capability>(format!("{at}[{index}]"), entry));
    Ok(Capabilities::of(&members.collect::<Result<Vec<_>, _>>()?))
}

fn memory_policy(at: &str, value: &Value) -> Result<MemoryPolicy, ConfigError> {
    const TYPES: &str = "Hard, Oversubscribe";
    let fields = object(at, value)?;
    known(at, fields, MEMORY_FIELDS)?;
    let type_at = format!("{at}.type");
    let host_at = format!("{at}.hostMemory");
    let host_memory = fields.get("hostMemory");
    match text(
        &type_at,
        fields.get("type").ok_or(ConfigError::Missing {
            at: type_at.clone(),
            expected: "Hard",
        })?,
    )? {
        "Hard" if host_memory.is_some() => Err(ConfigError::HostMemoryWithHard { at: host_at }),
        "Hard" => Ok(MemoryPolicy::Hard),
        "Oversubscribe" => {
            let written = text(
                &host_at,
                host_memory.ok_or(ConfigError::HostMemoryMissing { at: host_at.clone() })?,
            )?;
            let bytes = vgpu_quantity::whole(written).map_err(|reason| ConfigError::BadQuantity {
                at: host_at.clone(),
                reason,
            })?;
            match u64::try_from(bytes) {
                Ok(host_memory) if host_memory > HOST_MEMORY_MAX => Err(ConfigError::TooMuch {
                    at: host_at,
                    value: written.to_owned(),
                }),
                Ok(host_memory) if host_memory > 0 => Ok(MemoryPolicy::Oversubscribe { host_memory }),
                _ => Err(ConfigError::NotPositive {
                    at: host_at,
                    value: written.to_owned(),
                }),
            }
        }
        other => Err(ConfigError::BadValue {
            at: type_at,
            value: other.to_owned(),
            allowed: TYPES.to_owned(),
        }),
    }
}

fn object<'a>(at: &str, value: &'a Value) -> Result<&'a Map<String, Value>, ConfigError> {
    value.as_object().ok_or_else(|| wrong_type(at, value, "an object"))
}

fn text<'a>(at: &str, value: &'a Value) -> Result<&'a str, ConfigError> {
    value.as_str().ok_or_else(|| wrong_type(at, value, "a string"))
}

fn wrong_type(at: &str, value: &Value, expected: &'static str) -> ConfigError {
    let found = match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    };
    ConfigError::WrongType {
        at: at.to_owned(),
        found,
        expected,
    }
}

fn exactly(at: &str, fields: &Map<String, Value>, field: &str, expected: &'static str) -> Result<(), ConfigError> {
    let at = format!("{at}.{field}");
    let Some(value) = fields.get(field) else {
        return Err(ConfigError::Missing { at, expected });
    };
    match text(&at, value)? {
        value if value == expected => Ok(()),
        value => Err(ConfigError::WrongVersion {
            at,
            value: value.to_owned(),
            expected,
        }),
    }
}

fn known(at: &str, fields: &Map<String, Value>, known: &'static [&'static str]) -> Result<(), ConfigError> {
    match fields.keys().find(|key| !known.contains(&key.as_str())) {
        None => Ok(()),
        Some(key) => Err(ConfigError::UnknownField {
            at: field(at, key),
            known: known.join(", "),
            suggestion: known.iter().copied().find(|name| same_letters(name, key)),
        }),
    }
}

/// The path of a field whose name the user chose.
fn field(at: &str, name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_./-".contains(c);
    if (1..=64).contains(&name.len()) && name.chars().all(plain) {
        format!("{at}.{name}")
    } else {
        format!("{at}[{}]", vgpu_quantity::quoted(name))
    }
}

/// Returns true if two names differ only in case, hyphens and underscores.
fn same_letters(a: &str, b: &str) -> bool {
    let letters = |s: &str| {
        s.chars()
            .filter(char::is_ascii_alphabetic)
            .map(|c| c.to_ascii_lowercase())
            .collect::<Vec<_>>()
    };
    letters(a) == letters(b)
}

fn word<T: Words>(at: &str, fields: &Map<String, Value>, field: &str) -> Result<Option<T>, ConfigError> {
    let Some(value) = fields.get(field) else {
        return Ok(None);
    };
    one_word(format!("{at}.{field}"), value).map(Some)
}

fn one_word<T: Words>(at: String, value: &Value) -> Result<T, ConfigError> {
    let written = text(&at, value)?;
    match T::WORDS.iter().find(|(word, _)| *word == written) {
        Some((_, value)) => Ok(*value),
        None => Err(ConfigError::BadValue {
            at,
            value: written.to_owned(),
            allowed: words::<T>(),
        }),
    }
}

fn words<T: Words>() -> String {
    T::WORDS.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    const AT: &str = "spec.devices.config[0].opaque.parameters";

    fn with(fields: Value) -> Value {
        let mut object = json!({"apiVersion": CONFIG_API_VERSION, "kind": CONFIG_KIND});
        object
            .as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        object
    }

    #[test]
    fn an_empty_config_says_nothing() {
        assert_eq!(parse(AT, &with(json!({}))), Ok(VgpuConfig::default()));
    }

    #[test]
    fn every_field_is_read() {
        let written = with(json!({
            "computePolicy": "Unlimited", "priority": "High", "allocationPolicy": "whole-gpus", "sharing": "Exclusive",
            "memoryPolicy": {"type": "Oversubscribe", "hostMemory": "10Gi"}, "reportAs": "volcano-vgpu",
            "driverCapabilities": ["graphics", "compute"], "memoryEnforcement": "Prefer",
        }));
        let expected = VgpuConfig {
            compute_policy: Some(ComputePolicy::Unlimited),
            priority: Some(Priority::High),
            memory_policy: Some(MemoryPolicy::Oversubscribe { host_memory: 10 << 30 }),
            memory_enforcement: Some(MemoryEnforcement::Prefer),
            allocation_policy: Some(AllocationPolicy::WholeGpus),
            sharing: Some(Sharing::Exclusive),
            report_as: Some(Dialect::VolcanoVgpu),
            driver_capabilities: Some(Capabilities::of(&[Capability::Compute, Capability::Graphics])),
        };
        assert_eq!(parse(AT, &written), Ok(expected.clone()));
        assert_eq!(parse_slice(AT, written.to_string().as_bytes()), Ok(expected));
    }

    #[test]
    fn every_word_is_read_back_as_it_is_written() {
        fn check<T: Words + std::fmt::Debug>(field: &str) {
            for (word, value) in T::WORDS {
                assert_eq!(value.word(), *word);
                let fields = with(json!({field: word}));
                assert_eq!(
                    super::word::<T>(AT, fields.as_object().unwrap(), field),
                    Ok(Some(*value))
                );
            }
        }
        check::<ComputePolicy>("computePolicy");
        check::<Priority>("priority");
        check::<MemoryEnforcement>("memoryEnforcement");
        check::<AllocationPolicy>("allocationPolicy");
        check::<Sharing>("sharing");
        check::<Dialect>("reportAs");
    }

    /// Each bad config with what its message must say: the field's path, and what to do. Objects with fields other than
    /// these two get the right apiVersion and kind.
    const REFUSED: &str = r#""text" |  | an object
null |  | an object
{} | .apiVersion | dra.vgpu/v1alpha1
{"apiVersion": "dra.vgpu/v2", "kind": "VgpuConfig"} | .apiVersion | dra.vgpu/v1alpha1
{"apiVersion": "dra.vgpu/v1alpha1"} | .kind | VgpuConfig
{"apiVersion": "dra.vgpu/v1alpha1", "kind": "GpuConfig"} | .kind | VgpuConfig
{"computepolicy": "Balanced"} | .computepolicy | did you mean computePolicy?
{"metadata": {}} | .metadata | use one of apiVersion, kind
{"computePolicy": "guaranteed"} | .computePolicy | Guaranteed, Balanced, Unlimited
{"computePolicy": 1} | .computePolicy | a string
{"computePolicy": null} | .computePolicy | is null
{"priority": "Medium"} | .priority | Low, High
{"memoryEnforcement": "require"} | .memoryEnforcement | Prefer, Require
{"memoryEnforcement": true} | .memoryEnforcement | a string
{"memoryEnforcement": "Require", "sharing": "Exclusive"} | .memoryEnforcement | an Exclusive GPU has no limit; remove the field
{"allocationPolicy": "Binpack"} | .allocationPolicy | binpack, spread
{"reportAs": "HAMi"} | .reportAs | hami, koordinator, volcano
{"sharing": ["Shared"]} | .sharing | is a list
{"driverCapabilities": "compute"} | .driverCapabilities | is a string, not a list
{"driverCapabilities": []} | .driverCapabilities | has 0 entries; name one to four of compute, utility, video, graphics
{"driverCapabilities": ["compute", "compute", "compute", "compute", "compute"]} | .driverCapabilities | has 5 entries
{"driverCapabilities": ["compute", "display"]} | .driverCapabilities[1] | compute, utility, video, graphics
{"driverCapabilities": [1]} | .driverCapabilities[0] | a string
{"memoryPolicy": "Hard"} | .memoryPolicy | an object
{"memoryPolicy": {}} | .memoryPolicy.type | Hard
{"memoryPolicy": {"type": "Soft"}} | .memoryPolicy.type | Hard, Oversubscribe
{"memoryPolicy": {"type": "Hard", "limit": 1}} | .memoryPolicy.limit | type, hostMemory
{"memoryPolicy": {"type": "Hard", "hostMemory": "1Gi"}} | .memoryPolicy.hostMemory | contradicts
{"memoryPolicy": {"type": "Oversubscribe"}} | .memoryPolicy.hostMemory | is needed
{"memoryPolicy": {"type": "Oversubscribe", "hostMemory": 10}} | .memoryPolicy.hostMemory | a string
{"memoryPolicy": {"type": "Oversubscribe", "hostMemory": "0"}} | .memoryPolicy.hostMemory | not positive
{"memoryPolicy": {"type": "Oversubscribe", "hostMemory": "2Pi"}} | .memoryPolicy.hostMemory | "2Pi" is more than 1Pi
{"memoryPolicy": {"type": "Oversubscribe", "hostMemory": "-1Gi"}} | .memoryPolicy.hostMemory | not positive
{"memoryPolicy": {"type": "Oversubscribe", "hostMemory": "10GB"}} | .memoryPolicy.hostMemory | did you mean 10Gi?"#;

    #[test]
    fn what_is_not_understood_is_refused_with_its_path() {
        for row in REFUSED.lines() {
            let cells: Vec<&str> = row.split(" | ").collect();
            let (written, path, advice) = (serde_json::from_str::<Value>(cells[0]).expect(row), cells[1], cells[2]);
            let written = match written.as_object() {
                Some(fields) if !fields.is_empty() && !fields.contains_key("apiVersion") => with(written),
                _ => written,
            };
            let message = parse(AT, &written).expect_err(&written.to_string()).to_string();
            assert!(message.starts_with(&format!("{AT}{path}: ")), "{written}: {message}");
            assert!(message.contains(advice), "{written}: {message}");
        }
        assert!(parse_slice(AT, b"{").unwrap_err().to_string().contains("not JSON"));
        assert!(
            parse_slice(AT, &[b'['; 100_000])
                .unwrap_err()
                .to_string()
                .contains("not JSON"),
            "depth is bounded"
        );
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_slice(AT, &bytes);
        }

        /// Nothing beside the known fields is ever accepted.
        #[test]
        fn an_unknown_field_never_passes(name in "[a-zA-Z]{1,12}") {
            prop_assume!(!FIELDS.contains(&name.as_str()));
            prop_assert!(
                matches!(parse(AT, &with(json!({name: "x"}))), Err(ConfigError::UnknownField { .. })), "an unknown field passed"
            );
        }
    }
}
