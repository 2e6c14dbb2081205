//! Reads what `vgpu-driver-limit check` prints, a [`Reading`] a line: the limit of each container that it read back from the
//! driver. Pure.
//!
//! How it fails: a line that is no such object, or has a value that cannot be, is refused by itself, and the share of
//! its container counts as not read back. Lines beyond [`MOST_LINES`] are not read.

use crate::dra::share::ShareKey;
use crate::text::printable;
use vgpu_node::driver_limit::{Reading, State};

/// More than a node can have: kubelet allows 250 pods, and a pod few containers with GPUs.
const MOST_LINES: usize = 4096;
const LONGEST_LINE: usize = 8192;
/// UIDs of claims, names of shares, UUIDs of GPUs.
const LONGEST_NAME: usize = 128;
const LONGEST_PATH: usize = 4096;
/// The path of a cgroup that systemd made has nearly 200 letters, and reasons begin with one.
const LONGEST_REASON: usize = 600;

/// The whole answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    pub readings: Vec<Reading>,
    /// The first line that was refused, and why.
    pub refused: Option<String>,
}

/// Reads the answer.
#[must_use]
pub fn parse(output: &[u8]) -> Answer {
    let mut answer = Answer::default();
    let lines = output.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    for (number, line) in lines.enumerate() {
        let reading = match number < MOST_LINES {
            true => reading(line),
            false => Err(format!("more than {MOST_LINES} lines")),
        };
        match reading {
            Ok(reading) => answer.readings.push(reading),
            Err(why) => {
                answer.refused.get_or_insert(format!("line {}: {why}", number + 1));
            }
        }
        if number >= MOST_LINES {
            break;
        }
    }
    answer
}

fn reading(line: &[u8]) -> Result<Reading, String> {
    if line.len() > LONGEST_LINE {
        return Err(format!("longer than {LONGEST_LINE} bytes"));
    }
    let read: Reading = serde_json::from_slice(line).map_err(|error| printable(&error.to_string(), LONGEST_REASON))?;
    for (field, value) in [("claim", &read.claim), ("share", &read.share), ("gpu", &read.gpu)] {
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        if value.is_empty() || value.len() > LONGEST_NAME || !value.chars().all(is_name) {
            return Err(format!("{field} is no name: {}", printable(value, 64)));
        }
    }
    let is_path = read.cgroup.starts_with('/') && read.cgroup.len() <= LONGEST_PATH;
    if !is_path || read.cgroup.split('/').any(|part| part == "..") || read.cgroup.contains(char::is_control) {
        return Err(format!("cgroup is no path: {}", printable(&read.cgroup, 64)));
    }
    if read.state != State::Failed && matches!(read.hard, 0 | u64::MAX) {
        return Err(format!("hard is no limit: {}", read.hard));
    }
    let reason = printable(&read.reason, LONGEST_REASON);
    Ok(Reading { reason, ..read })
}

/// Returns true if the reading is about this share.
#[must_use]
pub fn is_of(reading: &Reading, (claim, share): &ShareKey) -> bool {
    (&reading.claim, &reading.share) == (claim, share)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use vgpu_node::driver_limit::PodLimit;

    fn line() -> Value {
        json!({"claim": "u1", "share": "s1", "gpu": "GPU-1", "cgroup": "/kubepods/pod1/c1", "hard": 100, "used": 7,
            "state": "held", "reason": "", "pod": "held"})
    }

    fn with(field: &str, value: Value) -> String {
        let mut line = line();
        line[field] = value;
        line.to_string()
    }

    #[test]
    fn each_line_is_a_share_of_a_container() {
        let again = with("state", json!("set-again")).replace("\"reason\":\"\"", "\"reason\":\"hard was\\n max\"");
        let answer = parse(format!("{}\n\n{again}\n", line()).as_bytes());
        assert_eq!(answer.refused, None);
        let held = Reading {
            claim: "u1".into(),
            share: "s1".into(),
            gpu: "GPU-1".into(),
            cgroup: "/kubepods/pod1/c1".into(),
            hard: 100,
            used: 7,
            state: State::Held,
            reason: String::new(),
            pod: PodLimit::Held,
        };
        let set_again = Reading {
            state: State::SetAgain,
            reason: "hard was  max".into(),
            ..held.clone()
        };
        assert_eq!(answer.readings, [held, set_again]);
        assert_eq!(parse(b""), Answer::default());
    }

    #[test]
    fn a_reason_behind_a_path_of_systemd_is_whole() {
        let (pod, id) = ("f81d4fae_7dec_11d0_a765_00a0c91e6bf6", "0123456789abcdef".repeat(4));
        let slices = "kubepods.slice/kubepods-burstable.slice";
        let cgroup = format!("/{slices}/kubepods-burstable-pod{pod}.slice/cri-containerd-{id}.scope");
        let reason = format!("{cgroup}: hard was max, not 17179869184 bytes");
        let answer = parse(with("reason", json!(reason)).as_bytes());
        assert_eq!(answer.readings[0].reason, reason);
    }

    #[test]
    fn a_line_that_cannot_be_is_refused_alone() {
        let endless = "x".repeat(LONGEST_LINE);
        for (bad, why) in [
            ("x".to_owned(), "expected value"),
            ("[]".into(), "invalid length"),
            ("{}".into(), "missing field"),
            (with("claim", json!("../u1")), "claim is no name: ../u1"),
            (with("share", json!("")), "share is no name"),
            (with("gpu", json!("GPU 1\u{1b}")), "gpu is no name: GPU 1"),
            (with("cgroup", json!("kubepods")), "cgroup is no path"),
            (with("cgroup", json!("/a/../b")), "cgroup is no path"),
            (with("cgroup", json!("/a\nb")), "cgroup is no path: /a b"),
            (with("hard", json!(-1)), "invalid value"),
            (with("hard", json!(1.5)), "invalid type"),
            (with("hard", json!(0)), "hard is no limit: 0"),
            (with("hard", json!(u64::MAX)), "hard is no limit"),
            (with("used", json!("7")), "invalid type"),
            (with("state", json!("Held")), "unknown variant"),
            (with("pod", json!(null)), "expected value"),
            (line().to_string().replacen('{', "{\"used\":1,", 1), "duplicate field"),
            (with("reason", json!(endless)), "longer than"),
        ] {
            let text = format!("{bad}\n{}\n", line());
            let answer = parse(text.as_bytes());
            assert_eq!(answer.readings.len(), 1, "{bad}");
            let refused = answer.refused.unwrap_or_default();
            assert!(
                refused.starts_with("line 1: ") && refused.contains(why),
                "{refused}: {why}"
            );
            assert!(refused.len() < 400 && !refused.contains(char::is_control), "{refused}");
        }
        let latin = [line().to_string().as_bytes(), b"\n\xff\xfe\n"].concat();
        assert_eq!(parse(&latin).readings.len(), 1);
        let many = format!("{}\n", line()).repeat(MOST_LINES + 5);
        let answer = parse(many.as_bytes());
        assert_eq!(answer.readings.len(), MOST_LINES);
        assert!(answer.refused.is_some_and(|why| why.contains("more than")));
    }

    #[test]
    fn any_bytes_are_read() {
        use proptest::prelude::*;
        let text = prop::string::string_regex("[\\x00-\\x7f{}\":,a-z0-9\\n]{0,400}").expect("a pattern");
        proptest!(|(text in text, bytes in prop::collection::vec(any::<u8>(), 0..400))| {
            drop(parse(text.as_bytes()));
            drop(parse(&bytes));
        });
    }
}
