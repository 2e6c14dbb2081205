//! The watches, as one stream of changes.

use futures::stream::{BoxStream, StreamExt as _, select_all};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use serde::de::DeserializeOwned;

use crate::cluster::{Change, Step};
use crate::{convert, wire};

/// A change, or why a watch of a kind stumbled; it goes on by itself, with backoff.
pub(crate) type Watched = Result<Change, (&'static str, watcher::Error)>;

/// Watches what kube-scheduler reads of devices: all slices and classes, because a claim may ask for devices of other
/// drivers beside ours, and what their claims hold. Of pods only those that wait.
pub(crate) fn watch(client: &Client) -> BoxStream<'static, Watched> {
    let waiting = watcher::Config::default().fields("spec.nodeName=,status.phase=Pending");
    select_all([
        follow(
            Api::<Pod>::all(client.clone()),
            waiting,
            "pods",
            convert::pod,
            Change::Pod,
        ),
        follow_all::<wire::Node, _>(client, "nodes", Change::Node),
        follow_all::<wire::Class, _>(client, "deviceclasses", Change::Class),
        follow_all::<wire::Slice, _>(client, "resourceslices", Change::Slice),
        follow_all::<wire::Claim, _>(client, "resourceclaims", Change::Claim),
        follow_all::<wire::Rule, _>(client, "devicetaintrules", Change::Rule)
            .map(none_if_unserved)
            .boxed(),
    ])
    .boxed()
}

fn follow_all<K, T>(client: &Client, kind: &'static str, change: fn(Step<T>) -> Change) -> BoxStream<'static, Watched>
where
    K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + Into<T> + 'static,
    T: 'static,
{
    let api = Api::<K>::all(client.clone());
    follow(api, watcher::Config::default(), kind, K::into, change)
}

fn follow<K, T: 'static>(
    api: Api<K>,
    config: watcher::Config,
    kind: &'static str,
    read: fn(K) -> T,
    change: fn(Step<T>) -> Change,
) -> BoxStream<'static, Watched>
where
    K: kube::Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let step = move |event| match event {
        watcher::Event::Init => Step::Begin,
        watcher::Event::InitApply(object) => Step::Listed(read(object)),
        watcher::Event::InitDone => Step::End,
        watcher::Event::Apply(object) => Step::Changed(read(object)),
        watcher::Event::Delete(object) => Step::Gone(read(object)),
    };
    watcher(api, config)
        .default_backoff()
        .map(move |event| event.map(|event| change(step(event))).map_err(|error| (kind, error)))
        .boxed()
}

/// DeviceTaintRules are of Kubernetes 1.37, and can be switched off there: an API server without them has none. The
/// watch asks again with its backoff, and finds them when they come.
fn none_if_unserved(watched: Watched) -> Watched {
    match watched {
        Err((_, watcher::Error::InitialListFailed(kube::Error::Api(status)))) if status.code == 404 => {
            Ok(Change::Rule(Step::None))
        }
        watched => watched,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(code: u16) -> Watched {
        let status = kube::core::Status::failure("no", "reason").with_code(code).boxed();
        Err((
            "devicetaintrules",
            watcher::Error::InitialListFailed(kube::Error::Api(status)),
        ))
    }

    #[test]
    fn rules_that_are_not_served_are_none_and_other_failures_stay() {
        assert!(matches!(none_if_unserved(failed(404)), Ok(Change::Rule(Step::None))));
        for code in [401, 403, 500] {
            assert!(none_if_unserved(failed(code)).is_err(), "{code}");
        }
        assert!(matches!(
            none_if_unserved(Ok(Change::Rule(Step::Begin))),
            Ok(Change::Rule(Step::Begin))
        ));
    }
}
