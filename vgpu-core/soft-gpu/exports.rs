// What the build scripts of both libraries share: which C functions the sources define.

/// Names after `fn` that begin with `prefix` and a capital letter, in the Rust files of a folder.
pub(crate) fn modelled(src: &std::path::Path, prefix: &str) -> std::collections::BTreeSet<String> {
    let mut found = std::collections::BTreeSet::new();
    for entry in std::fs::read_dir(src)
        .expect("src")
        .map(|entry| entry.expect("src").path())
    {
        let text = std::fs::read_to_string(&entry).expect("a source file");
        for line in text.lines().map(str::trim_start) {
            let line = line.strip_prefix("pub(crate) extern \"C\" ").unwrap_or(line);
            let Some(name) = line.strip_prefix("fn ").and_then(|rest| rest.split('(').next()) else {
                continue;
            };
            let rest = name.strip_prefix(prefix).and_then(|rest| rest.chars().next());
            if rest.is_some_and(|c| c.is_ascii_uppercase()) {
                assert!(found.insert(name.to_owned()), "{name} is defined twice");
            }
        }
    }
    found
}
