//! The container whose state the runtime passes. Nothing else of it is read: its configuration has what the pod's author wrote.

use std::io::Read;

use vgpu_hook::state::{Damage, State};

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Container {
    pub(crate) id: String,
    /// The container's first process, which is in the container's cgroup.
    pub(crate) pid: u32,
}

#[derive(Debug, thiserror::Error)]
#[error("standard input: {0}; it must be the container's state, as a runtime passes it to createRuntime hooks")]
pub struct Error(#[from] Damage);

impl Container {
    pub(crate) fn read(stdin: impl Read) -> Result<Self, Error> {
        Ok(Self::parse(stdin)?)
    }

    fn parse(stdin: impl Read) -> Result<Self, Damage> {
        let state = State::read(stdin)?;
        if !is_id(&state.id) {
            let wanted = "letters, digits, '.', '_', '+' and '-'";
            return Err(Damage::bad("id", state.value("id"), wanted));
        }
        // The first process of the machine is never a container's. It is what a hook of another stage is told, where
        // the number is that of the container's PID namespace.
        let pid = state.value("pid").as_u64().and_then(|pid| u32::try_from(pid).ok());
        let wanted = "the number of the container's first process";
        let pid = pid.filter(|pid| *pid > 1);
        let pid = pid.ok_or_else(|| Damage::bad("pid", state.value("pid"), wanted))?;
        Ok(Self { id: state.id, pid })
    }
}

/// What runc accepts. It becomes a part of a file's name.
fn is_id(id: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'+' | b'-');
    id.bytes().all(known) && !id.starts_with('.')
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
        for (state, expected) in [
            ("", "not JSON"),
            ("{", "not JSON"),
            (r#"{"pid": 7}"#, "has no text in id"),
            (r#"{"id": "a/../b", "pid": 7}"#, "id is \"a/../b\""),
            (r#"{"id": "..", "pid": 7}"#, "id is \"..\""),
            (r#"{"id": "a\nb", "pid": 7}"#, "id is \"a\\nb\""),
            (r#"{"id": "a"}"#, "pid is null"),
            (r#"{"id": "a", "pid": "7"}"#, "pid is \"7\""),
            (r#"{"id": "a", "pid": 0}"#, "pid is 0"),
            (r#"{"id": "a", "pid": 1}"#, "pid is 1"),
            (r#"{"id": "a", "pid": 4294967297}"#, "pid is 4294967297"),
        ] {
            let error = Container::read(state.as_bytes()).expect_err(state).to_string();
            assert!(error.contains(expected) && !error.contains('\n'), "{state}: {error}");
        }
    }
}
