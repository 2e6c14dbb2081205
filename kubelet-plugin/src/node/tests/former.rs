//! Upgrades from releases with one checkpoint for all claims, the way back, and both at once.

use super::*;

const GOLDEN: &[u8] = include_bytes!("../../../testdata/checkpoint-v1.json");

/// An older release, as far as files are concerned: what it left on disk, and how it reads the machine.
pub(super) struct OlderRelease<'a>(pub(super) &'a Rig);

impl OlderRelease<'_> {
    fn checkpoint(&self) -> PathBuf {
        self.0.config().checkpoint
    }

    /// Leaves what such a release leaves of the claims that are prepared: one checkpoint, and copies without a boot.
    pub(super) fn leaves(&self) -> Checkpoint {
        let all = self.0.checkpoint();
        for (uid, entry) in &all.claims {
            std::fs::remove_file(self.0.record(uid)).expect("removed");
            let one = Checkpoint {
                claims: BTreeMap::from([(uid.clone(), entry.clone())]),
                ..Checkpoint::default()
            };
            let copy = self.0.path(&format!("run/claims/{uid}/entry.json"));
            std::fs::write(copy, one.render().expect("bytes")).expect("written");
        }
        self.saves(&all);
        all
    }

    fn saves(&self, all: &Checkpoint) {
        std::fs::write(self.checkpoint(), all.render().expect("bytes")).expect("written");
    }

    /// How it reads the machine at its start: without a checkpoint from the claim directories, else it removes each claim
    /// directory that the checkpoint does not have.
    fn reads(&self) -> BTreeMap<String, Entry> {
        assert!(!self.checkpoint().exists(), "it would remove claims that are not in it");
        let claims = std::fs::read_dir(self.0.path("run/claims")).expect("listed");
        let entry = |folder: std::fs::DirEntry| {
            let bytes = std::fs::read(folder.path().join("entry.json")).expect("a copy");
            Checkpoint::parse(&bytes).expect("its format").claims
        };
        claims.flatten().flat_map(entry).collect()
    }
}

#[test]
fn an_upgrade_takes_over_the_checkpoint_and_the_way_back_finds_every_claim() {
    let rig = Rig::new(false);
    let mut node = rig.open();
    for (uid, share) in [("u1", "s1"), ("u2", "s2"), ("u3", "s3")] {
        prepare(&mut node, claim(uid, &[(share, 20, 25)])).expect("prepared");
    }
    drop(node);
    let older = OlderRelease(&rig);
    let before = older.leaves();
    // u3 was prepared before a reboot, u2's copy is damaged, and u4 died in a Prepare.
    std::fs::remove_dir_all(rig.path("run/claims/u3")).expect("removed");
    std::fs::write(rig.path("run/claims/u2/entry.json"), "garbage").expect("damaged");
    std::fs::create_dir(rig.path("run/claims/u4")).expect("a folder");
    let died = Checkpoint {
        claims: BTreeMap::from([("u4".to_owned(), before.claims["u1"].clone())]),
        ..Checkpoint::default()
    };
    std::fs::write(rig.path("run/claims/u4/entry.json"), died.render().expect("bytes")).expect("written");
    std::fs::remove_dir_all(rig.config().records).expect("as there was none");
    let mut node = rig.open();
    let held = node.claims().clone();
    assert_eq!(held.claims.keys().collect::<Vec<_>>(), ["u1", "u2"]);
    assert_eq!((&held.claims["u2"], &held.gpus), (&before.claims["u2"], &before.gpus));
    assert!(node.entry("u3").is_some() && !rig.path("run/claims/u4").exists());
    drop(node);
    assert_eq!(rig.open().claims(), &held, "from its own files");
    assert_eq!(older.reads(), held.claims);
    // And forth again, after the older release prepared u5 and unprepared u1.
    let mut all = held;
    std::fs::rename(rig.path("run/claims/u1"), rig.path("run/claims/u5")).expect("renamed");
    let moved = all.claims.remove("u1").expect("held");
    all.claims.insert("u5".into(), moved);
    older.saves(&all);
    let mut one = Checkpoint {
        gpus: BTreeMap::new(),
        ..all.clone()
    };
    one.claims.retain(|uid, _| uid == "u5");
    std::fs::write(rig.path("run/claims/u5/entry.json"), one.render().expect("bytes")).expect("written");
    node = rig.open();
    assert_eq!(node.claims().claims, all.claims);
    assert!(!rig.record("u1").exists() && rig.record("u5").exists());
}

#[test]
fn the_first_checkpoint_ever_written_is_read() {
    let rig = Rig::new(false);
    drop(rig.open());
    let uid = "5c0f3b9a-0000-4000-8000-000000000001";
    std::fs::write(rig.config().checkpoint, GOLDEN).expect("written");
    assert!(
        rig.open().entry(uid).is_some(),
        "it holds nothing, because it has no claim directory"
    );
    assert!(!rig.config().checkpoint.exists());
    let rig = Rig::new(false);
    drop(rig.open());
    std::fs::write(rig.config().checkpoint, GOLDEN).expect("written");
    std::fs::create_dir(rig.path("run/claims").join(uid)).expect("a folder");
    assert_eq!(rig.open().claims().claims[uid].name, "quarter");
}

#[test]
fn a_damaged_checkpoint_is_set_aside_and_told_once() {
    let rig = Rig::new(false);
    prepare(&mut rig.open(), claim("u1", &[("s1", 60, 0)])).expect("prepared");
    let before = OlderRelease(&rig).leaves();
    std::fs::write(rig.config().checkpoint, "garbage").expect("damaged");
    let mut node = rig.open();
    assert_eq!(node.claims().claims, before.claims);
    let damages = node.take_damages();
    assert!(damages.len() == 1 && damages[0].contains("damaged-"), "{damages:?}");
    unprepare(&mut node, "u1").expect("unprepared");
    assert_eq!(node.take_damages(), [""; 0]);
}

/// A rolling update: the older release goes on for a while, and reads and writes its checkpoint at each call.
#[test]
fn an_older_release_beside_this_one_loses_nothing() {
    let rig = Rig::new(false);
    let older = OlderRelease(&rig);
    let mut node = rig.open();
    prepare(&mut node, claim("u1", &[("s1", 20, 0)])).expect("prepared");
    prepare(&mut node, claim("u2", &[("s2", 20, 0)])).expect("prepared");
    // It finds its checkpoint gone, rebuilds it, and unprepares u1.
    let mut all = Checkpoint {
        claims: older.reads(),
        ..Checkpoint::default()
    };
    std::fs::remove_dir_all(rig.path("run/claims/u1")).expect("removed");
    std::fs::remove_file(rig.path("cdi/dra.vgpu-claim_u1.json")).expect("removed");
    all.claims.remove("u1");
    older.saves(&all);
    prepare(&mut node, claim("u3", &[("s3", 60, 0)])).expect("u1 holds nothing");
    assert_eq!(node.claims().claims.keys().collect::<Vec<_>>(), ["u2", "u3"]);
    assert!(!rig.record("u1").exists());
    assert_eq!(older.reads().into_keys().collect::<Vec<_>>(), ["u2", "u3"]);
    assert_eq!(node.take_damages(), [""; 0]);
}
