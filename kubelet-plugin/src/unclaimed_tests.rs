//! Shares without a claim: who is told, and when nobody is.

use super::*;
use crate::unclaimed::PATIENCE;

/// Claim `u1` of pod `old`, whose container lives, and an API server.
struct Alone {
    served: Served,
    containers: Containers,
    clean_up: CleanUp<Containers>,
    start: Instant,
    rounds: u32,
}

impl Alone {
    async fn new() -> Self {
        let served = Served::new().await;
        served.api.put(held_by(claim("u1", &[("u1", 20, 25)]), &["old"]));
        assert_eq!(served.prepare(&["u1"]).await["u1"].error, "");
        *served.api.pods.lock().expect("lock") = vec![Pod {
            namespace: "d".into(),
            name: "old".into(),
            uid: "old-uid".into(),
            ..Pod::default()
        }];
        let containers = Containers(Arc::new(Mutex::new(Containers::of(&["u1"]))));
        Self {
            served,
            clean_up: CleanUp::new(containers.clone(), node_object()),
            containers,
            start: Instant::now(),
            rounds: 0,
        }
    }

    /// The rounds within `PATIENCE`, and one more.
    async fn rounds(&mut self) {
        for _ in 0..=4 {
            let now = self.start + self.rounds * (PATIENCE / 4);
            self.rounds += 1;
            let (node, api) = (&self.served.node, &self.served.api);
            self.clean_up.run(node, api, &Metrics::default(), now).await;
        }
    }

    fn events(&self) -> Vec<(ObjectReference, String)> {
        std::mem::take(&mut *self.served.api.events.lock().expect("lock"))
    }

    fn metric(&self) -> Option<String> {
        let registry = Metrics::default().registry(crate::metrics::Sources::new(self.served.node.clone()));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("encoded");
        let start = format!(
            "vgpu_gpu_shares_without_claim{{node=\"n1\",gpu=\"{}\"",
            crate::share::tests::GPU
        );
        let line = text.lines().find(|line| line.starts_with(&start))?;
        line.rsplit(' ').next().map(str::to_owned)
    }
}

