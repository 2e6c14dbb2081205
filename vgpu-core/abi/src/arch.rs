//! Names and numbers of the processor architecture that this is compiled for. Code that needs one asks [`arch!`] for it.
//!
//! It is a macro, because paths are composed of the names at compile time: `concat!("/usr/lib/", arch!(triplet))`.
//! libvgpu-preload.so, which cannot depend on a crate with std, includes this file. Scripts have their names in
//! `build/arch.sh`, `gpu-check` in `vgpu_check/arch.py`; a test compares them with these.
//!
//! | | |
//! |---|---|
//! | `uname` | the kernel's name (`uname -m`), which NVIDIA's files have too |
//! | `oci` | the name in container images and in Kubernetes (`kubernetes.io/arch`) |
//! | `triplet` | the folder of Debian's libraries below /lib and /usr/lib |
//! | `loader` | glibc's loader, as programs name it |
//! | `loader_file` | the file name of that |
//! | `cache_flags` | what /etc/ld.so.cache notes of a library for glibc on this architecture |
//! | `relocation_word`, `_got`, `_plt` | relocations that store a function's address: in data, in the GOT, in the PLT's slots |

#[cfg(target_arch = "x86_64")]
#[rustfmt::skip] // A table.
#[macro_export]
macro_rules! arch {
    (uname) => { "x86_64" };
    (oci) => { "amd64" };
    (triplet) => { "x86_64-linux-gnu" };
    (loader) => { "/lib64/ld-linux-x86-64.so.2" };
    (loader_file) => { "ld-linux-x86-64.so.2" };
    (cache_flags) => { 0x0303 };
    (relocation_word) => { 1 };
    (relocation_got) => { 6 };
    (relocation_plt) => { 7 };
}

#[cfg(target_arch = "aarch64")]
#[rustfmt::skip] // A table.
#[macro_export]
macro_rules! arch {
    (uname) => { "aarch64" };
    (oci) => { "arm64" };
    (triplet) => { "aarch64-linux-gnu" };
    (loader) => { "/lib/ld-linux-aarch64.so.1" };
    (loader_file) => { "ld-linux-aarch64.so.1" };
    (cache_flags) => { 0x0a03 };
    (relocation_word) => { 257 };
    (relocation_got) => { 1025 };
    (relocation_plt) => { 1026 };
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    type Row = BTreeMap<&'static str, &'static str>;

    /// The rows of this file, by architecture: only one of them is compiled.
    fn rows() -> BTreeMap<&'static str, Row> {
        let tables = include_str!("arch.rs").split("#[cfg(target_arch = \"").skip(1);
        let name = |line: &'static str| {
            line.trim()
                .strip_prefix('(')?
                .strip_suffix(" };")?
                .split_once(") => { ")
        };
        tables
            .map(|text| {
                let (architecture, text) = text.split_once('"').expect("an architecture");
                let table = text.split_once("\n}").expect("a table").0;
                let row = table.lines().filter_map(name);
                (
                    architecture,
                    row.map(|(name, value)| (name, value.trim_matches('"'))).collect(),
                )
            })
            .collect()
    }

    /// From the ABIs' documents, glibc's cache and Kubernetes.
    #[test]
    fn each_architecture_has_its_names_and_numbers() {
        let names = [
            "uname",
            "oci",
            "triplet",
            "loader",
            "loader_file",
            "cache_flags",
            "relocation_word",
            "relocation_got",
            "relocation_plt",
        ];
        let row = |values: [&'static str; 9]| -> Row { names.into_iter().zip(values).collect() };
        let (x86, arm) = ("ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1");
        let rows = rows();
        assert_eq!(rows.len(), 2);
        // R_X86_64_64, GLOB_DAT and JUMP_SLOT; R_AARCH64_ABS64, GLOB_DAT and JUMP_SLOT.
        #[rustfmt::skip]
        let expected = [
            ("x86_64", row(["x86_64", "amd64", "x86_64-linux-gnu", "/lib64/ld-linux-x86-64.so.2", x86, "0x0303", "1", "6", "7"])),
            ("aarch64", row(["aarch64", "arm64", "aarch64-linux-gnu", "/lib/ld-linux-aarch64.so.1", arm, "0x0a03", "257", "1025", "1026"])),
        ];
        for (architecture, expected) in expected {
            assert_eq!(rows[architecture], expected);
        }
        let own = &rows[std::env::consts::ARCH];
        assert_eq!(
            (own["uname"], own["loader"]),
            (arch!(uname), arch!(loader)),
            "this one is compiled"
        );
    }

    /// Other languages have their own table. Each has a row of each architecture with the same names.
    #[test]
    fn the_tables_of_scripts_and_of_the_checks_have_the_same_names() {
        let scripts = include_str!("../../../build/arch.sh");
        let checks = include_str!("../../../gpu-check/vgpu_check/arch.py");
        for row in rows().values() {
            let flags = row["cache_flags"].to_uppercase().replace("0X", "0x");
            for (table, names) in [
                (scripts, vec![row["oci"], row["uname"], row["loader_file"]]),
                (checks, vec![row["uname"], row["triplet"], row["loader_file"], &flags]),
            ] {
                let is_there = |line: &str| {
                    let words: Vec<&str> = line
                        .split(|char: char| char.is_whitespace() || "\",():".contains(char))
                        .collect();
                    names.iter().all(|name| words.contains(name))
                };
                assert!(table.lines().any(is_there), "no row with {names:?}");
            }
        }
    }
}
