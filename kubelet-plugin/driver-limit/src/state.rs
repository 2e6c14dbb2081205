//! Reads the container's state, which the runtime passes on standard input. Nothing else of the container is read: its
//! configuration has what the pod's author wrote.

use std::io::{self, Read};

use serde_json::Value;

/// Size limit: a state has an id, paths and annotations, and Kubernetes allows 256 KiB of annotations.
const MAX: u64 = 1 << 20;

/// Characters of an id. containerd allows 76, runc 1024.
const MAX_ID: usize = 1024;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Container {
    pub(crate) id: String,
    /// The container's first process, which is in the container's cgroup.
    pub(crate) pid: u32,
}

#[derive(Debug, thiserror::Error)]
#[error("standard input: {0}; it must be the container's state, as a runtime passes it to createRuntime hooks")]
pub struct Error(#[from] Damage);

#[derive(Debug, thiserror::Error)]
pub enum Damage {
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error("larger than {MAX} bytes")]
    TooLarge,
    #[error("not JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("id is {0:?}, not 1 to {MAX_ID} letters, digits, '.', '_', '+' and '-'")]
    Id(String),
    #[error("pid is {0}, not the number of the container's first process")]
    Pid(Value),
}

impl Container {
    pub(crate) fn read(stdin: impl Read) -> Result<Self, Error> {
        Ok(Self::parse(stdin)?)
    }

    fn parse(stdin: impl Read) -> Result<Self, Damage> {
        let mut bytes = Vec::new();
        stdin.take(MAX + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MAX {
            return Err(Damage::TooLarge);
        }
        let state: Value = serde_json::from_slice(&bytes)?;
        let id = state["id"].as_str().unwrap_or_default();
        if !is_id(id) {
            return Err(Damage::Id(id.chars().filter(|c| !c.is_control()).take(64).collect()));
        }
        // The first process of the machine is never a container's. It is what a hook of another stage is told, where
        // the number is that of the container's PID namespace.
        let pid = state["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
        let pid = pid
            .filter(|pid| *pid > 1)
            .ok_or_else(|| Damage::Pid(state["pid"].clone()))?;
        Ok(Self { id: id.to_owned(), pid })
    }
}

/// What runtimes accept. It becomes a file's name.
fn is_id(id: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'+' | b'-');
    (1..=MAX_ID).contains(&id.len()) && id.bytes().all(known) && !id.starts_with('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_names_the_first_process() {
        let state = r#"{"ociVersion": "1.1.0", "id": "c1", "status": "creating", "pid": 77, "bundle": "/b"}"#;
        let expected = Container {
            id: "c1".into(),
            pid: 77,
        };
        assert_eq!(Container::read(state.as_bytes()).expect("a state"), expected);
    }

    #[test]
    fn any_other_state_is_refused_with_the_field() {
        let long = format!(r#"{{"id": "{}", "pid": 7}}"#, "a".repeat(MAX_ID + 1));
        for (state, expected) in [
            ("", "not JSON"),
            ("{", "not JSON"),
            (r#"{"pid": 7}"#, "id is \"\""),
            (r#"{"id": "a/../b", "pid": 7}"#, "id is \"a/../b\""),
            (r#"{"id": "..", "pid": 7}"#, "id is \"..\""),
            (r#"{"id": "a\nb", "pid": 7}"#, "id is \"ab\""),
            (&long, "id is"),
            (r#"{"id": "a"}"#, "pid is null"),
            (r#"{"id": "a", "pid": "7"}"#, "pid is \"7\""),
            (r#"{"id": "a", "pid": 0}"#, "pid is 0"),
            (r#"{"id": "a", "pid": 1}"#, "pid is 1"),
            (r#"{"id": "a", "pid": 4294967297}"#, "pid is 4294967297"),
        ] {
            let error = Container::read(state.as_bytes()).expect_err(state).to_string();
            assert!(error.contains(expected) && !error.contains('\n'), "{state}: {error}");
        }
        let error = Container::read(io::repeat(b' ')).expect_err("endless").to_string();
        assert!(error.contains("larger than"), "{error}");
    }
}
