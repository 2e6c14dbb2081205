//! Single cases of instances that come and go. `model_tests` has the sequences.

use super::*;
use crate::driver::Call;
use crate::fake::{Killed, Machine, TestInstances};
use crate::records::Folder;
use std::panic::{AssertUnwindSafe, catch_unwind};

const GPU: &str = "GPU-1";
const HALF: Asked<'_> = Asked {
    claim: "u1",
    gpu: GPU,
    profile: 9,
    profile_name: "3g.40gb",
    placement: Placement { start: 4, size: 4 },
    whole: None,
};
const SMALL: Asked<'_> = Asked {
    claim: "u2",
    gpu: GPU,
    profile: 19,
    profile_name: "1g.10gb",
    placement: Placement { start: 6, size: 1 },
    whole: None,
};

fn machine() -> Machine {
    Machine::with_gpus(&[(GPU, true)])
}

fn known(prepared: &'static [&'static str]) -> Known<'static> {
    Known {
        is_prepared: match prepared {
            [] => &|_| false,
            _ => &|_| true,
        },
        is_gpu_held: &|_| false,
    }
}

fn ours(machine: &Machine) -> Vec<(u32, u32)> {
    machine.state().gpu(GPU).places(false).into_iter().collect()
}

fn said(result: Result<Made, Error>) -> String {
    result.expect_err("refused").to_string()
}

#[test]
fn the_first_share_makes_an_instance_and_the_last_one_ends_it() {
    let (machine, other) = (machine(), Asked { claim: "u3", ..HALF });
    let plugin = machine.plugin(false);
    let made = plugin.prepare(&HALF, false).expect("made");
    let expected = Made {
        gpu_instance: 2,
        compute_instance: 0,
        uuid: Some("MIG-2".into()),
    };
    assert_eq!(made, expected);
    for again in [HALF, other, other] {
        assert_eq!(machine.plugin(false).prepare(&again, false).expect("there"), expected);
    }
    let creates = |machine: &Machine| {
        machine
            .state()
            .calls
            .iter()
            .filter(|call| matches!(call, Call::Create { .. }))
            .count()
    };
    assert_eq!(creates(&machine), 1);
    assert!(plugin.administrators(GPU).expect("listed").is_empty());
    assert!(plugin.unprepare("u1").expect("listed").destroyed.is_empty());
    assert_eq!(ours(&machine), [(9, 4)]);
    let report = plugin.unprepare("u3").expect("listed");
    assert_eq!((report.destroyed.len(), report.problems.len()), (1, 0));
    assert!(ours(&machine).is_empty() && machine.state().files.is_empty());
    assert!(plugin.unprepare("u3").expect("listed").destroyed.is_empty(), "again");
}

#[test]
fn the_record_is_there_before_the_instance() {
    let machine = machine();
    // Before the call, and after it: the steps before are those of the first list and mode.
    for lives_for in 0..20 {
        machine.state().lives_for = Some(lives_for);
        let plugin = machine.plugin(false);
        let killed = catch_unwind(AssertUnwindSafe(|| plugin.prepare(&HALF, false))).is_err();
        machine.state().lives_for = None;
        assert!(
            ours(&machine).is_empty() || !machine.state().files.is_empty(),
            "{lives_for}"
        );
        if !killed {
            assert!(lives_for > 8, "a step is missing");
            return;
        }
        machine.plugin(false).recover(known(&[])).expect("listed");
        assert!(
            ours(&machine).is_empty() && machine.state().files.is_empty(),
            "{lives_for}"
        );
    }
    panic!("it never ends");
}

