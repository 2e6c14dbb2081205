//! Runs the example of docs/allocate.md as it is written there.

use std::path::Path;
use std::process::{Command, Output};

/// The blocks of a language in a Markdown text, in order.
fn blocks<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    let open = format!("```{language}\n");
    let parts = text.split(open.as_str()).skip(1);
    parts.map(|part| part.split("```").next().unwrap()).collect()
}

fn vgpu(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vgpu"));
    command.args(args).current_dir(folder).output().unwrap()
}

/// Without the share IDs, which are new each time.
fn without_share_ids(text: &str) -> String {
    let lines = text.lines().map(|line| match line.split_once("shareID: ") {
        Some((indent, _)) => format!("{indent}shareID: ...\n"),
        None => format!("{line}\n"),
    });
    lines.collect()
}

#[test]
fn the_documented_example_says_what_is_documented() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/allocate.md");
    let text = std::fs::read_to_string(path).unwrap();
    let ([objects], [explained, refused, allocated]) = (&blocks(&text, "yaml")[..], &blocks(&text, "text")[..]) else {
        panic!("docs/allocate.md has other blocks than this test knows");
    };
    let folder = tempfile::tempdir().unwrap();
    let write = |text: &str| std::fs::write(folder.path().join("objects.yaml"), text).unwrap();
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();

    write(objects);
    let output = vgpu(
        folder.path(),
        &["explain", "claim/train", "-n", "team", "-f", "objects.yaml"],
    );
    assert_eq!(
        (output.status.code(), said(&output.stdout)),
        (Some(1), (*explained).to_owned())
    );
    let output = vgpu(folder.path(), &["allocate", "-f", "objects.yaml"]);
    assert_eq!(
        (output.status.code(), said(&output.stderr)),
        (Some(1), (*refused).to_owned())
    );

    write(&objects.replace("memory: 40Gi", "memory: 20Gi"));
    let output = vgpu(folder.path(), &["allocate", "-f", "objects.yaml"]);
    let list = without_share_ids(&said(&output.stdout));
    assert_eq!((output.status.code(), list), (Some(0), without_share_ids(allocated)));
}
