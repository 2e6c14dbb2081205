//! Reads the dynamic loader's cache, /etc/ld.so.cache: the file that the loader opens for a library's name.
//!
//! Only glibc's format since 2.2 is read (magic `glibc-ld.so.cache1.1`), alone or after the older one. A
//! cache that cannot be read counts as empty, and only the default folders are searched.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const HEADER: usize = 48;
const ENTRY: usize = 24;
/// An ELF library for libc 6 on x86-64.
const X86_64: u32 = 0x0303;

/// The paths under which `cache` lists the 64-bit library `name`, the loader's choice first.
#[must_use]
pub fn paths(cache: &[u8], name: &str) -> Vec<PathBuf> {
    let Some(start) = cache.windows(MAGIC.len()).position(|window| window == MAGIC) else {
        return Vec::new();
    };
    let cache = &cache[start..];
    let count = u32_at(cache, MAGIC.len()).unwrap_or(0) as usize;
    (0..count)
        .map_while(|index| entry(cache, HEADER + index * ENTRY))
        .filter(|(flags, key, _)| *flags & 0xffff == X86_64 && *key == name.as_bytes())
        .map(|(_, _, value)| Path::new(OsStr::from_bytes(value)).to_path_buf())
        .collect()
}

fn entry(cache: &[u8], at: usize) -> Option<(u32, &[u8], &[u8])> {
    let text = |at| text_at(cache, u32_at(cache, at)? as usize);
    Some((u32_at(cache, at)?, text(at + 4)?, text(at + 8)?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let raw = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(raw.try_into().ok()?))
}

fn text_at(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let rest = bytes.get(at..)?;
    Some(&rest[..rest.iter().position(|b| *b == 0)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a cache from (flags, name, path).
    fn cache(entries: &[(u32, &str, &str)]) -> Vec<u8> {
        let mut texts = Vec::new();
        let base = HEADER + entries.len() * ENTRY;
        let mut place = |text: &str| {
            let at = (base + texts.len()) as u32;
            texts.extend_from_slice(text.as_bytes());
            texts.push(0);
            at
        };
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&(entries.len() as u32).to_ne_bytes());
        bytes.resize(HEADER, 0);
        for (flags, name, path) in entries {
            for word in [*flags, place(name), place(path), 0, 0, 0] {
                bytes.extend_from_slice(&word.to_ne_bytes());
            }
        }
        bytes.extend_from_slice(&texts);
        bytes
    }

    #[test]
    fn the_64_bit_file_of_a_name_is_found_also_behind_the_older_format() {
        let bytes = cache(&[
            (0x0003, "libcuda.so.1", "/usr/lib/i386/libcuda.so.1"),
            (0x0303, "libcuda.so.10", "/usr/lib/libcuda.so.10"),
            (0x0303, "libcuda.so.1", "/opt/driver/libcuda.so.1"),
            (0x0303, "libcuda.so.1", "/usr/lib/libcuda.so.1"),
        ]);
        let expected = ["/opt/driver/libcuda.so.1", "/usr/lib/libcuda.so.1"].map(PathBuf::from);
        assert_eq!(paths(&bytes, "libcuda.so.1"), expected);
        let behind = [b"ld.so-1.7.0\0\0\0\0\0".as_slice(), &bytes].concat();
        assert_eq!(paths(&behind, "libcuda.so.1"), expected);
        assert_eq!(paths(&bytes, "libnvidia-ml.so.1"), Vec::<PathBuf>::new());
    }

    #[test]
    fn no_cut_and_no_changed_byte_panics() {
        let bytes = cache(&[(0x0303, "libcuda.so.1", "/usr/lib/libcuda.so.1")]);
        for end in 0..bytes.len() {
            let _ = paths(&bytes[..end], "libcuda.so.1");
        }
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] = 0xff;
            let _ = paths(&changed, "libcuda.so.1");
        }
    }

    #[test]
    fn this_machines_cache_knows_libc() {
        let bytes = std::fs::read("/etc/ld.so.cache").expect("a glibc system");
        assert!(!paths(&bytes, "libc.so.6").is_empty());
    }
}