#[test]
fn an_instance_in_use_stays_and_no_other_claim_gets_it() {
    let machine = machine();
    let plugin = machine.plugin(false);
    plugin.prepare(&HALF, false).expect("made");
    machine.state().gpu(GPU).instances[0].is_in_use = true;
    let report = plugin.unprepare("u1").expect("listed");
    let problem = report.problems[0].to_string();
    assert!(
        problem.starts_with("3g.40gb at memory slices 4..8 of GPU GPU-1: it is not destroyed while"),
        "{problem}"
    );
    for asked in [HALF, SMALL] {
        let error = said(plugin.prepare(&asked, false));
        assert!(
            error.contains("3g.40gb at memory slices 4..8") && error.contains("end the process"),
            "{error}"
        );
    }
    assert_eq!(plugin.recover(known(&[])).expect("listed").problems.len(), 1);
    machine.state().gpu(GPU).instances[0].is_in_use = false;
    plugin.prepare(&SMALL, false).expect("it makes room");
    assert_eq!(ours(&machine), [(19, 6)]);
}

#[test]
fn who_has_the_place_is_named() {
    let machine = machine();
    machine
        .state()
        .gpu(GPU)
        .create(19, SMALL.placement, true)
        .expect("made");
    let plugin = machine.plugin(false);
    let error = said(plugin.prepare(&HALF, false));
    assert!(
        error.contains("GPU instance 13, which no claim made") && error.contains("-gi 13 -dgi"),
        "{error}"
    );
    // The same profile in the same place is the administrator's too.
    assert!(said(plugin.prepare(&SMALL, false)).contains("no claim made"));
    assert!(machine.state().files.is_empty());
    assert_eq!(plugin.administrators(GPU).expect("listed").len(), 1);
    machine.state().gpu(GPU).instances.clear();
    plugin.prepare(&HALF, false).expect("made");
    let error = said(plugin.prepare(&SMALL, false));
    assert!(
        error.contains("1g.10gb at memory slices 6..7") && error.contains("claims u1 hold 3g.40gb"),
        "{error}"
    );
}

#[test]
fn a_refused_create_leaves_nothing() {
    let machine = machine();
    let plugin = machine.plugin(false);
    for (code, remedy) in [
        (Code::InUse, "end what uses the GPU"),
        (Code::InsufficientResources, "nvidia-smi mig -lgi"),
        (Code::NoPermission, "as root"),
        (Code::ResetRequired, "reset the GPU"),
    ] {
        for call in [
            (|call| matches!(call, Call::Create { .. })) as fn(&Call) -> bool,
            |call| matches!(call, Call::CreateCompute { .. }),
        ] {
            machine.state().refuses = Some((call, code));
            let error = said(plugin.prepare(&HALF, false));
            assert!(
                error.starts_with("3g.40gb at memory slices 4..8") && error.contains(remedy),
                "{error}"
            );
            assert!(ours(&machine).is_empty() && machine.state().files.is_empty());
        }
    }
    machine.state().writes_left = Some(0);
    assert!(said(plugin.prepare(&HALF, false)).contains("GPU-1.9.4.json"));
    assert!(
        !machine
            .state()
            .calls
            .iter()
            .rev()
            .take(3)
            .any(|call| matches!(call, Call::Create { .. }))
    );
    machine.state().writes_left = None;
    plugin.prepare(&HALF, false).expect("made");
    machine.state().writes_left = Some(0);
    let report = plugin.unprepare("u1").expect("listed");
    assert_eq!(
        (report.destroyed.len(), ours(&machine).len()),
        (1, 0),
        "a full disk keeps no instance"
    );
}

