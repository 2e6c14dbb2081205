//! Directories, records and limits files of claims.

use super::*;
use crate::dra::checkpoint::NamedBy;
use crate::dra::share::tests::share;
use crate::publish::inventory::Gpu;
use crate::publish::inventory::tests::gpu;
use proptest::prelude::*;
use std::os::unix::fs::PermissionsExt as _;
use vgpu_abi::checksum::crc32;

const GOLDEN: &[u8] = include_bytes!("../../testdata/claim-v1.json");
const UID: &str = "5c0f3b9a-0000-4000-8000-000000000001";

fn entry() -> Entry {
    let prepared = |name| PreparedShare {
        share: share(name),
        slot: Some(0),
    };
    Entry {
        namespace: "d".into(),
        name: "c".into(),
        library: "f".repeat(64),
        shares: vec![prepared("s1"), prepared("s2")],
        named_by: None,
        pods: Vec::new(),
        may_require_limit: false,
    }
}

const fn size(own: u64) -> ContextSize {
    ContextSize { own, unowned: 2 }
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).expect("there").permissions().mode() & 0o7777
}

fn make_use_and_remove(dirs: &ClaimDirs) {
    dirs.ensure("u", &entry(), &|_| Some(size(7))).expect("made");
    let folder = dirs.share_path("u", "s2");
    let limits = Limits::parse(&std::fs::read(folder.join(LIMITS)).expect("read")).expect("limits");
    assert_eq!((limits.order, limits.context_reserve), (1, Some(7)));
    assert_eq!(mode(&folder.join(LIMITS)), 0o444);
    assert_eq!(mode(&folder.join(LEDGER)), 0o666);
    assert_eq!(mode(&dirs.root), 0o700);
    let bytes = std::fs::read(folder.join(LEDGER)).expect("read");
    assert_eq!(ledger::read(&bytes).expect("a ledger"), ledger::Usage::default());
    assert_eq!(dirs.uids().expect("listed"), ["u"]);

    std::fs::write(folder.join(LEDGER), "in use").expect("written");
    dirs.ensure("u", &entry(), &|_| Some(size(9))).expect("made");
    assert_eq!(
        std::fs::read(folder.join(LEDGER)).expect("read"),
        b"in use",
        "a ledger is never made anew"
    );
    assert_eq!(dirs.read_shares("u").0.len(), 2);
    dirs.remove("u").expect("removed");
    dirs.remove("u").expect("removed again");
    assert!(dirs.uids().expect("listed").is_empty());
}

#[test]
fn on_plain_folders() {
    let dir = tempfile::tempdir().expect("a folder");
    make_use_and_remove(&ClaimDirs::new(dir.path().join("claims"), false));
}

