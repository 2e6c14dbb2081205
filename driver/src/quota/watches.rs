//! The watches of quotas, as one stream of changes.

use std::borrow::Cow;

use futures::stream::{BoxStream, StreamExt as _, select_all};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::resource::v1 as resource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use kube::runtime::watcher::{self, Config};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use vgpu_api::DRIVER_NAME;
use vgpu_quota::{Change, Claim, Class, NamespaceLabels, Pod, Quota, QuotaDefault, ResourceQuota, Slice, names};

use crate::decode::{Object, Parts, Readable};
use crate::follow::{Happened, Named, follow};

/// A change, or the error of the watch of a kind, which retries by itself with backoff.
pub(super) type Watched = Result<Change, (&'static str, watcher::Error)>;

/// A kind of ours, of which Rust needs the names.
macro_rules! kind {
    ($type:ident, $scope:ty, $kind:literal, $plural:literal) => {
        #[derive(Debug, Clone)]
        pub(super) struct $type {
            metadata: ObjectMeta,
        }

        impl Resource for $type {
            type DynamicType = ();
            type Scope = $scope;

            fn kind((): &()) -> Cow<'_, str> {
                $kind.into()
            }

            fn group((): &()) -> Cow<'_, str> {
                "dra.vgpu".into()
            }

            fn version((): &()) -> Cow<'_, str> {
                "v1alpha1".into()
            }

            fn plural((): &()) -> Cow<'_, str> {
                $plural.into()
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

kind!(QuotaKind, NamespaceResourceScope, "VgpuQuota", "vgpuquotas");
kind!(
    DefaultKind,
    ClusterResourceScope,
    "VgpuQuotaDefault",
    "vgpuquotadefaults"
);

/// What counting needs of an object.
#[derive(Debug, Clone)]
pub(super) struct Facts<T>(pub(super) T);

impl<T: DeserializeOwned> Readable for Facts<T> {
    fn read(parts: &Parts) -> Result<Self, serde_json::Error> {
        parts.whole(true, parts.status()).map(Self)
    }

    fn salvage(_: &Parts, _: &serde_json::Error) -> (Option<Self>, &'static str) {
        (
            None,
            "it cannot be read, so quotas go by what was known of it; pods that name it for the first time wait",
        )
    }
}

/// Objects of a kind of Kubernetes, of which only facts are kept.
pub(super) type Watch<K, T> = Object<K, Facts<T>>;

pub(super) fn watch(client: &Client) -> BoxStream<'static, Watched> {
    fn objects<K, T>(
        client: &Client,
        config: Config,
    ) -> impl futures::Stream<Item = watcher::Result<watcher::Event<Watch<K, T>>>> + Send + 'static
    where
        K: Resource<DynamicType = ()> + 'static,
        T: DeserializeOwned + Clone + std::fmt::Debug + Send + 'static,
    {
        watcher::watcher(Api::<Watch<K, T>>::all(client.clone()), config)
    }
    let all = Config::default;
    let fixed = all().fields(&format!("metadata.name={}", names::QUOTA));
    let running = all().fields("status.phase!=Succeeded,status.phase!=Failed");
    let ours = all().fields(&format!("spec.driver={DRIVER_NAME}"));
    let quotas = follow("vgpuquotas", objects::<QuotaKind, Quota>(client, fixed), quota);
    let defaults = follow(
        "vgpuquotadefaults",
        objects::<DefaultKind, QuotaDefault>(client, all()),
        default,
    );
    // Without its CRD there are none of a kind.
    let quotas = quotas.map(|watched| match watched {
        Err((_, error)) if is_not_served(&error) => Ok(Change::Quotas { uids: Vec::new() }),
        other => other,
    });
    let defaults = defaults.map(|watched| match watched {
        Err((_, error)) if is_not_served(&error) => Ok(Change::Defaults { names: Vec::new() }),
        other => other,
    });
    select_all([
        quotas.boxed(),
        defaults.boxed(),
        follow(
            "namespaces",
            objects::<core::Namespace, NamespaceLabels>(client, all()),
            namespace,
        ),
        follow("pods", objects::<core::Pod, Pod>(client, running), pod),
        follow(
            "resourceclaims",
            objects::<resource::ResourceClaim, Claim>(client, all()),
            claim,
        ),
        follow(
            "deviceclasses",
            objects::<resource::DeviceClass, Class>(client, all()),
            class,
        ),
        follow(
            "resourceslices",
            objects::<resource::ResourceSlice, Slice>(client, ours),
            slice,
        ),
        follow(
            "resourcequotas",
            objects::<core::ResourceQuota, ResourceQuota>(client, all()),
            resource_quota,
        ),
    ])
    .boxed()
}

