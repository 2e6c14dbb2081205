//! Pods that nobody can bind, beside pods that kube-scheduler binds at once.

use serde_json::{Value, json};
use vgpu_planner::{Change, Object};

use crate::desk::{Desk, said};

const HOLD: i64 = 30_000;
const GPU: u8 = 8;

/// Adds pods that ask for a whole GPU each and are never bound. `spec` returns the reason: the special part of a pod's
/// spec.
fn unbindable(desk: &mut Desk, count: usize, spec: impl Fn(usize) -> Value) {
    for at in 0..count {
        let name = format!("bad-{at}");
        desk.fraction(&name, GPU);
        desk.pod(&name, &[&name], json!({"spec": spec(at)}));
    }
}

/// Adds pods that kube-scheduler could bind, made after the others.
fn bindable<'a>(desk: &mut Desk, names: &[&'a str]) -> Vec<&'a str> {
    for name in names {
        desk.fraction(name, 1);
        desk.pod(
            name,
            &[name],
            json!({"metadata": {"creationTimestamp": "2001-01-01T00:00:00Z"}}),
        );
    }
    names.to_vec()
}

/// Adds a bound pod, which shows that the default scheduler is active.
fn bound(desk: &mut Desk) {
    desk.pod("bound", &[], json!({"spec": {"nodeName": "n0"}}));
}

/// Returns the special part of one pod's spec.
type Spec = fn(usize) -> Value;

/// The reason why nobody binds the 40 pods.
fn kinds_of_unbindable() -> [(&'static str, Spec); 3] {
    [
        ("one scheduler", |_| json!({"schedulerName": "nobody"})),
        ("schedulers", |at| json!({"schedulerName": format!("nobody-{at}")})),
        ("volumes", |at| {
            let claim = json!({"claimName": format!("never-{at}")});
            json!({"volumes": [{"name": "data", "persistentVolumeClaim": claim}]})
        }),
    ]
}

#[test]
fn forty_pods_that_nobody_binds_keep_no_other_waiting_for_longer_than_a_hold() {
    for (kind, spec) in kinds_of_unbindable() {
        let mut desk = Desk::new(4);
        bound(&mut desk);
        unbindable(&mut desk, 40, spec);
        desk.settle();
        desk.now += 1_000;
        let good = bindable(&mut desk, &["a", "b", "c"]);
        let begin = desk.now;
        desk.settle();
        while good.iter().any(|name| desk.node_of(name).is_none()) && desk.now - begin <= 20 * HOLD {
            desk.now += 1_000;
            desk.settle();
        }
        assert!(desk.now - begin <= HOLD, "{kind}: {} ms", desk.now - begin);
    }
}

#[test]
fn forty_pods_that_lost_a_hold_give_way_at_once() {
    for (kind, spec) in kinds_of_unbindable() {
        let mut desk = Desk::new(4);
        bound(&mut desk);
        unbindable(&mut desk, 40, spec);
        for _ in 0..12 {
            desk.settle();
            desk.now += HOLD;
        }
        desk.settle();
        desk.now += 1_000;
        let good = bindable(&mut desk, &["a", "b", "c"]);
        let (_, verdicts) = desk.settle();
        let nodes: Vec<_> = good.iter().filter_map(|name| desk.node_of(name)).collect();
        assert_eq!(nodes.len(), 3, "{kind}: {nodes:?} of {verdicts:?}");
        assert!(said(&verdicts).contains(&"HoldGaveWay"), "{kind}: {verdicts:?}");
        let is_refused = |name: &&str| {
            verdicts
                .iter()
                .any(|(about, _)| about.object == Object::Pod && about.name == **name)
        };
        assert!(!good.iter().any(is_refused), "{kind}: {verdicts:?}");
    }
}

#[test]
fn a_hold_is_not_given_up_where_that_helps_nobody() {
    let mut desk = Desk::new(1);
    unbindable(&mut desk, 1, |_| json!({}));
    desk.settle();
    desk.now += HOLD;
    desk.settle();
    assert!(
        desk.node_of("bad-0").is_some(),
        "it tries again: nobody else wants the GPU"
    );
    desk.fraction("large", GPU + 1);
    desk.pod("large", &["large"], json!({}));
    let (_, verdicts) = desk.settle();
    assert!(said(&verdicts).contains(&"NoNodeFits"), "{verdicts:?}");
    assert!(desk.node_of("bad-0").is_some());
}

#[test]
fn a_gang_gives_way_as_a_whole_and_is_given_way_to() {
    let gang = |name: &str| json!({"metadata": {"annotations": {"dra.vgpu/gang": name, "dra.vgpu/gang-size": "2"}}});
    let mut desk = Desk::new(2);
    for name in ["bad-0", "bad-1"] {
        desk.fraction(name, GPU);
        desk.pod(name, &[name], gang("bad"));
    }
    desk.settle();
    desk.now += HOLD;
    desk.settle();
    assert!(desk.node_of("bad-0").is_some() && desk.node_of("bad-1").is_some());
    desk.fraction("single", 1);
    desk.pod("single", &["single"], json!({}));
    desk.settle();
    assert!(desk.node_of("single").is_some());
    assert_eq!((desk.node_of("bad-0"), desk.node_of("bad-1")), (None, None));
    desk.tell(Change::PodGone {
        key: "ns/single".into(),
    });
    desk.settle();
    assert!(desk.node_of("bad-0").is_some(), "it has the GPUs again");
    for name in ["good-0", "good-1"] {
        desk.fraction(name, GPU);
        desk.pod(name, &[name], gang("good"));
    }
    desk.settle();
    assert!(desk.node_of("good-0").is_some() && desk.node_of("good-1").is_some());
}