/// An administrator's create comes between the list and the claim's create.
#[test]
fn an_instance_that_made_the_create_fail_is_not_the_claims() {
    // The third write says that it is not there.
    for writes_left in [None, Some(2)] {
        let machine = machine();
        let plugin = machine.plugin(false);
        plugin.prepare(&HALF, false).expect("made");
        // All instances are lost, and an administrator is faster.
        machine.state().gpu(GPU).instances.clear();
        machine.state().refuses = Some((|call| matches!(call, Call::Create { .. }), Code::InsufficientResources));
        machine.state().writes_left = writes_left;
        let report = plugin.recover(known(&["u1"])).expect("listed");
        machine.state().writes_left = None;
        assert_eq!(report.problems.len(), 1);
        machine.state().refuses = None;
        machine.state().gpu(GPU).create(9, HALF.placement, true).expect("made");
        for _ in 0..2 {
            plugin.recover(known(&["u1"])).expect("listed");
        }
        plugin.unprepare("u1").expect("listed");
        assert_eq!(machine.state().gpu(GPU).places(true).len(), 1);
        assert!(machine.state().files.is_empty());
    }
}

#[test]
fn after_a_reboot_only_prepared_claims_have_instances() {
    let machine = machine();
    machine.plugin(false).prepare(&HALF, false).expect("made");
    let reboot = || {
        machine.state().gpu(GPU).instances.clear();
        machine.state().boot += 1;
    };
    reboot();
    let report = machine.plugin(false).recover(known(&["u1"])).expect("listed");
    assert_eq!((report.made.len(), ours(&machine)), (1, vec![(9, 4)]));
    assert!(
        machine
            .plugin(false)
            .recover(known(&["u1"]))
            .expect("listed")
            .made
            .is_empty()
    );
    reboot();
    // In the meantime an administrator made the same one.
    machine.state().gpu(GPU).create(9, HALF.placement, true).expect("made");
    let report = machine.plugin(false).recover(known(&["u1"])).expect("listed");
    let problem = report.problems[0].to_string();
    assert!(
        problem.contains("it is gone while claims u1 use it") && problem.contains("no claim made"),
        "{problem}"
    );
    let report = machine.plugin(false).recover(known(&[])).expect("listed");
    assert_eq!((report.problems.len(), machine.state().files.len()), (0, 0));
    assert_eq!(machine.state().gpu(GPU).instances.len(), 1, "the administrator's");
}

#[test]
fn a_vanished_instance_is_made_again_or_reported() {
    let machine = machine();
    let plugin = machine.plugin(false);
    plugin.prepare(&HALF, false).expect("made");
    machine.state().gpu(GPU).instances.clear();
    assert_eq!(plugin.recover(known(&["u1"])).expect("listed").made.len(), 1);
    // Another profile in its place, with the same id and UUID.
    machine.state().gpu(GPU).instances.clear();
    machine
        .state()
        .gpu(GPU)
        .create(5, Placement { start: 0, size: 4 }, true)
        .expect("made");
    machine
        .state()
        .gpu(GPU)
        .create(14, Placement { start: 4, size: 2 }, true)
        .expect("made");
    let report = plugin.recover(known(&["u1"])).expect("listed");
    assert!(matches!(&report.problems[..], [Error::Vanished { .. }]), "{report:?}");
    // Seen to be gone, it is nobody's that comes later.
    machine.state().gpu(GPU).instances.pop();
    machine.state().gpu(GPU).create(9, HALF.placement, true).expect("made");
    assert!(said(plugin.prepare(&HALF, false)).contains("no claim made"));
    assert_eq!(plugin.unprepare("u1").expect("listed").problems.len(), 0);
    assert_eq!(machine.state().gpu(GPU).instances.len(), 2);
}

/// The driver gives the new instance the id and the UUID of the claim's.
#[test]
fn another_profile_in_the_same_place_is_not_the_claims() {
    let machine = machine();
    let plugin = machine.plugin(false);
    let small = Asked {
        profile: 15,
        placement: Placement { start: 4, size: 2 },
        ..HALF
    };
    let made = plugin.prepare(&small, false).expect("made");
    machine.state().gpu(GPU).instances.clear();
    machine
        .state()
        .gpu(GPU)
        .create(14, small.placement, true)
        .expect("made");
    let theirs = plugin.administrators(GPU).expect("listed");
    assert_eq!(
        (theirs[0].id, &theirs[0].compute[0].uuid),
        (made.gpu_instance, &made.uuid)
    );
    assert!(matches!(
        plugin.recover(known(&["u1"])).expect("listed").problems[..],
        [Error::Vanished { .. }]
    ));
    assert!(plugin.unprepare("u1").expect("listed").destroyed.is_empty());
    assert_eq!(machine.state().gpu(GPU).places(true).len(), 1);
}