#[test]
fn on_tmpfs_a_tenant_cannot_fill_the_node() {
    if !tmpfs::tests::can_mount("on_tmpfs_a_tenant_cannot_fill_the_node") {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let dirs = ClaimDirs::new(dir.path().join("claims"), true);
    make_use_and_remove(&dirs);
    dirs.ensure("u", &entry(), &|_| None).expect("made");
    assert!(tmpfs::is_mounted(&dirs.share_path("u", "s1")).expect("looked at"));
    let number = |share| match dirs.share_device("u", share) {
        Device::Number(number) => Some(number),
        _ => None,
    };
    assert!(number("s1").is_some() && number("s1") != number("s2"));
    assert_eq!(dirs.share_device("u", "s3"), Device::None);
    tmpfs::remove(&dirs.share_path("u", "s2")).expect("unmounted by hand");
    assert_eq!(dirs.share_device("u", "s2"), Device::Unknown);
    let grown = std::fs::write(dirs.share_path("u", "s1").join(LEDGER), vec![1; 2 * ledger::SIZE]);
    assert!(grown.is_err(), "a ledger outgrew its tmpfs");
    dirs.remove("u").expect("removed");
}

#[test]
fn a_damaged_limits_file_is_written_again() {
    let dir = tempfile::tempdir().expect("a folder");
    let dirs = ClaimDirs::new(dir.path().join("claims"), false);
    dirs.ensure("u", &entry(), &|_| None).expect("made");
    let path = dirs.share_path("u", "s1").join(LIMITS);
    std::fs::remove_file(&path).expect("removed");
    std::fs::write(&path, "vgpu-limits 1\n").expect("written");
    dirs.ensure("u", &entry(), &|_| None).expect("made");
    assert!(read_limits(&path).is_some());
}

#[test]
fn a_limits_file_that_is_missing_or_in_the_way_is_named() {
    let dir = tempfile::tempdir().expect("a folder");
    let dirs = ClaimDirs::new(dir.path().join("claims"), false);
    dirs.ensure("u", &entry(), &|_| None).expect("made");
    let path = dirs.share_path("u", "s2").join(LIMITS);
    std::fs::remove_file(&path).expect("removed");
    let (shares, missing) = dirs.read_shares("u");
    assert_eq!((shares.len(), missing), (1, vec!["s2".to_owned()]));
    std::fs::create_dir(&path).expect("in the way");
    let error = dirs.ensure("u", &entry(), &|_| None).expect_err("not made");
    assert!(error.to_string().contains(&path.display().to_string()), "{error}");
}

#[test]
fn metadata_that_cannot_be_written_is_named_and_what_is_of_another_request_goes() {
    let dir = tempfile::tempdir().expect("a folder");
    let dirs = ClaimDirs::new(dir.path().join("claims"), false);
    dirs.ensure("u", &entry(), &|_| None).expect("made");
    let (id, gpu) = (entry().id("u"), gpu(0));
    let share = share("s1");
    let files = metadata::files(&id, &NamedBy::Claim, &[(&share, &gpu)], &vgpu_api::Pools::of("n1"));
    let files = files.expect("files");
    let folder = dirs.claim_path("u");
    let (path, in_the_way) = (folder.join("gpu.metadata.json"), folder.join("gpu.metadata.json.new"));
    std::fs::create_dir_all(in_the_way.join("x")).expect("in the way");
    let error = dirs.ensure_metadata("u", &files, true).expect_err("not written");
    assert!(error.to_string().contains(&*path.to_string_lossy()), "{error}");
    std::fs::remove_dir_all(in_the_way).expect("removed");
    std::fs::write(folder.join("former.metadata.json"), "{}").expect("written");
    dirs.ensure_metadata("u", &files, true).expect("written");
    assert_eq!(mode(&path), 0o444);
    let found = files::regular_files(&folder).expect("listed");
    assert_eq!(found, ["gpu.metadata.json"]);
}

#[test]
fn the_hooks_report_is_taken_until_it_is_dropped_and_comes_again() {
    let dir = tempfile::tempdir().expect("a folder");
    let dirs = ClaimDirs::new(dir.path().join("claims"), false);
    dirs.ensure("u", &entry(), &|_| None).expect("made");
    for _ in 0..2 {
        assert!(!dirs.take_no_glibc("u"));
        std::fs::write(dirs.claim_path("u").join(NO_GLIBC), "").expect("written");
        assert!(dirs.take_no_glibc("u") && dirs.take_no_glibc("u"), "no event yet");
        dirs.drop_no_glibc("u").expect("dropped");
    }
    dirs.remove("u").expect("removed");
    assert!(!dirs.take_no_glibc("u"));
}

#[test]
fn what_each_hook_says_of_a_container_that_did_not_start_is_taken_once() {
    let dir = tempfile::tempdir().expect("a folder");
    let dirs = ClaimDirs::new(dir.path().join("claims"), false);
    dirs.ensure("u", &entry(), &|_| None).expect("made");
    for (hook, why) in [("vgpu-driver-limit", "one"), ("vgpu-cdi-hook", "\x1b[31mtwo")] {
        let path = dirs.claim_path("u").join(format!("{NOT_STARTED}.{hook}"));
        std::fs::write(path, format!("{hook}: {why}\n")).expect("written");
    }
    let expected = ["vgpu-cdi-hook:  [31mtwo", "vgpu-driver-limit: one"];
    assert_eq!(dirs.take_not_started("u"), expected);
    assert_eq!(dirs.take_not_started("u"), [""; 0]);
}

#[test]
fn why_a_container_has_no_limit_of_the_driver_is_one_short_line() {
    let dir = tempfile::tempdir().expect("a folder");
    let dirs = ClaimDirs::new(dir.path().join("claims"), false);
    dirs.ensure("u", &entry(), &|_| None).expect("made");
    assert_eq!(dirs.no_driver_limit("u"), None);
    let path = dirs.claim_path("u").join(NO_DRIVER_LIMIT);
    std::fs::write(&path, b"container c1: \x1b[31mMIG\nis on \xff\n").expect("written");
    let said = dirs.no_driver_limit("u");
    assert_eq!(said.as_deref(), Some("container c1:  [31mMIG is on \u{fffd}"));
    std::fs::write(&path, "x".repeat(1 << 20)).expect("written");
    assert_eq!(dirs.no_driver_limit("u").map(|said| said.len()), Some(LONGEST_REASON));
    std::fs::remove_file(&path).expect("removed");
    std::os::unix::fs::symlink("/proc/version", &path).expect("a link");
    assert_eq!(dirs.no_driver_limit("u"), None, "no link is followed");
}

#[test]
fn a_share_read_back_from_its_limits_is_the_same_result() {
    let whole = share("s");
    let limits = limits_of(&whole, 0, Some(3), Some(size(5)));
    assert_eq!((limits.context_reserve, limits.context_unowned), (Some(5), 2));
    let limits = Limits::parse(limits.render().as_bytes()).expect("limits");
    let back = share_of(&limits);
    assert!(back.same_result(&whole) && whole.same_result(&back));
    assert!(!back.same_result(&Share {
        memory: 1,
        ..whole.clone()
    }));
    assert!(!back.same_result(&share("other")));
    assert!(!whole.same_result(&Share {
        request: "b".into(),
        ..whole.clone()
    }));
}

fn record() -> Record {
    let share = share("6e2a4c1e-0d5c-4f0e-9a5b-0c5b1f1b2a3c");
    Record {
        uid: UID.into(),
        claim: Entry {
            namespace: "default".into(),
            name: "quarter".into(),
            library: "0".repeat(64),
            shares: vec![PreparedShare { share, slot: Some(3) }],
            named_by: None,
            pods: Vec::new(),
            may_require_limit: false,
        },
        gpus: BTreeMap::from([(
            gpu(0).uuid,
            Gpu {
                nvlink_clique: None,
                ..gpu(0)
            },
        )]),
    }
}

fn sealed(payload: &str) -> String {
    let crc = crc32(payload.as_bytes());
    format!(r#"{{"version":1,"crc32":"{crc:08x}","payload":{payload},"more":true}}"#)
}

#[test]
fn version_1_is_read_as_it_was_first_written() {
    assert_eq!(Record::parse(UID, GOLDEN), Ok(record()));
    let rendered = record().render().expect("bytes");
    assert_eq!(String::from_utf8_lossy(&rendered), String::from_utf8_lossy(GOLDEN));
}

#[test]
fn every_cut_and_every_changed_byte_is_noticed() {
    for end in 0..GOLDEN.len() - 1 {
        assert!(Record::parse(UID, &GOLDEN[..end]).is_err(), "cut at {end}");
    }
    for at in 0..GOLDEN.len() - 1 {
        let mut changed = GOLDEN.to_vec();
        changed[at] ^= 1;
        assert_ne!(Record::parse(UID, &changed), Ok(record()), "byte {at} changed");
    }
    assert!(Record::parse("another", GOLDEN).is_err());
}

#[test]
fn a_field_of_a_later_release_does_no_harm() {
    let mut payload = serde_json::to_value(record()).expect("JSON");
    payload["later"] = serde_json::json!([1, 2]);
    assert_eq!(
        Record::parse(UID, sealed(&payload.to_string()).as_bytes()),
        Ok(record())
    );
    assert_eq!(
        Record::parse(UID, br#"{"version":2}"#),
        Err(Damage::Version { found: 2, reads: 1 })
    );
    // The file stays until something else changes.
    let folder = tempfile::tempdir().expect("a folder");
    let (dirs, mut known) = (ClaimDirs::new(folder.path().into(), false), record());
    let path = dirs.record_path(UID);
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    std::fs::write(&path, sealed(&payload.to_string())).expect("written");
    let save = |record: &Record| {
        let saved = dirs.save_record(UID, &record.claim, record.gpus.clone());
        saved.expect("saved")
    };
    assert!(!save(&known));
    known.claim.library = "1".repeat(64);
    assert!(save(&known) && !save(&known));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Also with a checksum that fits: a later release or another program may have written it.
    #[test]
    fn any_file_is_a_record_or_damage(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        at in 0..GOLDEN.len(),
        payload in "\\{\"claim\":(null|\\[\\]|\\{[^{}]{0,40}\\})?[^{}]{0,20}\\}",
    ) {
        let _ = Record::parse(UID, &bytes);
        let mut spliced = GOLDEN[..at].to_vec();
        spliced.extend(&bytes);
        let _ = Record::parse(UID, &spliced);
        if let Err(damage) = Record::parse(UID, sealed(&payload).as_bytes()) {
            prop_assert!(!damage.to_string().is_empty());
        }
    }
}
