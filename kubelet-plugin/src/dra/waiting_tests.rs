//! A Prepare that waits for the room of a claim that is gone. The clock is paused: a wait takes no time.

use super::*;
use crate::dra::waiting::ROOM_WITHIN;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// A node whose GPU 0 is full: claim `old` of pod `old` has all of its memory.
struct Full {
    rig: Rig,
    api: Memory,
    node: SharedNode,
    containers: Containers,
    driver: Arc<Service<Memory, Containers>>,
}

type Call = JoinHandle<Result<Vec<Prepared>, String>>;

impl Full {
    async fn new() -> Self {
        let rig = Rig::new(false);
        let api = Memory::default();
        let node = SharedNode::new(rig.open());
        let containers = Containers::with(&["old"]);
        let driver = Arc::new(service_beside(&node, &api, containers.clone()));
        let full = Self {
            rig,
            api,
            node,
            containers,
            driver,
        };
        full.put("old", 80);
        assert!(full.prepare("old").await.expect("no panic").is_ok());
        full
    }

    /// Adds a claim of this many GiB, with its own pod.
    fn put(&self, uid: &str, memory: u64) {
        self.api.put(held_by(claim(uid, &[(uid, memory, 0)]), &[uid]));
    }

    fn prepare(&self, uid: &str) -> Call {
        let (driver, id) = (self.driver.clone(), id(uid));
        tokio::spawn(async move { driver.prepare(vec![id]).await.into_values().next().expect("an answer") })
    }

    /// A new claim that needs the room of `old`, whose pod was deleted by force.
    async fn waiting(&self) -> Call {
        self.api.drop_claim("old");
        self.put("new", 30);
        let call = self.prepare("new");
        tokio::time::sleep(ROOM_WITHIN / 3).await;
        assert!(!call.is_finished(), "waits");
        call
    }

    async fn unprepare(&self, uid: &str) {
        assert_eq!(self.driver.unprepare(vec![id(uid)]).await[uid], Ok(()));
    }

    fn prepared(&self) -> Vec<String> {
        self.node.lock().claims().claims.keys().cloned().collect()
    }
}