#[test]
fn a_missing_compute_instance_is_made_again() {
    let machine = machine();
    let plugin = machine.plugin(false);
    let made = plugin.prepare(&HALF, false).expect("made");
    machine.state().gpu(GPU).instances[0].has_compute = false;
    assert!(plugin.recover(known(&["u1"])).expect("listed").problems.is_empty());
    assert!(machine.state().gpu(GPU).instances[0].has_compute);
    assert_eq!(plugin.prepare(&HALF, false).expect("there"), made);
}

fn switching(is_on: bool) -> (Machine, TestInstances) {
    let machine = Machine::with_gpus(&[(GPU, is_on)]);
    let plugin = machine.plugin(true);
    (machine, plugin)
}

#[test]
fn the_mode_is_switched_only_where_that_is_allowed_and_harms_nobody() {
    let (machine, plugin) = switching(false);
    assert!(said(machine.plugin(false).prepare(&HALF, false)).contains("this node does not switch it"));
    assert!(said(plugin.prepare(&HALF, true)).contains("while claims hold the GPU as a whole"));
    machine.state().gpu(GPU).users = 2;
    assert!(said(plugin.prepare(&HALF, false)).contains("while 2 processes use the GPU"));
    machine.state().gpu(GPU).users = 0;
    machine.state().gpu(GPU).is_resetless = false;
    assert!(said(plugin.prepare(&HALF, false)).contains("only an administrator does"));
    machine.state().gpu(GPU).is_resetless = true;
    machine.state().gpu(GPU).mode.is_on_after_reset = true;
    let error = said(plugin.prepare(&HALF, false));
    assert!(error.contains("from off to on at the next reset"), "{error}");
    machine.state().gpu(GPU).mode.is_on_after_reset = false;
    assert!(
        !machine
            .state()
            .calls
            .iter()
            .any(|call| matches!(call, Call::SetMode { .. }))
    );
    assert!(machine.state().files.is_empty());
}

#[test]
fn the_mode_is_switched_off_after_the_last_instance_if_it_was_switched_on_here() {
    let (machine, plugin) = switching(false);
    plugin.prepare(&HALF, false).expect("made");
    assert!(machine.state().gpu(GPU).mode.is_on);
    // An administrator uses the mode too.
    machine
        .state()
        .gpu(GPU)
        .create(5, Placement { start: 0, size: 4 }, true)
        .expect("made");
    plugin.unprepare("u1").expect("listed");
    assert!(machine.state().gpu(GPU).mode.is_on);
    machine.state().gpu(GPU).instances.clear();
    machine.state().refuses = Some((|call| matches!(call, Call::SetMode { .. }), Code::InUse));
    let report = plugin.recover(known(&[])).expect("listed");
    assert!(
        report.problems[0].to_string().contains("switch MIG mode off again"),
        "{report:?}"
    );
    plugin.recover(known(&[])).expect("listed");
    assert!(!machine.state().gpu(GPU).mode.is_on && machine.state().files.is_empty());
    // The check whether something uses the GPU comes at the first instance.
    machine.state().refuses = Some((|call| matches!(call, Call::Create { .. }), Code::InUse));
    assert!(said(plugin.prepare(&HALF, false)).contains("IN_USE"));
    assert!(!machine.state().gpu(GPU).mode.is_on && machine.state().files.is_empty());

    // The driver keeps a mode that it could not activate for the next reset.
    machine.state().gpu(GPU).fails_to_activate = true;
    assert!(said(plugin.prepare(&HALF, false)).contains("switch MIG mode on"));
    assert_eq!(machine.state().gpu(GPU).mode, crate::driver::Mode::default());
    assert!(machine.state().files.is_empty());

    let (machine, plugin) = switching(true);
    plugin.prepare(&HALF, false).expect("made");
    plugin.unprepare("u1").expect("listed");
    assert!(machine.state().gpu(GPU).mode.is_on, "an administrator's");
}

