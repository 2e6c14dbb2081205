//! The four watches, as one stream of changes.

use futures::stream::{BoxStream, StreamExt as _, select_all};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use serde::de::DeserializeOwned;

use crate::cluster::{Change, Step};
use crate::convert;

/// A change, or why a watch of a kind stumbled; it goes on by itself, with backoff.
pub(crate) type Watched = Result<Change, (&'static str, watcher::Error)>;

/// Watches all that is needed, and no more: pods only while they wait, slices only of our driver.
pub(crate) fn watch(client: &Client) -> BoxStream<'static, Watched> {
    let waiting = watcher::Config::default().fields("spec.nodeName=,status.phase=Pending");
    let ours = watcher::Config::default().fields(&format!("spec.driver={}", vgpu_api::DRIVER_NAME));
    select_all([
        follow(Api::<Pod>::all(client.clone()), waiting, "pods", |pod| {
            Change::Pod(pod.map(|p| convert::key(&p.metadata), convert::pod))
        }),
        follow(
            Api::<ResourceClaim>::all(client.clone()),
            watcher::Config::default(),
            "resourceclaims",
            |claim| Change::Claim(claim.map(|c| convert::key(&c.metadata), convert::claim)),
        ),
        follow(
            Api::<ResourceSlice>::all(client.clone()),
            ours,
            "resourceslices",
            |slice| Change::Slice(slice.map(|s| convert::name(&s.metadata), convert::slice)),
        ),
        follow(
            Api::<DeviceClass>::all(client.clone()),
            watcher::Config::default(),
            "deviceclasses",
            |class| Change::Class(class.map(|c| convert::name(&c.metadata), convert::class)),
        ),
    ])
    .boxed()
}

fn follow<K>(
    api: Api<K>,
    config: watcher::Config,
    kind: &'static str,
    change: impl Fn(Watch<K>) -> Change + Send + 'static,
) -> BoxStream<'static, Watched>
where
    K: kube::Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    watcher(api, config)
        .default_backoff()
        .map(move |event| event.map(|event| change(Watch(event))).map_err(|error| (kind, error)))
        .boxed()
}

/// A watch event, on its way to a [`Step`].
struct Watch<K>(watcher::Event<K>);

impl<K> Watch<K> {
    fn map<Id, V>(self, id: impl Fn(&K) -> Id, value: impl Fn(K) -> V) -> Step<Id, V> {
        match self.0 {
            watcher::Event::Init => Step::Begin,
            watcher::Event::InitApply(object) => Step::Listed(id(&object), value(object)),
            watcher::Event::InitDone => Step::End,
            watcher::Event::Apply(object) => Step::Changed(id(&object), value(object)),
            watcher::Event::Delete(object) => Step::Gone(id(&object)),
        }
    }
}
