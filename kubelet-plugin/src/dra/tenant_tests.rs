//! Whatever a tenant does to its own files and processes is reported, and changes no report about its neighbour.

use super::*;
use crate::enforcement::process_tests::{in_pod, mount, process};
use crate::enforcement::{Extent, Processes};
use rustix::fs::{Mode, OFlags};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// What a container's root can do to the ledger, which it may write: name, act, and true if the act damages the ledger.
type Act = (&'static str, fn(&Path) -> std::io::Result<()>, bool);

fn by_link(ledger: &Path, target: &Path) -> std::io::Result<()> {
    fs::remove_file(ledger)?;
    symlink(target, ledger)
}

const ACTS: [Act; 10] = [
    ("cuts it to nothing", |ledger| fs::write(ledger, ""), true),
    (
        "cuts its last byte",
        |ledger| {
            let length = fs::metadata(ledger)?.len();
            fs::File::options().write(true).open(ledger)?.set_len(length - 1)
        },
        true,
    ),
    (
        "fills it with ones",
        |ledger| {
            let length = fs::metadata(ledger)?.len();
            fs::write(ledger, vec![0xff; usize::try_from(length).unwrap_or(0)])
        },
        true,
    ),
    (
        "makes it longer",
        |ledger| {
            let length = fs::metadata(ledger)?.len();
            fs::File::options().write(true).open(ledger)?.set_len(length + 4096)
        },
        true,
    ),
    (
        "makes it a terabyte of holes",
        |ledger| fs::File::options().write(true).open(ledger)?.set_len(1 << 40),
        true,
    ),
    (
        "links it to its neighbour's",
        |ledger| by_link(ledger, &ledger.parent().unwrap_or(ledger).join("../../u2/u2/ledger")),
        true,
    ),
    (
        "links it to a secret of the node",
        |ledger| by_link(ledger, Path::new("/etc/shadow")),
        true,
    ),
    (
        "links it to a device that never ends",
        |ledger| by_link(ledger, Path::new("/dev/zero")),
        true,
    ),
    (
        "replaces it by a folder",
        |ledger| {
            fs::remove_file(ledger)?;
            fs::create_dir(ledger)
        },
        true,
    ),
    (
        "replaces it by a pipe that nobody writes",
        |ledger| {
            fs::remove_file(ledger)?;
            let flags = OFlags::RDWR | OFlags::NOFOLLOW;
            rustix::fs::mknodat(rustix::fs::CWD, ledger, rustix::fs::FileType::Fifo, Mode::RWXU, 0)?;
            drop(rustix::fs::open(ledger, flags | OFlags::NONBLOCK, Mode::empty())?);
            Ok(())
        },
        true,
    ),
];

#[tokio::test]
async fn whatever_a_tenant_does_to_its_ledger_is_told_to_its_pods_alone() {
    let served = Served::new().await;
    let registry = Metrics::default().registry(crate::metrics::Sources::new(served.node.clone()));
    let of = |uid: &str| {
        let text = crate::metrics::page(&registry);
        let lines = text
            .lines()
            .filter(|line| line.contains(&format!("claim=\"claim-{uid}\"")));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    served
        .prepare_new(held_by(claim("u2", &[("u2", 20, 25)]), &["neighbour"]))
        .await;
    let path = |uid: &str| served.rig.path(&format!("run/claims/{uid}/{uid}/ledger"));
    let mut charged = fs::read(path("u2")).expect("a ledger");
    charged[vgpu_abi::ledger::CHARGED_AT..][..8].copy_from_slice(&4096u64.to_le_bytes());
    fs::write(path("u2"), &charged).expect("charged");
    let neighbour = of("u2");
    assert!(
        neighbour
            .iter()
            .any(|line| line.starts_with("vgpu_share_memory_used_bytes") && line.ends_with(" 4096"))
    );
    for (what, act, is_damage) in ACTS {
        served
            .prepare_new(held_by(claim("u1", &[("u1", 20, 25)]), &["tenant"]))
            .await;
        act(&path("u1")).unwrap_or_else(|error| panic!("{what}: {error}"));
        let own = of("u1");
        let damaged = own.iter().find(|line| line.starts_with("vgpu_share_ledger_damaged"));
        assert_eq!(
            damaged.is_some_and(|line| line.ends_with(" 1")),
            is_damage,
            "{what}: {own:?}"
        );
        assert_eq!(of("u2"), neighbour, "{what}");
        served.api.events.lock().expect("lock").clear();
        served.report(&mut served.reporter()).await;
        let events = served.api.events.lock().expect("lock").clone();
        let told: Vec<_> = events.iter().filter_map(|(pod, _)| pod.name.as_deref()).collect();
        assert_eq!(told, ["tenant"], "{what}");
        // And it ends as any other claim does.
        assert_eq!(served.unprepare(&["u1"]).await["u1"].error, "", "{what}");
        assert!(!served.rig.path("run/claims/u1").exists(), "{what}");
        assert_eq!(fs::read(path("u2")).expect("a ledger"), charged, "{what}");
    }
}

/// `VGPU_TENANT_PROCESSES=10000` makes them more; the processes are files of a made-up /proc.
#[test]
fn a_tenant_with_very_many_processes_and_mounts_hides_nobody() {
    let count: u32 = std::env::var("VGPU_TENANT_PROCESSES").map_or(500, |count| count.parse().expect("a number"));
    println!("{count} processes; VGPU_TENANT_PROCESSES=10000 makes them more");
    let proc = tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .expect("a folder");
    let at = |pid: u32| proc.path().join(pid.to_string());
    process(&at(7), 7, &[2], &in_pod('b', '2'));
    let (mounts, asked) = ([mount("u1", "s", 1), mount("u2", "s", 2)], BTreeSet::from([7, 100]));
    process(&at(100), 100, &[1], &in_pod('a', '1'));
    let read = || {
        Processes::in_folder(proc.path())
            .read(&mounts, &asked, Extent::All)
            .expect("read")
    };
    let before = read();
    for pid in 101..100 + count {
        // One in ten in a mount namespace of its own, and in no cgroup of a pod, and with the neighbour's name.
        let (namespace, cgroup) = match pid % 10 {
            0 => (pid, "0::/\n".to_owned()),
            _ => (100, in_pod('a', '1')),
        };
        process(&at(pid), namespace, &[1], &cgroup);
    }
    // Thousands of mounts that look like the node's.
    let line = "36 35 0:9 / /run/vgpu/claims/u2/s ro shared:1 - tmpfs vgpu rw\n";
    let own = fs::read_to_string(at(100).join("mountinfo")).expect("mounts");
    fs::write(at(100).join("mountinfo"), line.repeat(20_000) + &own).expect("written");
    let after = read();
    assert_eq!(after.processes[&7], before.processes[&7]);
    assert_eq!(after.users, before.users);
    assert_eq!(after.processes[&100].shares, before.processes[&100].shares);
    assert_eq!(after.count, count as usize + 1);
    // A share is found unmounted once its tenant has unmounted it, and the neighbour's is not.
    for pid in 100..100 + count {
        fs::write(at(pid).join("mountinfo"), line).expect("written");
    }
    let unmounted = read();
    assert_eq!(unmounted.processes[&7], before.processes[&7]);
    assert_eq!(
        unmounted.users.keys().map(|(uid, _)| uid.as_str()).collect::<Vec<_>>(),
        ["u2"]
    );
}
