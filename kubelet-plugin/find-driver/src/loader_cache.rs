//! Reads the dynamic loader's cache, /etc/ld.so.cache, which says which file the loader opens for a library's name.
//!
//! Reads only glibc's format since 2.2 (magic `glibc-ld.so.cache1.1`), alone or after the older one.
//!
//! How it fails: an unreadable cache is treated as empty, so only folders are searched. A hostile cache costs one pass
//! over its bytes: names are compared before paths are read, and the number and length of paths are limited. Relative
//! paths are ignored.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const HEADER: usize = 48;
const ENTRY: usize = 24;
/// A library for libc 6 on this architecture.
const NATIVE: u32 = vgpu_abi::arch!(cache_flags);
/// The kernel's limit for a path.
const PATH_MAX: usize = 4096;
/// Limit of entries. A library has an entry for each set of CPU features and each folder of /etc/ld.so.conf.
const MOST: usize = 32;

/// The paths under which `cache` lists the library `name` of this architecture, the loader's choice first.
#[must_use]
pub(crate) fn paths(cache: &[u8], name: &str) -> Vec<PathBuf> {
    let Some(start) = cache.windows(MAGIC.len()).position(|window| window == MAGIC) else {
        return Vec::new();
    };
    let cache = &cache[start..];
    let count = u32_at(cache, MAGIC.len()).unwrap_or(0) as usize;
    let places = (0..count).map_while(|index| HEADER.checked_add(index.checked_mul(ENTRY)?));
    places
        .map_while(|at| cache.get(at..)?.get(..ENTRY))
        .filter(|entry| is_of(cache, entry, name))
        .take(MOST)
        .filter_map(|entry| path(cache, entry))
        .collect()
}

fn is_of(cache: &[u8], entry: &[u8], name: &str) -> bool {
    let is_native = u32_at(entry, 0).is_some_and(|flags| flags & 0xffff == NATIVE);
    let rest = text(cache, entry, 4).and_then(|key| key.strip_prefix(name.as_bytes()));
    is_native && rest.is_some_and(|rest| rest.starts_with(b"\0"))
}

fn path(cache: &[u8], entry: &[u8]) -> Option<PathBuf> {
    let path = text(cache, entry, 8)?;
    let end = path.iter().take(PATH_MAX).position(|byte| *byte == 0)?;
    let path = Path::new(OsStr::from_bytes(&path[..end]));
    path.is_absolute().then(|| path.to_path_buf())
}

/// The text at the offset in a field of an entry, with everything after it.
fn text<'a>(cache: &'a [u8], entry: &[u8], field: usize) -> Option<&'a [u8]> {
    cache.get(u32_at(entry, field)? as usize..)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let raw = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(raw.try_into().ok()?))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Builds a cache from entries of (flags, name, path).
    pub(crate) fn cache(entries: &[(u32, &str, &str)]) -> Vec<u8> {
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
    fn the_native_file_of_a_name_is_found_also_behind_the_older_format() {
        let bytes = cache(&[
            (0x0003, "libcuda.so.1", "/usr/lib/other/libcuda.so.1"),
            (NATIVE, "libcuda.so.10", "/usr/lib/libcuda.so.10"),
            (NATIVE, "libcuda.so.1", "/opt/driver/libcuda.so.1"),
            (NATIVE, "libcuda.so.1", "/usr/lib/libcuda.so.1"),
        ]);
        let expected = ["/opt/driver/libcuda.so.1", "/usr/lib/libcuda.so.1"].map(PathBuf::from);
        assert_eq!(paths(&bytes, "libcuda.so.1"), expected);
        let behind = [b"ld.so-1.7.0\0\0\0\0\0".as_slice(), &bytes].concat();
        assert_eq!(paths(&behind, "libcuda.so.1"), expected);
        assert_eq!(paths(&bytes, "libnvidia-ml.so.1"), Vec::<PathBuf>::new());
    }

    #[test]
    fn no_cut_and_no_changed_byte_panics() {
        let bytes = cache(&[(NATIVE, "libcuda.so.1", "/usr/lib/libcuda.so.1")]);
        for end in 0..bytes.len() {
            let _ = paths(&bytes[..end], "libcuda.so.1");
        }
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] = 0xff;
            let _ = paths(&changed, "libcuda.so.1");
        }
    }

    /// A wrong count, a name without an end, and paths that are endless, relative or too many.
    #[test]
    fn a_hostile_cache_costs_little_and_names_few_paths() {
        let mut endless = cache(&[(NATIVE, "libcuda.so.1", "/a")]);
        endless[MAGIC.len()..MAGIC.len() + 4].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(paths(&endless, "libcuda.so.1"), [PathBuf::from("/a")]);
        let entries = vec![(NATIVE, "libcuda.so.1", "/a"); 100_000];
        assert_eq!(paths(&cache(&entries), "libcuda.so.1").len(), MOST);
        let long = format!("/{}", "a".repeat(PATH_MAX));
        for path in ["", "a", "../a", long.as_str()] {
            let bytes = cache(&[(NATIVE, "libcuda.so.1", path)]);
            assert_eq!(paths(&bytes, "libcuda.so.1"), Vec::<PathBuf>::new(), "{path}");
        }
        let mut unended = cache(&[(NATIVE, "libcuda.so.1", "/a")]);
        unended.pop();
        assert_eq!(paths(&unended, "libcuda.so.1"), Vec::<PathBuf>::new());
    }

    #[test]
    fn this_machines_cache_knows_libc() {
        let bytes = std::fs::read("/etc/ld.so.cache").expect("a glibc system");
        assert!(!paths(&bytes, "libc.so.6").is_empty());
    }
}
