//! Fuzzes inputs of the library: CUDA_VISIBLE_DEVICES, and a directory of shares with arbitrary content. vgpu-abi's
//! tests fuzz the file formats.

mod support;

use std::fs;
use std::os::unix::ffi::OsStringExt;
use support::chance::Chance;
use vgpu_core::grants;
use vgpu_core::visible::{choose, names_instances};

const UUIDS: [&str; 4] = [
    "GPU-aaaa1111-0000-0000-0000-000000000001",
    "GPU-aaaa2222-0000-0000-0000-000000000002",
    "GPU-bbbb3333-0000-0000-0000-000000000003",
    "GPU-\u{fc}\u{fc}\u{fc}\u{fc}", // no driver's, but a limits file may say so
];

fn chances() -> [Chance; 2] {
    [Chance::new(Some(1)), Chance::new(None)]
}

#[test]
fn visible_devices_of_any_text() {
    let pieces = "0|1|3|7|,|,,| |-1|GPU-|GPU-aaaa|MIG-|gpu-BBBB3333|\u{fc}|\t|+1|18446744073709551616|x";
    let pieces: Vec<&str> = pieces.split('|').collect();
    for mut chance in chances() {
        for _ in 0..20_000 {
            let mut text: String = (0..chance.below(8))
                .map(|_| pieces[chance.below(pieces.len() as u64) as usize])
                .collect();
            if chance.below(3) == 0 {
                text = (0..chance.below(20))
                    .filter_map(|_| char::from_u32(chance.below(0x250) as u32))
                    .collect();
            }
            let uuids = &UUIDS[..chance.below(5) as usize];
            let mut chosen = choose(uuids, &text);
            assert!(chosen.iter().all(|place| *place < uuids.len()), "{text:?}");
            chosen.sort_unstable();
            assert!(chosen.windows(2).all(|pair| pair[0] != pair[1]), "{text:?}");
            let _ = names_instances(&text);
        }
    }
}

#[test]
fn visible_devices_of_any_list_of_places_and_names() {
    for mut chance in chances() {
        for _ in 0..5_000 {
            let mut places: Vec<usize> = (0..UUIDS.len()).collect();
            for at in (1..places.len()).rev() {
                places.swap(at, chance.below(at as u64 + 1) as usize);
            }
            places.truncate(chance.below(5) as usize);
            let entries: Vec<String> = places
                .iter()
                .map(|place| match chance.below(3) {
                    0 => place.to_string(),
                    1 => format!(" {} ", UUIDS[*place]),
                    _ => UUIDS[*place].to_lowercase(),
                })
                .collect();
            assert_eq!(choose(&UUIDS, &entries.join(",")), places, "{entries:?}");
        }
    }
}

#[test]
fn a_directory_of_shares_with_anything_in_it() {
    let golden = include_bytes!("../abi/testdata/limits-v1");
    let good = "6e2a4c1e-0d5c-4f0e-9a5b-0c5b1f1b2a3c";
    for mut chance in chances() {
        for _ in 0..150 {
            let folder = tempfile::tempdir().expect("a folder");
            for _ in 0..=chance.below(3) {
                let mut bytes: Vec<u8> = (0..chance.below(20)).map(|_| 1 + chance.below(255) as u8).collect();
                bytes.retain(|byte| *byte != b'/');
                bytes.insert(0, b'x');
                let name = match chance.below(4) {
                    0 => good.into(),
                    1 => ".hidden".into(),
                    2 => "a".repeat(200).into(),
                    _ => std::ffi::OsString::from_vec(bytes),
                };
                let (share, limits) = (folder.path().join(&name), folder.path().join(&name).join("limits"));
                let _ = match chance.below(8) {
                    0 => fs::write(&share, b"a file"),
                    1 => std::os::unix::fs::symlink("/", &share),
                    2 => std::os::unix::fs::symlink(&share, &share),
                    _ => fs::create_dir(&share),
                };
                let is_folder = fs::symlink_metadata(&share).is_ok_and(|found| found.is_dir());
                // Only once for each name: a second write might go into a FIFO.
                if !is_folder || fs::symlink_metadata(&limits).is_ok() {
                    continue;
                }
                let _ = match chance.below(7) {
                    0 => fs::create_dir(&limits),
                    1 => std::os::unix::fs::symlink("/dev/zero", &limits),
                    2 => std::process::Command::new("mkfifo").arg(&limits).status().map(drop),
                    3 => fs::write(&limits, vec![0x80; chance.below(40_000) as usize]),
                    _ => fs::write(&limits, golden),
                };
            }
            if let Ok(gpus) = grants::directory(Some(folder.path().into())).and_then(|origin| grants::read(&origin)) {
                let names: Vec<_> = gpus
                    .iter()
                    .flat_map(|gpu| &gpu.shares)
                    .map(|share| &share.limits.share)
                    .collect();
                assert_eq!(names, [good]);
            }
        }
    }
}
