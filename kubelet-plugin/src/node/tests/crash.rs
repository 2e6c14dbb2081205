//! A crash after any step, with and without a following call of kubelet.

use super::*;

#[test]
fn a_crash_after_any_step_is_repaired() {
    on_each_file_system("a_crash_after_any_step_is_repaired", |rig| {
        let shares = [("s1", 20, 25), ("s2", 10, 0)];
        for stop in 0.. {
            let mut node = rig.open_with(Box::new(StopAfter(stop))).expect("a node");
            let whole = prepare(&mut node, claim("u1", &shares)).is_ok();
            drop(node);
            // The next instance answers the repeated call.
            let mut node = rig.open();
            if !whole {
                assert_eq!(
                    node.claims().claims.len(),
                    usize::from(rig.checkpoint().claims.len() == 1)
                );
            }
            assert_eq!(
                prepare(&mut node, claim("u1", &shares)).expect("repaired").len(),
                2,
                "stop {stop}"
            );
            assert_eq!(rig.checkpoint().claims["u1"].shares.len(), 2);
            unprepare(&mut node, "u1").expect("unprepared");
            assert_eq!(rig.leftovers(), [""; 0], "stop {stop}");
            if whole {
                assert!(stop > 8, "only {stop} steps");
                return;
            }
        }
    });
}

#[test]
fn a_crash_after_any_step_of_unprepare_is_repaired() {
    on_each_file_system("a_crash_after_any_step_of_unprepare_is_repaired", |rig| {
        for stop in 0.. {
            let mut node = rig.open();
            prepare(&mut node, claim("u1", &[("s1", 20, 25)])).expect("prepared");
            drop(node);
            let mut node = rig.open_with(Box::new(StopAfter(stop))).expect("a node");
            let whole = unprepare(&mut node, "u1").is_ok();
            drop(node);
            let mut node = rig.open();
            unprepare(&mut node, "u1").expect("repaired");
            assert_eq!(rig.leftovers(), [""; 0], "stop {stop}");
            if whole {
                assert!(stop >= 3, "only {stop} steps");
                return;
            }
        }
    });
}

#[test]
fn a_crash_that_nobody_follows_up_leaves_nothing() {
    on_each_file_system("a_crash_that_nobody_follows_up_leaves_nothing", |rig| {
        prepare(&mut rig.open(), claim("other", &[("s0", 1, 0)])).expect("prepared");
        for stop in 0..20 {
            let mut node = rig.open_with(Box::new(StopAfter(stop))).expect("a node");
            if prepare(&mut node, claim("u1", &[("s1", 20, 25)])).is_ok() {
                return;
            }
            drop(node);
            let node = rig.open();
            if !node.claims().claims.contains_key("u1") {
                let left = rig.leftovers();
                assert!(left.iter().all(|name| name.contains("other")), "stop {stop}: {left:?}");
            }
        }
        panic!("more than 20 steps");
    });
}

#[test]
fn a_crash_in_the_very_first_prepare_is_no_damage() {
    let rig = Rig::new(false);
    for stop in 0..20 {
        let mut node = rig.open_with(Box::new(StopAfter(stop))).expect("a node");
        if prepare(&mut node, claim("u1", &[("s1", 20, 25)])).is_ok() {
            assert!(stop > 4, "only {stop} steps");
            return;
        }
        drop(node);
        let mut node = rig.open();
        assert_eq!(node.take_damages(), [""; 0], "stop {stop}");
        unprepare(&mut node, "u1").expect("unprepared");
    }
    panic!("more than 20 steps");
}