/// A claim may have the whole GPU, then an instance, then the whole GPU.
#[test]
fn a_claim_of_the_whole_gpu_has_the_mode_off_or_hears_who_has_instances() {
    let said = |result: Result<(), Error>| result.expect_err("refused").to_string();
    let (machine, plugin) = switching(false);
    plugin.whole(GPU).expect("it is whole");
    assert_eq!(machine.state().calls, [Call::Mode], "one question");
    let published = Gpu {
        uuid: GPU.into(),
        memory: 80 << 30,
        ..Gpu::default()
    };
    let asked = Asked {
        whole: Some(&published),
        ..HALF
    };
    plugin.prepare(&asked, false).expect("made");
    let records = plugin.records().expect("listed");
    let switched = records.switched(GPU, "boot-0").expect("switched");
    assert_eq!(switched.whole.as_deref(), Some(&published));
    let error = said(plugin.whole(GPU));
    assert!(
        error.contains("claims u1 have 3g.40gb at memory slices 4..8 of it"),
        "{error}"
    );
    // The module is reloaded: the mode is off, the instance gone and the claim prepared.
    machine.state().gpu(GPU).instances.clear();
    machine.state().gpu(GPU).mode = crate::driver::Mode::default();
    assert!(said(plugin.whole(GPU)).contains("claims u1 have"));
    assert_eq!(plugin.recover(known(&["u1"])).expect("listed").made.len(), 1);
    let records = plugin.records().expect("listed");
    assert_eq!(
        records.switched(GPU, "boot-0").and_then(|of| of.whole.as_deref()),
        Some(&published)
    );
    // A process of an ended claim.
    machine.state().gpu(GPU).instances[0].is_in_use = true;
    plugin.unprepare("u1").expect("listed");
    assert!(said(plugin.whole(GPU)).contains("while a process uses it"));
    machine.state().gpu(GPU).instances[0].is_in_use = false;
    plugin.whole(GPU).expect("the leftover is destroyed");
    assert!(!machine.state().gpu(GPU).mode.is_on && machine.state().files.is_empty());
    // The driver does not let the mode go.
    plugin.prepare(&HALF, false).expect("made");
    machine.state().refuses = Some((|call| matches!(call, Call::SetMode { .. }), Code::InUse));
    plugin.unprepare("u1").expect("listed");
    machine.state().refuses = Some((|call| matches!(call, Call::SetMode { .. }), Code::InUse));
    let error = said(plugin.whole(GPU));
    assert!(
        error.contains("switch MIG mode off again") && error.contains("DCGM"),
        "{error}"
    );
    plugin.whole(GPU).expect("off");
    // An administrator's instance, and mode.
    plugin.prepare(&HALF, false).expect("made");
    let first = Placement { start: 0, size: 4 };
    machine.state().gpu(GPU).create(5, first, true).expect("made");
    plugin.unprepare("u1").expect("listed");
    let error = said(plugin.whole(GPU));
    assert!(error.contains("GPU instance 1, which no claim made"), "{error}");
    let (machine, plugin) = switching(true);
    assert!(said(plugin.whole(GPU)).contains("no claim switched on"));
    machine.state().gpu(GPU).mode.is_on_after_reset = false;
    assert!(said(plugin.whole(GPU)).contains("from on to off at the next reset"));
}

