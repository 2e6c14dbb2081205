//! Tests of [`super`]: folders that other users made, and many processes at once.

use super::*;
use std::os::unix::fs::symlink;

const CONTAINER: u32 = 7;

fn own(gpu: &str, memory: u64) -> Limits {
    Limits::of_memory(gpu.to_ascii_lowercase(), gpu, memory, "/c", "/n")
}

fn prepared(cache: Option<&Path>, memory: u64, base: &Path) -> Result<Grant, PlaceError> {
    let mut gpus = prepare(cache, CONTAINER, vec![own("GPU-1", memory)], &[base])?;
    Ok(gpus.remove(0).shares.remove(0))
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    entries
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect()
}

#[test]
#[cfg_attr(miri, ignore = "files")]
fn processes_that_come_at_once_get_one_ledger() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path().join("x.cache");
    let base = folder.path().join("shm");
    fs::create_dir(&base).expect("a folder");
    let found: Vec<PathBuf> = std::thread::scope(|threads| {
        let one = || prepared(Some(&cache), 1 << 30, &base).expect("a place").directory;
        let threads: Vec<_> = (0..16).map(|_| threads.spawn(one)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a thread"))
            .collect()
    });
    assert!(found.iter().all(|directory| *directory == found[0]));
    assert_eq!(names(&base).len(), 1, "nothing else is left: {:?}", names(&base));
    let bytes = fs::read(found[0].join(LEDGER)).expect("a ledger");
    assert!(ledger::read(&bytes).is_ok());
    let mode = |path: &Path| fs::metadata(path).expect("a file").mode() & 0o777;
    assert_eq!(
        [mode(&found[0]), mode(&found[0].join(LEDGER)), mode(&cache)],
        [0o755, 0o666, 0o666]
    );
}

#[test]
#[cfg_attr(miri, ignore = "files")]
fn another_container_has_another_ledger_and_the_first_limit_stays() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let first = prepared(Some(&path("a.cache")), 1 << 30, folder.path()).expect("a place");
    let second = prepared(Some(&path("b.cache")), 1 << 30, folder.path()).expect("a place");
    assert_ne!(first.directory, second.directory);
    let edited = prepared(Some(&path("a.cache")), 80 << 30, folder.path()).expect("a place");
    assert_eq!((edited.directory, edited.limits.memory), (first.directory, 1 << 30));
    // Without a region file, processes with the same variables share an account.
    let one = prepared(None, 1 << 30, folder.path()).expect("a place");
    let same = prepared(None, 1 << 30, folder.path()).expect("a place");
    let other = prepared(None, 2 << 30, folder.path()).expect("a place");
    assert_eq!(one, same);
    assert_ne!(one.directory, other.directory);
    assert_eq!(other.limits.memory, 2 << 30);
}

#[test]
#[cfg_attr(miri, ignore = "files")]
fn what_a_stranger_put_there_is_refused_and_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path().join("x.cache");
    let place = prepared(Some(&cache), 1 << 30, folder.path())
        .expect("a place")
        .directory;
    let said = || {
        prepared(Some(&cache), 1 << 30, folder.path())
            .expect_err("refused")
            .to_string()
    };
    let precious = folder.path().join("precious");
    fs::create_dir(&precious).expect("a folder");
    fs::write(precious.join(LIMITS), "mine").expect("a file");
    fs::remove_dir_all(&place).expect("removed");
    symlink(&precious, &place).expect("a link");
    assert!(said().contains("is no folder"), "{}", said());
    fs::remove_file(&place).expect("removed");
    fs::write(&place, "a file").expect("a file");
    assert!(said().contains("is no folder"), "{}", said());
    fs::remove_file(&place).expect("removed");
    // A folder that contains a link and something else.
    fs::create_dir(&place).expect("a folder");
    symlink(precious.join(LIMITS), place.join(LIMITS)).expect("a link");
    assert!(said().contains("limits"), "{}", said());
    fs::remove_file(place.join(LIMITS)).expect("removed");
    fs::write(place.join(LIMITS), "garbage").expect("a file");
    assert!(said().contains("remove its folder"), "{}", said());
    assert_eq!(fs::read(precious.join(LIMITS)).expect("a file"), b"mine");
    // An empty folder is not ours either, and is not filled.
    fs::remove_dir_all(&place).expect("removed");
    fs::create_dir(&place).expect("a folder");
    assert!(said().contains("No such file"), "{}", said());
}

#[test]
#[cfg_attr(miri, ignore = "files")]
fn a_region_file_that_cannot_be_is_refused_and_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let said = |cache: &Path| {
        prepared(Some(cache), 1 << 30, folder.path())
            .expect_err("refused")
            .to_string()
    };
    assert!(said(folder.path()).contains("not a regular file"));
    assert!(said(&folder.path().join("no/x.cache")).contains("No such file"));
    let link = folder.path().join("link.cache");
    symlink("/etc/hostname", &link).expect("a link");
    assert!(said(&link).contains("not a regular file"), "{}", said(&link));
    assert!(
        names(folder.path()).iter().all(|name| !name.contains("vgpu-")),
        "nothing was made"
    );
}

#[test]
#[cfg_attr(miri, ignore = "files")]
fn the_next_base_is_for_one_that_cannot_be_written_to() {
    let folder = tempfile::tempdir().expect("a folder");
    let (absent, file, good) = (
        folder.path().join("absent"),
        folder.path().join("file"),
        folder.path().join("good"),
    );
    fs::write(&file, "").expect("a file");
    fs::create_dir(&good).expect("a folder");
    let found = prepare(None, CONTAINER, vec![own("GPU-1", 1)], &[&absent, &file, &good]).expect("a place");
    assert!(found[0].shares[0].directory.starts_with(&good));
    let none = prepare(None, CONTAINER, vec![own("GPU-1", 1)], &[&absent, &file]);
    assert!(none.expect_err("refused").to_string().contains("/dev/shm nor /tmp"));
}

#[test]
#[cfg_attr(miri, ignore = "files")]
fn a_region_file_that_outlives_its_container_brings_no_limit_to_the_next() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path().join("x.cache");
    let limit_in = |container, memory| {
        let mut found =
            prepare(Some(&cache), container, vec![own("GPU-1", memory)], &[folder.path()]).expect("a place");
        found.remove(0).shares.remove(0).limits.memory
    };
    assert_eq!([limit_in(1, 3 << 30), limit_in(2, 7 << 30)], [3 << 30, 7 << 30]);
    assert_eq!(limit_in(1, 80 << 30), 3 << 30, "in one container the first limit stays");
}

#[test]
fn a_container_is_known_by_the_layer_of_its_root() {
    let mounts = |number: u32, layer: &str| {
        format!(
            "{number} 22 0:{layer} / / rw,relatime master:1 - overlay overlay rw,lowerdir=/l,upperdir=/snapshots/{layer}/fs\n\
             {} {number} 0:99 / /dev rw - tmpfs tmpfs rw\n",
            number + 1
        )
    };
    let one = container_in(&mounts(100, "41"));
    assert_eq!(one, container_in(&mounts(300, "41")), "in another mount namespace");
    assert_ne!(one, container_in(&mounts(100, "42")));
    assert_ne!(one, container_in(""));
    assert_ne!(container(), container_in(""), "of the machine that runs this");
}