fn is_not_served(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status)) => status.code == 404,
        _ => false,
    }
}

/// The facts of an object; of one that cannot be read, what was known stays.
fn facts<K, T>(named: Named<Watch<K, T>>) -> Option<T> {
    Some(named.object?.body?.0)
}

fn uids<K>(all: Vec<Named<K>>) -> Vec<String> {
    all.into_iter().map(|named| named.uid).collect()
}

fn names<K>(all: Vec<Named<K>>) -> Vec<String> {
    all.into_iter().map(|named| named.name).collect()
}

pub(super) fn quota(happened: Happened<Named<Watch<QuotaKind, Quota>>>) -> Option<Change> {
    Some(match happened {
        Happened::Set(named) => Change::Quota(Box::new(facts(named)?)),
        Happened::Gone(named) => Change::QuotaGone {
            namespace: named.namespace,
            uid: named.uid,
        },
        Happened::Listed(all) => Change::Quotas { uids: uids(all) },
    })
}

pub(super) fn pod(happened: Happened<Named<Watch<core::Pod, Pod>>>) -> Option<Change> {
    Some(match happened {
        Happened::Set(named) => Change::Pod(facts(named)?),
        Happened::Gone(named) => Change::PodGone {
            namespace: named.namespace,
            uid: named.uid,
        },
        Happened::Listed(all) => Change::Pods { uids: uids(all) },
    })
}

fn claim(happened: Happened<Named<Watch<resource::ResourceClaim, Claim>>>) -> Option<Change> {
    Some(match happened {
        Happened::Set(named) => Change::Claim(facts(named)?),
        Happened::Gone(named) => Change::ClaimGone {
            namespace: named.namespace,
            uid: named.uid,
        },
        Happened::Listed(all) => Change::Claims { uids: uids(all) },
    })
}

fn class(happened: Happened<Named<Watch<resource::DeviceClass, Class>>>) -> Option<Change> {
    Some(match happened {
        Happened::Set(named) => Change::Class(facts(named)?),
        Happened::Gone(named) => Change::ClassGone { name: named.name },
        Happened::Listed(all) => Change::Classes { names: names(all) },
    })
}

fn slice(happened: Happened<Named<Watch<resource::ResourceSlice, Slice>>>) -> Option<Change> {
    Some(match happened {
        Happened::Set(named) => Change::Slice(facts(named)?),
        Happened::Gone(named) => Change::SliceGone { name: named.name },
        Happened::Listed(all) => Change::Slices { names: names(all) },
    })
}

fn resource_quota(happened: Happened<Named<Watch<core::ResourceQuota, ResourceQuota>>>) -> Option<Change> {
    Some(match happened {
        Happened::Set(named) => Change::ResourceQuota(facts(named)?),
        Happened::Gone(named) => Change::ResourceQuotaGone {
            namespace: named.namespace,
            name: named.name,
        },
        Happened::Listed(all) => Change::ResourceQuotas {
            names: all.into_iter().map(|named| (named.namespace, named.name)).collect(),
        },
    })
}

pub(super) fn namespace(happened: Happened<Named<Watch<core::Namespace, NamespaceLabels>>>) -> Option<Change> {
    Some(match happened {
        Happened::Set(named) => Change::Namespace(facts(named)?),
        Happened::Gone(named) => Change::NamespaceGone {
            name: named.name,
            uid: named.uid,
        },
        Happened::Listed(all) => Change::Namespaces { uids: uids(all) },
    })
}

fn default(happened: Happened<Named<Watch<DefaultKind, QuotaDefault>>>) -> Option<Change> {
    Some(match happened {
        Happened::Set(named) => Change::Default(facts(named)?),
        Happened::Gone(named) => Change::DefaultGone { name: named.name },
        Happened::Listed(all) => Change::Defaults { names: names(all) },
    })
}