/// The refusal, and how long it took from `since`.
async fn refused(call: Call, since: Instant) -> (String, Duration) {
    let error = call.await.expect("no panic").expect_err("refused");
    (error, since.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_prepare_gets_the_place_of_a_claim_that_is_gone_when_that_is_unprepared() {
    let full = Full::new().await;
    let call = full.waiting().await;
    let since = Instant::now();
    full.unprepare("old").await;
    assert!(call.await.expect("no panic").is_ok());
    assert!(
        since.elapsed() < Duration::from_millis(100),
        "at once: {:?}",
        since.elapsed()
    );
    assert_eq!(full.prepared(), ["new"]);
}

#[tokio::test(start_paused = true)]
async fn it_is_refused_after_15_s_with_pod_and_process_and_holds_up_nobody() {
    let full = Full::new().await;
    let since = Instant::now();
    let call = full.waiting().await;
    // Others are prepared and unprepared meanwhile, on this GPU too.
    let (id, other) = claim("other", &[("other", 20, 25)]);
    full.api.put((id, on_gpu_1(&other)));
    let during = Instant::now();
    assert!(full.prepare("other").await.expect("no panic").is_ok());
    full.unprepare("other").await;
    full.unprepare("unknown").await;
    assert!(during.elapsed() < Duration::from_millis(100), "{:?}", during.elapsed());
    let (error, took) = refused(call, since).await;
    assert!(
        took >= ROOM_WITHIN && took < ROOM_WITHIN + Duration::from_secs(2),
        "{took:?}"
    );
    for part in [
        "ResourceClaim d/claim-new",
        "device gpu-3f8a1c20 has no room for 30Gi",
        "kubelet retries",
        "ResourceClaim d/claim-old (uid old) is gone",
        "pod d/old (uid old-uid)",
        "share old",
        "process 4711 (python)",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    // kubelet's retry waits again.
    full.unprepare("old").await;
    assert!(full.prepare("new").await.expect("no panic").is_ok());
}

#[tokio::test(start_paused = true)]
async fn the_pods_of_a_claim_are_named_after_a_restart_too() {
    let full = Full::new().await;
    let node = SharedNode::new(full.rig.open());
    let driver = Arc::new(service_beside(&node, &full.api, full.containers.clone()));
    let full = Full { node, driver, ..full };
    let since = Instant::now();
    let (error, _) = refused(full.waiting().await, since).await;
    assert!(error.contains("pod d/old (uid old-uid)"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_exists_is_not_waited_for() {
    let full = Full::new().await;
    full.put("new", 30);
    let at_once = |took: Duration| assert!(took < Duration::from_millis(500), "{took:?}");
    let since = Instant::now();
    let (error, took) = refused(full.prepare("new"), since).await;
    at_once(took);
    assert!(error.contains("claim-old") && !error.contains("is gone"), "{error}");
    // Two claims hold the room that the new one needs, and one of them exists.
    full.unprepare("old").await;
    for uid in ["one", "two"] {
        full.put(uid, 40);
        assert!(full.prepare(uid).await.expect("no panic").is_ok());
    }
    full.api.drop_claim("one");
    full.put("new", 60);
    let since = Instant::now();
    at_once(refused(full.prepare("new"), since).await.1);
    // A smaller claim needs only the room of the claim that is gone, so it waits.
    full.put("new", 30);
    let call = full.prepare("new");
    tokio::time::sleep(ROOM_WITHIN / 3).await;
    assert!(!call.is_finished());
    full.unprepare("one").await;
    assert!(call.await.expect("no panic").is_ok());
    // A claim whose state is unknown is not treated as gone.
    full.put("more", 80);
    *full.api.down.lock().expect("lock") = true;
    let since = Instant::now();
    at_once(refused(full.prepare("more"), since).await.1);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_reserved_for_nobody_is_waited_for_and_not_released() {
    let full = Full::new().await;
    full.api.put(held_by(claim("old", &[("old", 80, 0)]), &[]));
    full.put("new", 30);
    let call = full.prepare("new");
    tokio::time::sleep(ROOM_WITHIN / 3).await;
    full.containers.set(Containers::of(&[]));
    let since = Instant::now();
    let (_, took) = refused(call, since).await;
    assert!(took > ROOM_WITHIN / 3, "{took:?}");
    assert_eq!(full.prepared(), ["old"]);
}

#[tokio::test(start_paused = true)]
async fn of_two_that_wait_for_one_place_one_gets_it_and_the_other_one_is_refused() {
    let full = Full::new().await;
    let first = full.waiting().await;
    full.put("second", 60);
    let second = full.prepare("second");
    tokio::time::sleep(ROOM_WITHIN / 5).await;
    assert!(!first.is_finished() && !second.is_finished());
    let since = Instant::now();
    full.unprepare("old").await;
    let answers = [first.await.expect("no panic"), second.await.expect("no panic")];
    assert!(since.elapsed() < Duration::from_secs(1), "{:?}", since.elapsed());
    let refusals: Vec<&String> = answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
    assert_eq!((refusals.len(), full.prepared().len()), (1, 1));
    let winner = &full.prepared()[0];
    assert!(refusals[0].contains(&format!("claim-{winner} ")), "{}", refusals[0]);
}

#[tokio::test(start_paused = true)]
async fn two_that_fit_beside_each_other_both_get_their_places() {
    let full = Full::new().await;
    let first = full.waiting().await;
    full.put("second", 50);
    let second = full.prepare("second");
    tokio::time::sleep(ROOM_WITHIN / 5).await;
    full.unprepare("old").await;
    assert!(first.await.expect("no panic").is_ok() && second.await.expect("no panic").is_ok());
}

#[tokio::test(start_paused = true)]
async fn an_unprepare_of_the_claim_that_waits_ends_the_wait() {
    let full = Full::new().await;
    let call = full.waiting().await;
    let since = Instant::now();
    full.unprepare("new").await;
    let (error, took) = refused(call, since).await;
    assert!(
        error.contains("was unprepared") && took < Duration::from_millis(100),
        "{took:?} {error}"
    );
    full.unprepare("old").await;
    tokio::time::sleep(ROOM_WITHIN).await;
    assert_eq!(full.prepared(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_kubelet_cancels_leaves_nothing() {
    let full = Full::new().await;
    let call = full.waiting().await;
    call.abort();
    assert!(call.await.expect_err("cancelled").is_cancelled());
    full.unprepare("old").await;
    tokio::time::sleep(ROOM_WITHIN).await;
    assert_eq!(full.prepared(), [""; 0]);
    assert!(full.driver.reading.lock().expect("lock").calls.is_empty());
    assert!(full.prepare("new").await.expect("no panic").is_ok(), "the next call");
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_ends_while_a_call_waits_leaves_what_was_there() {
    let full = Full::new().await;
    let call = full.waiting().await;
    // The next instance starts while the killed one's call is open.
    let next = full.rig.open();
    assert_eq!(next.claims().claims.keys().collect::<Vec<_>>(), ["old"]);
    assert!(!full.rig.path("run/claims/new").exists());
    call.abort();
    // An instance that ends by itself answers at once.
    let (stop, stopped) = watch::channel(false);
    let (node, api, containers) = (SharedNode::new(next), full.api.clone(), full.containers.clone());
    let driver = Arc::new(Service::new(node, api, containers, Metrics::default(), stopped));
    let full = Full { driver, ..full };
    let call = full.waiting().await;
    let since = Instant::now();
    stop.send_replace(true);
    let (_, took) = refused(call, since).await;
    assert!(took < Duration::from_millis(100), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn the_place_of_a_claim_whose_last_process_ends_is_released_without_an_unprepare() {
    let full = Full::new().await;
    let call = full.waiting().await;
    full.containers.set(Err("cannot be read".into()));
    tokio::time::sleep(ROOM_WITHIN / 5).await;
    assert!(!call.is_finished(), "not known is not nobody");
    full.containers.set(Containers::of(&[]));
    assert!(call.await.expect("no panic").is_ok());
    assert_eq!(full.prepared(), ["new"]);
}

/// It is not released at once, because a container may be starting. But it is released within the wait, because kubelet
/// has lost its state and would ask again only after a minute.
#[tokio::test(start_paused = true)]
async fn the_place_of_a_claim_of_which_no_process_is_seen_is_released_within_the_wait() {
    let full = Full::new().await;
    full.containers.set(Containers::of(&[]));
    let since = Instant::now();
    assert!(full.waiting().await.await.expect("no panic").is_ok());
    let took = since.elapsed();
    assert!(took >= ROOM_WITHIN / 3 && took < ROOM_WITHIN / 2, "{took:?}");
    assert_eq!(full.prepared(), ["new"]);
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_was_allocated_here_again_is_not_released() {
    let full = Full::new().await;
    let call = full.waiting().await;
    full.put("old", 80);
    full.containers.set(Containers::of(&[]));
    let since = Instant::now();
    refused(call, since).await;
    assert_eq!(full.prepared(), ["old"]);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_was_deleted_while_it_waited_is_not_prepared() {
    let full = Full::new().await;
    let call = full.waiting().await;
    full.api.drop_claim("new");
    full.unprepare("old").await;
    let error = call.await.expect("no panic").expect_err("refused");
    assert!(error.contains("does not exist"), "{error}");
    assert_eq!(full.prepared(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn what_the_other_instance_unprepares_is_seen_too() {
    let full = Full::new().await;
    let mut other = full.rig.open();
    let call = full.waiting().await;
    let since = Instant::now();
    let locked = other.locked();
    assert!(other.unprepare(&locked, &["old"])[0].is_ok());
    drop(locked);
    assert!(call.await.expect("no panic").is_ok());
    assert!(since.elapsed() < Duration::from_secs(3), "{:?}", since.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_api_server_was_slow_still_answers_before_kubelet_gives_up() {
    let full = Full::new().await;
    full.api.drop_claim("old");
    full.put("new", 30);
    let gate = Arc::new(Notify::new());
    *full.api.slow.lock().expect("lock") = Some(gate.clone());
    let since = Instant::now();
    let call = full.prepare("new");
    tokio::time::sleep(Duration::from_secs(19)).await;
    *full.api.slow.lock().expect("lock") = None;
    gate.notify_waiters();
    let (error, took) = refused(call, since).await;
    assert!(
        error.contains("is gone") && took < Duration::from_secs(33),
        "{took:?} {error}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_share_that_is_prepared_beside_one_that_waits_is_taken_back_by_its_unprepare() {
    let full = Full::new().await;
    full.api.drop_claim("old");
    full.put("new", 30);
    let (id_of, other) = claim("beside", &[("beside", 20, 25)]);
    full.api.put((id_of, on_gpu_1(&other)));
    let driver = full.driver.clone();
    let call = tokio::spawn(async move { driver.prepare(vec![id("new"), id("beside")]).await });
    tokio::time::sleep(ROOM_WITHIN / 3).await;
    assert_eq!(full.prepared(), ["beside", "old"]);
    full.unprepare("beside").await;
    full.unprepare("old").await;
    let answers = call.await.expect("no panic");
    assert!(answers["new"].is_ok() && answers["beside"].is_err(), "{answers:?}");
    assert_eq!(full.prepared(), ["new"]);
}
