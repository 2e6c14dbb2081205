//! The watches of the reconciler, as one stream of changes: translated pods, their templates, our slices, and the
//! namespaces that opted in. Of templates and namespaces only the metadata is read.

use futures::stream::{BoxStream, StreamExt as _, select_all};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::resource::v1::{ResourceClaimTemplate, ResourceSlice};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher as objects;
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt as _};
use vgpu_api::DRIVER_NAME;
use vgpu_dialects::TRANSLATED;
use vgpu_planner::model::Meta;
use vgpu_reconciler::{Change, LABEL, Template, TranslatedPod};

use crate::decode::{Object, Parts, Readable};
use crate::follow::{Happened, Named, follow};

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

fn template_of<K>(named: &Named<K>) -> vgpu_reconciler::Key {
    vgpu_reconciler::Key {
        namespace: named.namespace.clone(),
        name: named.name.clone(),
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
            key: template_of(&named),
            uid: named.uid,
        }),
        Happened::Listed(all) => Some(Change::Templates {
            keys: all.iter().map(template_of).collect(),
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