#[tokio::test]
async fn the_node_has_one_event_for_each_share_without_a_claim_while_it_lasts() {
    let mut alone = Alone::new().await;
    assert_eq!(alone.metric(), None, "not known yet");
    alone.rounds().await;
    assert_eq!((alone.events().len(), alone.metric()), (0, Some("0".into())));
    alone.served.api.drop_claim("u1");
    for expected in [1, 0] {
        alone.rounds().await;
        let events = alone.events();
        assert_eq!(events.len(), expected, "{events:?}");
        for (regarding, text) in events {
            assert_eq!(regarding, node_object());
            for part in [
                "ShareWithoutClaim: pod d/old (uid old-uid) has 20Gi",
                "claim-u1",
                "was deleted",
            ] {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
        assert_eq!(alone.metric(), Some("1".into()));
    }
    // The pod is deleted, and the last container ends: the share is released.
    alone.containers.set(Containers::of(&[]));
    alone.rounds().await;
    assert_eq!((alone.events().len(), alone.metric()), (0, Some("0".into())));
    assert!(alone.served.node.lock().claims().claims.is_empty());
}

#[tokio::test]
async fn what_is_not_known_is_not_told() {
    let mut alone = Alone::new().await;
    // The API server is down, for longer than anybody waits.
    alone.served.api.drop_claim("u1");
    *alone.served.api.down.lock().expect("lock") = true;
    alone.rounds().await;
    assert_eq!((alone.events().len(), alone.metric()), (0, Some("0".into())));
    // It is back, but who lives cannot be read.
    *alone.served.api.down.lock().expect("lock") = false;
    alone.containers.set(Err("cannot be read".into()));
    alone.rounds().await;
    assert_eq!((alone.events().len(), alone.metric()), (0, None));
    // The claim is there again in time.
    alone.containers.set(Containers::of(&["u1"]));
    for _ in 0..3 {
        let now = alone.start + alone.rounds * (PATIENCE / 4);
        alone.rounds += 1;
        let (node, api) = (&alone.served.node, &alone.served.api);
        alone.clean_up.run(node, api, &Metrics::default(), now).await;
    }
    alone.served.api.put(held_by(claim("u1", &[("u1", 20, 25)]), &["old"]));
    alone.rounds().await;
    assert_eq!((alone.events().len(), alone.metric()), (0, Some("0".into())));
}

#[tokio::test]
async fn a_pod_that_ends_within_the_wait_is_not_told_of() {
    let mut alone = Alone::new().await;
    alone.served.api.drop_claim("u1");
    for after in [Duration::ZERO, PATIENCE / 2] {
        let (node, api) = (&alone.served.node, &alone.served.api);
        alone
            .clean_up
            .run(node, api, &Metrics::default(), alone.start + after)
            .await;
    }
    alone.containers.set(Containers::of(&[]));
    alone.rounds += 3;
    alone.rounds().await;
    assert_eq!((alone.events().len(), alone.metric()), (0, Some("0".into())));
}

#[tokio::test]
async fn an_event_waits_for_the_names_of_the_pods_and_the_metric_does_not() {
    let mut alone = Alone::new().await;
    alone.served.api.drop_claim("u1");
    let now = |alone: &Alone, after: Duration| alone.start + after;
    let (node, api) = (alone.served.node.clone(), alone.served.api.clone());
    let at = now(&alone, Duration::ZERO);
    alone.clean_up.run(&node, &api, &Metrics::default(), at).await;
    // GETs are answered, and the list of pods is not.
    *api.no_pods.lock().expect("lock") = true;
    let at = now(&alone, PATIENCE);
    alone.clean_up.run(&node, &api, &Metrics::default(), at).await;
    assert_eq!((alone.events().len(), alone.metric()), (0, Some("1".into())));
    *api.no_pods.lock().expect("lock") = false;
    let at = now(&alone, PATIENCE * 2);
    alone.clean_up.run(&node, &api, &Metrics::default(), at).await;
    assert_eq!(alone.events().len(), 1);
    // After a restart it is repeated once.
    alone.clean_up = CleanUp::new(alone.containers.clone(), node_object());
    alone.rounds += 20;
    alone.rounds().await;
    alone.rounds().await;
    assert_eq!(alone.events().len(), 1);
}

#[tokio::test]
async fn a_claim_that_was_allocated_again_beside_its_former_share_is_told_of() {
    let mut alone = Alone::new().await;
    alone
        .served
        .api
        .put(held_by(claim("u1", &[("another", 20, 25)]), &["next"]));
    alone.rounds().await;
    let events = alone.events();
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(
        events[0].1.contains("was allocated again, and has other shares"),
        "{}",
        events[0].1
    );
}

#[tokio::test(start_paused = true)]
async fn who_waits_in_another_namespace_is_told_how_much_and_no_name() {
    let mut alone = Alone::new().await;
    // All of the GPU.
    alone.served.unprepare(&["u1"]).await;
    alone.served.api.put(held_by(claim("u1", &[("u1", 75, 0)]), &["old"]));
    assert_eq!(alone.served.prepare(&["u1"]).await["u1"].error, "");
    alone.served.api.drop_claim("u1");
    let driver = service_beside(&alone.served.node, &alone.served.api, alone.containers.clone());
    let (_, mut waiting) = claim("new", &[("new", 30, 0)]);
    waiting.metadata.namespace = Some("tenant".into());
    let wanted = ClaimId {
        namespace: "tenant".into(),
        name: "wanted".into(),
        uid: "new".into(),
    };
    alone.served.api.put((wanted.clone(), waiting));
    let refusal = async || {
        let answers = driver.prepare(vec![wanted.clone()]).await;
        let error = answers["new"].as_ref().expect_err("no room").clone();
        for secret in [" d/", "claim-u1", "u1", "old-uid", "pod ", "4711", "python"] {
            assert!(!error.contains(secret), "{secret}: {error}");
        }
        error
    };
    // Found gone just now: the event will come, as the Prepare has the node look at that claim next.
    let error = refusal().await;
    for part in [
        "ResourceClaim tenant/wanted (uid new): device gpu-3f8a1c20 has no room for 30Gi: 75Gi of 80Gi memory are prepared for \
         a claim of another namespace",
        "room was waited for (15 s at most), and a share without a claim holds 75Gi of that GPU",
        "ask the cluster's administrator, the event ShareWithoutClaim on this node says which within two minutes",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert_eq!(alone.served.node.lock().take_suspects(), ["u1".to_owned()].into());
    alone.rounds().await;
    assert_eq!(alone.events().len(), 1);
    // Known for long.
    let error = refusal().await;
    assert!(
        error.contains("a share without a claim holds 75Gi of that GPU"),
        "{error}"
    );
    assert!(
        error.ends_with("the event ShareWithoutClaim on this node says which"),
        "{error}"
    );
    assert_eq!(error.matches("without a claim").count(), 1, "{error}");
    // It ends, but nobody sees processes.
    alone.containers.set(Err("cannot be read".into()));
    alone.rounds().await;
    let error = refusal().await;
    assert!(
        error.contains("75Gi of that GPU are those of ended claims of other namespaces")
            && error.contains("cannot be read"),
        "{error}"
    );
    // Its claim is there: only that there is no room.
    alone.containers.set(Containers::of(&["u1"]));
    alone.served.api.put(held_by(claim("u1", &[("u1", 75, 0)]), &["old"]));
    alone.rounds().await;
    let error = refusal().await;
    assert!(error.ends_with("once their pods are gone"), "{error}");
}
