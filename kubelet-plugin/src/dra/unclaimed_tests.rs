//! Shares without a claim: who gets an event, and when nobody does.

use super::*;
use crate::dra::unclaimed::GONE_FOR;

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
        served
            .prepare_new(held_by(claim("u1", &[("u1", 20, 25)]), &["old"]))
            .await;
        *served.api.pods.lock().expect("lock") = vec![Pod {
            namespace: "d".into(),
            name: "old".into(),
            uid: "old-uid".into(),
            ..Pod::default()
        }];
        let containers = Containers::with(&["u1"]);
        Self {
            served,
            clean_up: CleanUp::new(containers.clone(), node_object()),
            containers,
            start: Instant::now(),
            rounds: 0,
        }
    }

    /// The rounds within `GONE_FOR`, and one more.
    async fn rounds(&mut self) {
        for _ in 0..=4 {
            self.next_round().await;
        }
    }

    async fn next_round(&mut self) {
        let after = self.rounds * (GONE_FOR / 4);
        self.rounds += 1;
        self.round(after).await;
    }

    /// A round at this time after the start.
    async fn round(&mut self, after: Duration) {
        let (node, api) = (&self.served.node, &self.served.api);
        let now = self.start + after;
        self.clean_up.run(node, api, &Metrics::default(), now).await;
    }

    fn events(&self) -> Vec<(ObjectReference, String)> {
        std::mem::take(&mut *self.served.api.events.lock().expect("lock"))
    }

    fn metric(&self) -> Option<String> {
        let registry = Metrics::default().registry(crate::metrics::Sources::new(self.served.node.clone()));
        let text = crate::metrics::page(&registry);
        let start = format!(
            "vgpu_gpu_shares_without_claim{{node=\"n1\",gpu=\"{}\"",
            crate::dra::share::tests::GPU
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
async fn nothing_uncertain_is_reported() {
    let mut alone = Alone::new().await;
    // The API server is down, for longer than anybody waits.
    alone.served.api.drop_claim("u1");
    *alone.served.api.down.lock().expect("lock") = true;
    alone.rounds().await;
    assert_eq!((alone.events().len(), alone.metric()), (0, Some("0".into())));
    // The API server is back, but processes cannot be read.
    *alone.served.api.down.lock().expect("lock") = false;
    alone.containers.set(Err("cannot be read".into()));
    alone.rounds().await;
    assert_eq!((alone.events().len(), alone.metric()), (0, None));
    // The claim is there again in time.
    alone.containers.set(Containers::of(&["u1"]));
    for _ in 0..3 {
        alone.next_round().await;
    }
    alone.served.api.put(held_by(claim("u1", &[("u1", 20, 25)]), &["old"]));
    alone.rounds().await;
    assert_eq!((alone.events().len(), alone.metric()), (0, Some("0".into())));
}

#[tokio::test]
async fn a_pod_that_ends_within_the_wait_is_not_told_of() {
    let mut alone = Alone::new().await;
    alone.served.api.drop_claim("u1");
    for after in [Duration::ZERO, GONE_FOR / 2] {
        alone.round(after).await;
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
    alone.round(Duration::ZERO).await;
    // GETs are answered, and the list of pods is not.
    *alone.served.api.no_pods.lock().expect("lock") = true;
    alone.round(GONE_FOR).await;
    assert_eq!((alone.events().len(), alone.metric()), (0, Some("1".into())));
    *alone.served.api.no_pods.lock().expect("lock") = false;
    alone.round(GONE_FOR * 2).await;
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
    // Now the claim has all of the GPU's memory.
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
    // The claim was found gone just now: the event will come, because the Prepare makes the node read that claim next.
    let error = refusal().await;
    for part in [
        "ResourceClaim tenant/wanted (uid new): device gpu-3f8a1c20 has no room for 30Gi: 75Gi of 80Gi memory are prepared for \
         a claim of another namespace",
        "room was waited for (15 s at most), and a share without a claim holds 75Gi of that GPU",
        "ask the cluster's administrator, the event ShareWithoutClaim on this node says which within two minutes",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert_eq!(alone.served.node.take_suspects(), ["u1".to_owned()].into());
    alone.rounds().await;
    assert_eq!(alone.events().len(), 1);
    // The claim was found gone long ago.
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
    // Processes cannot be read any more.
    alone.containers.set(Err("cannot be read".into()));
    alone.rounds().await;
    let error = refusal().await;
    assert!(
        error.contains("75Gi of that GPU are those of ended claims of other namespaces")
            && error.contains("cannot be read"),
        "{error}"
    );
    // The claim exists: the refusal says only that there is no room.
    alone.containers.set(Containers::of(&["u1"]));
    alone.served.api.put(held_by(claim("u1", &[("u1", 75, 0)]), &["old"]));
    alone.rounds().await;
    let error = refusal().await;
    assert!(error.ends_with("once their pods are gone"), "{error}");
}
