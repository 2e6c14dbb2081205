//! The backstop's own symbol look-up in loaded objects, compared with the loader's: for every name of every library of
//! this process, and for names that differ slightly.
//!
//! It is not tested with damaged objects, because it only reads objects that the loader has accepted.
#![allow(unsafe_code)] // The loader's lists, and look-ups by C strings.

#[macro_use(arch)]
extern crate vgpu_abi;

#[allow(dead_code, unreachable_pub, reason = "the library uses the rest")]
#[path = "../preload/src/elf.rs"]
mod elf;
#[allow(dead_code, unreachable_pub, reason = "the library uses the rest")]
#[path = "../preload/src/name.rs"]
mod name;
mod support;

use std::ffi::{CStr, CString, c_int, c_void};
use support::chance::Chance;

/// Path, load address, dynamic section.
type Loaded = (CString, usize, usize);

extern "C" fn note(info: *mut libc::dl_phdr_info, _size: usize, list: *mut c_void) -> c_int {
    // SAFETY: the loader's own entry, and the list of `loaded`.
    let (info, list) = unsafe { (&*info, &mut *list.cast::<Vec<Loaded>>()) };
    // SAFETY: so many headers are there.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    if let Some(dynamic) = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC) {
        // SAFETY: a C string of the loader's.
        let path = unsafe { CStr::from_ptr(info.dlpi_name) }.to_owned();
        let base = info.dlpi_addr as usize;
        list.push((path, base, base + dynamic.p_vaddr as usize));
    }
    0
}

fn loaded() -> Vec<Loaded> {
    let mut list: Vec<Loaded> = Vec::new();
    // SAFETY: `note` gets the list, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(note), std::ptr::from_mut(&mut list).cast()) };
    // The loader itself is in no scope that dlsym searches by its handle.
    let is_library = |path: &str| path.starts_with('/') && !path.contains("/ld-linux");
    list.retain(|(path, ..)| is_library(&path.to_string_lossy()));
    list
}

/// The dynamic symbols' names in an ELF file.
fn names(file: &[u8]) -> Vec<CString> {
    let number = |at: usize, size: usize| {
        let bytes = file[at..at + size].iter().rev();
        bytes.fold(0_usize, |value, byte| value << 8 | usize::from(*byte))
    };
    let (sections, each, count) = (number(0x28, 8), number(0x3a, 2), number(0x3c, 2));
    let field = |section: usize, at: usize, size: usize| number(sections + section * each + at, size);
    const SHT_DYNSYM: usize = 11;
    let Some(symbols) = (0..count).find(|section| field(*section, 4, 4) == SHT_DYNSYM) else {
        return Vec::new();
    };
    let strings = field(field(symbols, 0x28, 4), 0x18, 8);
    let (at, size) = (field(symbols, 0x18, 8), field(symbols, 0x20, 8));
    let name = |symbol: usize| CStr::from_bytes_until_nul(&file[strings + number(symbol, 4)..]);
    (at..at + size)
        .step_by(24)
        .filter_map(|symbol| name(symbol).ok().map(CStr::to_owned))
        .collect()
}

#[test]
fn what_it_finds_is_what_the_loader_finds() {
    let mut chance = Chance::new(None);
    let (mut found, mut objects) = (0, 0);
    for (path, base, dynamic) in loaded() {
        let file = std::fs::read(path.to_str().expect("a path")).expect("a library");
        // SAFETY: an object of this process, never unloaded.
        let object = unsafe { elf::Object::new(base, dynamic) }.expect("tables");
        // SAFETY: a C string; it is loaded already.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        assert!(!handle.is_null(), "{path:?}");
        objects += 1;
        let mut compare = |name: &CStr| {
            // SAFETY: a C string that outlives the question.
            let text = unsafe { name::Text::new(name.as_ptr().cast()) }.expect("not null");
            // SAFETY: a handle and a C string.
            let loaders = unsafe { libc::dlsym(handle, name.as_ptr()) };
            if let Some(ours) = object.function(text) {
                assert_eq!(ours, loaders.addr(), "{name:?} in {path:?}");
                found += 1;
            }
        };
        for name in names(&file) {
            compare(&name);
            let mut bytes = name.into_bytes();
            if !bytes.is_empty() {
                let at = chance.below(bytes.len() as u64) as usize;
                bytes[at] = 1 + chance.below(255) as u8;
                bytes.truncate(bytes.len() - chance.below(2) as usize);
                compare(&CString::new(bytes).expect("no NUL"));
            }
        }
    }
    assert!(
        objects >= 2 && found > 1000,
        "{found} functions in {objects} libraries are too few"
    );
}
