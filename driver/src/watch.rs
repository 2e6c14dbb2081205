//! The watches, as one stream of changes.

use futures::stream::{BoxStream, StreamExt as _, select_all};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use serde::de::DeserializeOwned;

use crate::cluster::{Change, Step};
use crate::control::feed::Fed;
use crate::control::objects;
use crate::{convert, wire};

const RULES: &str = "devicetaintrules";

/// What a watch brings: for the explanations, and in controller mode for the planner.
pub(crate) enum Brought {
    Change(Box<Change>),
    Fed(Box<Fed>),
}

/// A change, or why a watch of a kind stumbled; it goes on by itself, with backoff.
pub(crate) type Watched = Result<Brought, (&'static str, watcher::Error)>;

/// Watches what kube-scheduler reads of devices: all slices and classes, because a claim may ask for devices of other
/// drivers beside ours, and what their claims hold. Of pods only those that wait.
pub(crate) fn watch(client: &Client) -> BoxStream<'static, Watched> {
    let waiting = watcher::Config::default().fields("spec.nodeName=,status.phase=Pending");
    select_all([
        follow(Api::<Pod>::all(client.clone()), waiting, "pods", |step| {
            Change::Pod(into(step, convert::pod))
        }),
        follow_all::<wire::Node, _>(client, "nodes", |step| Change::Node(into(step, Into::into))),
        follow_all::<wire::Class, _>(client, "deviceclasses", |step| Change::Class(into(step, Into::into))),
        follow_all::<wire::Slice, _>(client, "resourceslices", |step| Change::Slice(into(step, Into::into))),
        follow_all::<wire::Claim, _>(client, "resourceclaims", |step| Change::Claim(into(step, Into::into))),
        follow_all::<wire::Rule, _>(client, RULES, |step| Change::Rule(into(step, Into::into)))
            .map(|watched| none_if_unserved(watched, Change::Rule(Step::None)))
            .boxed(),
    ])
    .map(|watched| watched.map(|change| Brought::Change(Box::new(change))))
    .boxed()
}

/// The same for controller mode, with all that is decided by: every pod that is not over, whole nodes, whole claims.
pub(crate) fn watch_to_control(client: &Client) -> BoxStream<'static, Watched> {
    let alive = watcher::Config::default().fields("status.phase!=Succeeded,status.phase!=Failed");
    select_all([
        follow(Api::<objects::Pod>::all(client.clone()), alive, "pods", Fed::Pod),
        follow_all::<objects::Node, _>(client, "nodes", Fed::Node),
        follow_all::<wire::Class, _>(client, "deviceclasses", Fed::Class),
        follow_all::<objects::Slice, _>(client, "resourceslices", Fed::Slice),
        follow_all::<objects::Claim, _>(client, "resourceclaims", Fed::Claim),
        follow_all::<wire::Rule, _>(client, RULES, Fed::Rule)
            .map(|watched| none_if_unserved(watched, Fed::Rule(Step::None)))
            .boxed(),
    ])
    .map(|watched| watched.map(|fed| Brought::Fed(Box::new(fed))))
    .boxed()
}

/// The same step of what an object is read into.
fn into<K, T>(step: Step<K>, read: fn(K) -> T) -> Step<T> {
    match step {
        Step::Begin => Step::Begin,
        Step::Listed(object) => Step::Listed(read(object)),
        Step::End => Step::End,
        Step::Changed(object) => Step::Changed(read(object)),
        Step::Gone(object) => Step::Gone(read(object)),
        Step::None => Step::None,
    }
}

/// One change of a kind, or why its watch stumbled.
type Followed<C> = BoxStream<'static, Result<C, (&'static str, watcher::Error)>>;

fn follow_all<K, C>(client: &Client, kind: &'static str, change: fn(Step<K>) -> C) -> Followed<C>
where
    K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
    C: 'static,
{
    follow(Api::<K>::all(client.clone()), watcher::Config::default(), kind, change)
}

fn follow<K, C>(api: Api<K>, config: watcher::Config, kind: &'static str, change: fn(Step<K>) -> C) -> Followed<C>
where
    K: kube::Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
    C: 'static,
{
    let step = |event| match event {
        watcher::Event::Init => Step::Begin,
        watcher::Event::InitApply(object) => Step::Listed(object),
        watcher::Event::InitDone => Step::End,
        watcher::Event::Apply(object) => Step::Changed(object),
        watcher::Event::Delete(object) => Step::Gone(object),
    };
    watcher(api, config)
        .default_backoff()
        .map(move |event| event.map(|event| change(step(event))).map_err(|error| (kind, error)))
        .boxed()
}

/// DeviceTaintRules are of Kubernetes 1.37, and can be switched off there: an API server without them has none. The
/// watch asks again with its backoff, and finds them when they come.
fn none_if_unserved<C>(
    watched: Result<C, (&'static str, watcher::Error)>,
    none: C,
) -> Result<C, (&'static str, watcher::Error)> {
    match watched {
        Err((_, watcher::Error::InitialListFailed(kube::Error::Api(status)))) if status.code == 404 => Ok(none),
        watched => watched,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(code: u16) -> Result<Change, (&'static str, watcher::Error)> {
        let status = kube::core::Status::failure("no", "reason").with_code(code).boxed();
        Err((RULES, watcher::Error::InitialListFailed(kube::Error::Api(status))))
    }

    #[test]
    fn rules_that_are_not_served_are_none_and_other_failures_stay() {
        let none = |watched| none_if_unserved(watched, Change::Rule(Step::None));
        assert!(matches!(none(failed(404)), Ok(Change::Rule(Step::None))));
        for code in [401, 403, 500] {
            assert!(none(failed(code)).is_err(), "{code}");
        }
        assert!(matches!(
            none(Ok(Change::Rule(Step::Begin))),
            Ok(Change::Rule(Step::Begin))
        ));
    }
}
