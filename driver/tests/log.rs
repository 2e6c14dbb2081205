//! The controller's log, as a log collector reads it.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

/// Nobody answers at this address; before that matters, the program logs that it runs.
const KUBECONFIG: &str = r#"{"apiVersion": "v1", "kind": "Config", "current-context": "c",
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}], "users": [{"name": "u", "user": {}}]}"#;

#[test]
fn a_log_that_is_no_terminal_has_no_colours() {
    let file = std::env::temp_dir().join(format!("vgpu-controller-log-{}", std::process::id()));
    std::fs::write(&file, KUBECONFIG).expect("written");
    let mut controller = Command::new(env!("CARGO_BIN_EXE_vgpu-controller"))
        .args(["--http-address=127.0.0.1:0"])
        .env("KUBECONFIG", &file)
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let mut line = String::new();
    let mut log = BufReader::new(controller.stderr.take().expect("piped"));
    log.read_line(&mut line).expect("a line");
    controller.kill().expect("killed");
    controller.wait().expect("ended");
    std::fs::remove_file(&file).expect("removed");
    assert!(line.contains("vgpu-controller") && line.contains(" runs"), "{line:?}");
    assert!(!line.contains('\u{1b}'), "{line:?}");
}
