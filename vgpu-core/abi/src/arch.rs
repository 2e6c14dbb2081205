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
    /// Other languages have their own table. Each has a row of this architecture with the same names.
    #[test]
    fn the_tables_of_scripts_and_of_the_checks_have_the_same_names() {
        let flags = format!("{:#06X}", arch!(cache_flags)).replace("0X", "0x");
        let scripts = (
            include_str!("../../../build/arch.sh"),
            vec![arch!(oci), arch!(uname), arch!(loader_file)],
        );
        let checks = (
            include_str!("../../../gpu-check/vgpu_check/arch.py"),
            vec![arch!(uname), arch!(triplet), arch!(loader_file), &flags],
        );
        for (table, names) in [scripts, checks] {
            let words = |line: &str| -> Vec<String> {
                let between = |char: char| char.is_whitespace() || "\",():".contains(char);
                line.split(between)
                    .filter(|word| !word.is_empty())
                    .map(str::to_owned)
                    .collect()
            };
            assert!(
                table.lines().any(|line| {
                    let words = words(line);
                    names.iter().all(|name| words.iter().any(|word| word == name))
                }),
                "no row with {names:?}"
            );
        }
        assert!(arch!(loader).ends_with(concat!("/", arch!(loader_file))));
    }
}