/// The plugin is killed between any two steps while a claim ends, and another one gets the GPU.
#[test]
fn a_kill_between_the_end_of_an_instance_and_its_mode_leaves_a_gpu_that_is_whole_at_the_next_try() {
    for lives_for in 0..40 {
        let (machine, plugin) = switching(false);
        plugin.prepare(&HALF, false).expect("made");
        machine.state().lives_for = Some(lives_for);
        let killed = catch_unwind(AssertUnwindSafe(|| plugin.unprepare("u1"))).is_err();
        machine.state().lives_for = None;
        if lives_for % 2 == 0 {
            machine.plugin(true).recover(known(&[])).expect("listed");
        }
        let whole = machine.plugin(true).whole(GPU);
        assert!(whole.is_ok() || lives_for % 2 == 1, "{lives_for}: {whole:?}");
        machine.plugin(true).recover(known(&[])).expect("listed");
        machine.plugin(true).whole(GPU).expect("whole");
        assert!(!machine.state().gpu(GPU).mode.is_on && machine.state().files.is_empty());
        if !killed {
            assert!(lives_for > 10, "a step is missing");
            return;
        }
    }
    panic!("it never ends");
}

#[test]
fn a_node_that_switches_no_mode_any_more_leaves_and_reports_the_one_that_it_switched() {
    let (machine, plugin) = switching(false);
    plugin.prepare(&HALF, false).expect("made");
    let plugin = machine.plugin(false);
    let report = plugin.unprepare("u1").expect("listed");
    assert_eq!((report.destroyed.len(), report.problems.len()), (1, 1));
    let problem = report.problems[0].to_string();
    assert!(
        problem.contains("mig.dynamic") && problem.contains("-mig 0"),
        "{problem}"
    );
    assert!(machine.state().gpu(GPU).mode.is_on);
    plugin.prepare(&HALF, true).expect("as on an administrator's GPU");
    plugin.unprepare("u1").expect("listed");
    machine.state().gpu(GPU).mode = crate::driver::Mode::default();
    assert!(plugin.recover(known(&[])).expect("listed").problems.is_empty());
    assert!(machine.state().files.is_empty(), "somebody switched it off");
    machine.plugin(true).prepare(&HALF, false).expect("made");
    machine.plugin(false).unprepare("u1").expect("listed");
    machine.plugin(true).recover(known(&[])).expect("listed");
    assert!(!machine.state().gpu(GPU).mode.is_on, "the node switches modes again");
}

/// The driver is being upgraded: nobody knows whether the instance is there.
#[test]
fn without_a_list_nothing_is_said_to_be_gone() {
    let machine = machine();
    let plugin = machine.plugin(false);
    plugin.prepare(&HALF, false).expect("made");
    let files = machine.state().files.clone();
    machine.state().refuses = Some((|call| matches!(call, Call::Instances), Code::NoAnswer));
    let problems = plugin.recover(known(&["u1"])).expect("listed").problems;
    assert!(
        matches!(
            &problems[..],
            [Error::Refused {
                action: "list its instances",
                ..
            }]
        ),
        "{problems:?}"
    );
    assert_eq!(machine.state().files, files);
    // Nor is it destroyed or forgotten.
    machine.state().refuses = Some((|call| matches!(call, Call::Instances), Code::NoAnswer));
    assert_eq!(plugin.unprepare("u1").expect("listed").problems.len(), 1);
    assert_eq!(ours(&machine).len(), 1);
    assert_eq!(plugin.recover(known(&[])).expect("listed").destroyed.len(), 1);
}

