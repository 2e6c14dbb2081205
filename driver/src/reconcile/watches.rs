//! The watches of the reconciler, as one stream of changes: translated pods, their templates, our slices, and the
//! namespaces that opted in. Of templates and namespaces only the metadata is read.

use std::future::ready;

use futures::stream::{BoxStream, Stream, StreamExt as _, select_all};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::resource::v1::{ResourceClaimTemplate, ResourceSlice};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, watcher as objects};
use kube::{Api, Client, Resource, ResourceExt as _};
use vgpu_api::DRIVER_NAME;
use vgpu_dialects::TRANSLATED;
use vgpu_planner::model::Meta;
use vgpu_reconciler::{Change, LABEL, Template, TranslatedPod};

use crate::decode::{Object, Parts, Readable};

/// The label of a namespace whose pods are translated.
const OPTED_IN: &str = "dra.vgpu/translate=true";

/// A change, or the error of the watch of a kind, which retries by itself with backoff.
pub(super) type Watched = Result<Change, (&'static str, watcher::Error)>;

/// A pod of which everything is dropped that is not needed: most pods are not translated.
#[derive(Debug, Clone)]
pub(super) struct PodFacts(Option<TranslatedPod>);

type WatchedPod = Object<Pod, PodFacts>;

impl Readable for PodFacts {
    fn read(parts: &Parts) -> Result<Self, serde_json::Error> {
        #[derive(serde::Deserialize)]
        struct Bare {
            metadata: Meta,
        }
        let bare: Bare = parts.whole(false, None)?;
        if !bare.metadata.annotations.contains_key(TRANSLATED) {
            return Ok(Self(None));
        }
        let pod: Pod = parts.whole(true, parts.status())?;
        Ok(Self(TranslatedPod::of(&pod)))
    }

    fn salvage(_: &Parts, _: &serde_json::Error) -> (Option<Self>, &'static str) {
        (None, "it cannot be read, so it gets no template and no annotations")
    }
}

pub(super) fn watch(client: &Client) -> BoxStream<'static, Watched> {
    let running = watcher::Config::default().fields("status.phase!=Succeeded,status.phase!=Failed");
    let ours = watcher::Config::default().labels(LABEL);
    let slices = watcher::Config::default().fields(&format!("spec.driver={DRIVER_NAME}"));
    let opted_in = watcher::Config::default().labels(OPTED_IN);
    let pods = objects(Api::<WatchedPod>::all(client.clone()), running);
    let templates = objects(
        Api::<PartialObjectMeta<ResourceClaimTemplate>>::all(client.clone()),
        ours,
    );
    let slices = objects(Api::<ResourceSlice>::all(client.clone()), slices);
    let namespaces = objects(Api::<PartialObjectMeta<Namespace>>::all(client.clone()), opted_in);
    select_all([
        follow("pods", pods, pod),
        follow("resourceclaimtemplates", templates, template),
        follow("resourceslices", slices, slice),
        follow("namespaces", namespaces, namespace),
    ])
    .boxed()
}

/// What happened to one object, or to a list.
pub(super) enum Happened<K> {
    Set(K),
    Gone(K),
    /// The list is complete: these are all.
    Listed(Vec<K>),
}

/// Passes each object of a list on at once, and at its end all of them by name.
fn follow<K: Resource + Clone + Send + 'static>(
    kind: &'static str,
    events: impl Stream<Item = Result<Event<K>, watcher::Error>> + Send + 'static,
    change: fn(Happened<Named<K>>) -> Option<Change>,
) -> BoxStream<'static, Watched> {
    let mut listed = Vec::new();
    events
        .default_backoff()
        .filter_map(move |event| {
            ready(match event {
                Ok(event) => happened(event, &mut listed).and_then(change).map(Ok),
                Err(error) => Some(Err((kind, error))),
            })
        })
        .boxed()
}

/// The names of an object; with the object itself, except in a list, where its names are enough.
pub(super) struct Named<K> {
    namespace: String,
    name: String,
    uid: String,
    object: Option<K>,
}

impl<K: Resource> Named<K> {
    fn of(object: &K) -> Self {
        let meta = object.meta();
        Self {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            object: None,
        }
    }

    fn with(object: K) -> Self {
        let named = Self::of(&object);
        let object = Some(object);
        Self { object, ..named }
    }
}

impl<K> Named<K> {
    fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    fn template(&self) -> vgpu_reconciler::Key {
        vgpu_reconciler::Key {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }
}

pub(super) fn happened<K: Resource>(event: Event<K>, listed: &mut Vec<Named<K>>) -> Option<Happened<Named<K>>> {
    match event {
        Event::Init => {
            listed.clear();
            None
        }
        Event::InitApply(object) => {
            listed.push(Named::of(&object));
            Some(Happened::Set(Named::with(object)))
        }
        Event::InitDone => Some(Happened::Listed(std::mem::take(listed))),
        Event::Apply(object) => Some(Happened::Set(Named::with(object))),
        Event::Delete(object) => Some(Happened::Gone(Named::of(&object))),
    }
}

pub(super) fn pod(happened: Happened<Named<WatchedPod>>) -> Option<Change> {
    match happened {
        Happened::Set(named) => {
            let key = named.key();
            // Of a pod that cannot be read, what was known stays.
            let pod = named.object?.body?.0;
            Some(Change::Pod { key, pod })
        }
        Happened::Gone(named) => Some(Change::PodGone { key: named.key() }),
        Happened::Listed(all) => Some(Change::Pods {
            keys: all.iter().map(Named::key).collect(),
        }),
    }
}

fn template<K: Resource>(happened: Happened<Named<K>>) -> Option<Change> {
    match happened {
        Happened::Set(named) => {
            let (key, template) = Template::of(named.object?.meta())?;
            Some(Change::Template { key, template })
        }
        Happened::Gone(named) => Some(Change::TemplateGone {
            key: named.template(),
            uid: named.uid,
        }),
        Happened::Listed(all) => Some(Change::Templates {
            keys: all.iter().map(Named::template).collect(),
        }),
    }
}

fn slice(happened: Happened<Named<ResourceSlice>>) -> Option<Change> {
    match happened {
        Happened::Set(named) => Some(Change::Slice(Box::new(named.object?))),
        Happened::Gone(named) => Some(Change::SliceGone { name: named.name }),
        Happened::Listed(all) => Some(Change::Slices {
            names: all.into_iter().map(|named| named.name).collect(),
        }),
    }
}

fn namespace<K: Resource<DynamicType = ()>>(happened: Happened<Named<K>>) -> Option<Change> {
    match happened {
        // No pod is created in one that is being deleted.
        Happened::Set(named) if named.object.as_ref()?.meta().deletion_timestamp.is_some() => {
            Some(Change::NamespaceGone { name: named.name })
        }
        Happened::Set(named) => Some(Change::Namespace {
            name: named.object?.name_any(),
        }),
        Happened::Gone(named) => Some(Change::NamespaceGone { name: named.name }),
        Happened::Listed(all) => Some(Change::Namespaces {
            names: all.into_iter().map(|named| named.name).collect(),
        }),
    }
}
