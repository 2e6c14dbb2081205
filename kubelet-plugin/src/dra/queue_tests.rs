//! Calls that one turn serves.

use super::*;

/// A node with `count` claims in the API, whose lock another instance has.
async fn with_calls(count: usize) -> (Rig, SharedNode, Arc<Service<Memory, Containers>>, Vec<ClaimId>) {
    let (rig, api) = (Rig::new(false), Memory::default());
    let node = SharedNode::new(rig.open());
    let ids = (0..count).map(|n| {
        let uid = format!("u{n}");
        let (id, claim) = claim(&uid, &[(uid.as_str(), 1, 0)]);
        api.put((id.clone(), claim));
        id
    });
    let ids = ids.collect();
    let driver = Arc::new(service(&node, &api));
    (rig, node, driver, ids)
}

fn calls(driver: &Arc<Service<Memory, Containers>>, ids: &[ClaimId]) -> Vec<tokio::task::JoinHandle<Texts>> {
    let call = |id: &ClaimId| {
        let (driver, id) = (driver.clone(), id.clone());
        tokio::spawn(async move { driver.prepare(vec![id]).await })
    };
    ids.iter().map(call).collect()
}

type Texts = BTreeMap<String, Result<Vec<Prepared>, String>>;

#[tokio::test(start_paused = true)]
async fn each_of_many_calls_at_once_gets_its_own_answer() {
    let (rig, node, driver, ids) = with_calls(64).await;
    let other = LockFile::open(&rig.config().lock).expect("opened");
    let taken = take(&other);
    let calls = calls(&driver, &ids);
    tokio::time::sleep(LOCKED_WITHIN / 2).await;
    drop(taken);
    for (call, id) in calls.into_iter().zip(&ids) {
        let answers = call.await.expect("no panic");
        let devices = answers[&id.uid].as_ref().expect("prepared");
        assert_eq!(
            (answers.len(), devices[0].share_id.as_deref()),
            (1, Some(id.uid.as_str()))
        );
    }
    let slots: std::collections::BTreeSet<_> = {
        let node = node.lock();
        let entries = node.claims().claims.values();
        entries.map(|entry| entry.shares[0].slot).collect()
    };
    assert_eq!(slots.len(), 64, "each has a slot of its own");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_cancelled_while_it_waits_is_left_out() {
    let (rig, node, driver, ids) = with_calls(3).await;
    let other = LockFile::open(&rig.config().lock).expect("opened");
    let taken = take(&other);
    let calls = calls(&driver, &ids);
    tokio::time::sleep(LOCKED_WITHIN / 2).await;
    calls[1].abort();
    tokio::time::sleep(LOCKED_WITHIN / 10).await;
    drop(taken);
    for (at, call) in calls.into_iter().enumerate() {
        match call.await {
            Ok(answers) => assert!(answers[&ids[at].uid].is_ok()),
            Err(error) => assert!(error.is_cancelled() && at == 1),
        }
    }
    assert_eq!(node.lock().claims().claims.keys().collect::<Vec<_>>(), ["u0", "u2"]);
}

#[tokio::test(start_paused = true)]
async fn the_call_whose_turn_it_is_may_go_away() {
    let (rig, node, driver, ids) = with_calls(3).await;
    let other = LockFile::open(&rig.config().lock).expect("opened");
    let taken = take(&other);
    let calls = calls(&driver, &ids);
    tokio::time::sleep(LOCKED_WITHIN / 2).await;
    // The first call is the one that waits for the lock file.
    calls[0].abort();
    drop(taken);
    let mut prepared = 0;
    for call in calls {
        prepared += usize::from(call.await.is_ok_and(|answers| answers.values().all(Result::is_ok)));
    }
    assert_eq!(prepared, 2);
    assert_eq!(node.lock().claims().claims.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_unprepared_while_its_call_waits_is_refused() {
    let (rig, node, driver, ids) = with_calls(2).await;
    let other = LockFile::open(&rig.config().lock).expect("opened");
    let taken = take(&other);
    let unprepared = {
        let (driver, id) = (driver.clone(), ids[1].clone());
        tokio::spawn(async move { driver.unprepare(vec![id]).await })
    };
    tokio::time::sleep(LOCKED_WITHIN / 10).await;
    let calls = calls(&driver, &ids);
    tokio::time::sleep(LOCKED_WITHIN / 10).await;
    drop(taken);
    assert!(unprepared.await.expect("no panic")["u1"].is_ok());
    let mut errors = Vec::new();
    for call in calls {
        errors.extend(call.await.expect("no panic").into_values().filter_map(Result::err));
    }
    assert!(errors.len() == 1 && errors[0].contains("was unprepared"), "{errors:?}");
    assert_eq!(node.lock().claims().claims.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn one_turn_prepares_the_claims_of_all_calls_that_wait() {
    let (rig, node, ..) = with_calls(0).await;
    let other = LockFile::open(&rig.config().lock).expect("opened");
    let taken = take(&other);
    let read = |uid: &str| claim(uid, &[(uid, 1, 0)]);
    let calls = [
        (vec![read("u1"), read("u2")], BTreeSet::new()),
        (vec![read("u3"), read("u4")], BTreeSet::from(["u3".to_owned()])),
        (vec![read("u5")], BTreeSet::new()),
    ];
    let calls = calls.map(|(batch, unprepared)| {
        let node = node.clone();
        tokio::spawn(async move { node.prepare(batch, move || unprepared).await.expect("a turn") })
    });
    tokio::time::sleep(LOCKED_WITHIN / 2).await;
    drop(taken);
    let (mut shares, mut began) = (Vec::new(), BTreeSet::new());
    for call in calls {
        let done = call.await.expect("no panic");
        let answers = done.answers.into_iter();
        shares.push(Vec::from_iter(
            answers.map(|answer| answer?.expect("prepared")[0].share_id.clone()),
        ));
        began.insert(done.began);
    }
    let some = |uid: &str| Some(uid.to_owned());
    assert_eq!(
        shares,
        [vec![some("u1"), some("u2")], vec![None, some("u4")], vec![some("u5")]]
    );
    assert_eq!(began.len(), 1, "one turn");
    let node = node.lock();
    assert_eq!(
        node.claims().claims.keys().collect::<Vec<_>>(),
        ["u1", "u2", "u4", "u5"]
    );
}

#[tokio::test(start_paused = true)]
async fn one_turn_unprepares_the_claims_of_all_calls_that_wait() {
    let (rig, node, driver, ids) = with_calls(4).await;
    for call in calls(&driver, &ids) {
        assert!(call.await.expect("no panic").values().all(Result::is_ok));
    }
    let other = LockFile::open(&rig.config().lock).expect("opened");
    let taken = take(&other);
    let first = rig.path("run/claims/u0/u0/limits");
    let ends = [
        vec![ids[0].clone()],
        vec![id("../x"), ids[1].clone()],
        vec![ids[2].clone()],
        vec![],
    ];
    let ends = ends.map(|claims| {
        let (node, first) = (node.clone(), first.clone());
        let begins = move || assert!(first.exists(), "another turn has unprepared a claim of this one");
        tokio::spawn(async move { node.unprepare(claims, begins).await.expect("a turn") })
    });
    tokio::time::sleep(LOCKED_WITHIN / 2).await;
    ends[2].abort();
    tokio::time::sleep(LOCKED_WITHIN / 10).await;
    drop(taken);
    let mut ended = Vec::new();
    for call in ends {
        let answers = call.await.ok();
        ended.push(answers.map(|answers| answers.iter().map(Result::is_ok).collect()));
    }
    assert_eq!(ended, [Some(vec![true]), Some(vec![false, true]), None, Some(vec![])]);
    let node = node.lock();
    assert_eq!(node.claims().claims.keys().collect::<Vec<_>>(), ["u2", "u3"]);
    let failed = node.not_unprepared();
    assert_eq!(
        failed.iter().map(|(id, _)| id.uid.as_str()).collect::<Vec<_>>(),
        ["../x"]
    );
}