/// The plugin's child still makes the instance, while the plugin has given up or another one has started.
#[test]
fn a_create_that_was_given_up_is_decided_by_a_list_that_comes_after_it() {
    let machine = machine();
    // After the list and the mode.
    machine.state().gives_up_in = Some(2);
    let error = machine.plugin(false).prepare(&HALF, false).expect_err("given up");
    assert!(error.silence().is_some(), "{error}");
    let pending = machine.state().pending.clone();
    assert!(matches!(pending, Some((_, Call::Create { .. }))), "{pending:?}");
    let plugin = machine.plugin(false);
    let report = plugin.recover(known(&[])).expect("listed");
    assert!(report.destroyed.is_empty() && report.problems.iter().all(|problem| problem.silence().is_some()));
    assert_eq!(machine.state().files.len(), 1, "the record stays");
    assert!(plugin.administrators(GPU).is_err());
    machine.state().end_pending();
    assert_eq!(ours(&machine).len(), 1);
    assert_eq!(plugin.recover(known(&[])).expect("listed").destroyed.len(), 1);
    assert!(ours(&machine).is_empty() && machine.state().files.is_empty());
}

#[test]
fn a_mode_that_somebody_switched_off_is_named() {
    let machine = machine();
    let plugin = machine.plugin(false);
    plugin.prepare(&HALF, false).expect("made");
    machine.state().gpu(GPU).instances.clear();
    machine.state().gpu(GPU).mode = crate::driver::Mode::default();
    let problems = plugin.recover(known(&["u1"])).expect("listed").problems;
    let problem = problems[0].to_string();
    assert!(
        problem.contains("claims u1 use it") && problem.contains("MIG mode is off"),
        "{problem}"
    );
    assert_eq!(plugin.unprepare("u1").expect("listed").problems.len(), 0);
    assert!(machine.state().files.is_empty());
}

#[test]
fn a_damaged_record_makes_no_instance_the_claims() {
    let machine = machine();
    let plugin = machine.plugin(false);
    plugin.prepare(&HALF, false).expect("made");
    for bytes in machine.state().files.values_mut() {
        bytes.truncate(20);
    }
    let problems = plugin.recover(known(&[])).expect("listed").problems;
    let problem = problems[0].to_string();
    assert!(
        problem.starts_with("the record GPU-1.9.4.json is not what") && problem.contains("remove the file"),
        "{problem}"
    );
    assert_eq!(ours(&machine).len(), 1, "not destroyed");
    machine.state().gpu(GPU).instances.clear();
    assert!(plugin.recover(known(&[])).expect("listed").problems.is_empty());
    assert!(machine.state().files.is_empty());
}

#[test]
fn a_damaged_record_of_a_mode_stays_until_the_mode_is_off() {
    let machine = machine();
    let plugin = machine.plugin(true);
    machine.state().files.insert("GPU-1.mode.json".into(), b"{".to_vec());
    let problems = plugin.recover(known(&[])).expect("listed").problems;
    assert!(
        problems[0]
            .to_string()
            .starts_with("the record GPU-1.mode.json is not what")
    );
    assert_eq!(machine.state().files.len(), 1);
    machine.state().gpu(GPU).mode = crate::driver::Mode::default();
    assert!(plugin.recover(known(&[])).expect("listed").problems.is_empty());
    assert!(machine.state().files.is_empty());
}

#[test]
fn records_in_a_folder_serve_the_next_plugin() {
    let dir = tempfile::tempdir().expect("a folder");
    let machine = machine();
    let plugin = || {
        let settings = Settings {
            boot: "b".into(),
            switches_mode: false,
        };
        Instances::new(machine.clone(), Folder::new(dir.path().join("mig")), settings)
    };
    plugin().prepare(&HALF, false).expect("made");
    assert!(plugin().administrators(GPU).expect("listed").is_empty());
    assert_eq!(plugin().unprepare("u1").expect("listed").destroyed.len(), 1);
    assert_eq!(std::fs::read_dir(dir.path().join("mig")).expect("a folder").count(), 0);
}

#[test]
fn a_killed_plugin_ends_by_its_own_panic() {
    let machine = machine();
    machine.state().lives_for = Some(0);
    let plugin = machine.plugin(false);
    let payload = catch_unwind(AssertUnwindSafe(|| plugin.prepare(&HALF, false))).expect_err("killed");
    assert!(payload.is::<Killed>());
}
