//! The watches, one for each kind, as one stream of changes.
//!
//! ```text
//!                                                       ┌─► state: nodes, devices, claims, pods  (vgpu_planner)
//!  watcher::Event of a kind ─► Seen, with the raw JSON ─┼─► quotas                               (vgpu_quota)
//!                                                       ├─► translated: pods, templates          (vgpu_reconciler)
//!                                                       └─► usage: VgpuNodes                     (`usage`)
//! ```
//!
//! Quotas count the same pods, claims, classes and slices as the state, and also shares without a claim from VgpuNodes.
//! Translated pods are decoded separately, so that an object that one part cannot read is not lost for the other.
//! Objects in a list are newer than the known ones, so each is passed on at once, and no kind is ever held twice in
//! memory. The end of a list names all its objects; all others are gone. If a list breaks off, the watch starts it
//! again. kube's watcher does not report the version of a list, so the newest version in it is used instead.

mod quotas;
mod seen;
mod state;
mod translated;
mod usage;

use std::future::ready;
use std::time::Duration;

use futures::stream::{BoxStream, StreamExt as _, select_all};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::resource::v1 as resource;
use kube::core::PartialObjectMeta;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Config, DefaultBackoff};
use kube::runtime::{WatchStreamExt as _, watcher as watch_objects};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use vgpu_api::quota::{VgpuQuota, VgpuQuotaDefault};
use vgpu_api::usage::VgpuNode;
use vgpu_planner::Mode;

pub(crate) use seen::Changes;
use seen::{List, Raw, Seen};

/// Changes, or the error of the watch of a kind, which retries by itself with backoff.
pub(crate) type Watched = Result<Changes, (String, watcher::Error)>;

/// The parts that need changes. They decide which kinds are watched.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Interest {
    pub(crate) mode: Mode,
    pub(crate) quotas: bool,
    pub(crate) translated: bool,
    pub(crate) usage: bool,
}

/// Kinds that the API server may not serve: then there are no objects of them. The watch finds them once they are served.
/// Kubernetes has DeviceTaintRules since 1.37, and they can be switched off; our CRDs may be missing.
const MAY_BE_MISSING: [&str; 4] = ["devicetaintrules", "vgpuquotas", "vgpuquotadefaults", "vgpunodes"];

/// Watches every kind that a part is interested in.
pub(crate) fn watch(client: &Client, interest: Interest) -> BoxStream<'static, Watched> {
    let mut streams = of_state(client, interest);
    let Interest {
        quotas,
        translated,
        usage,
        ..
    } = interest;
    if quotas || translated {
        let namespaces = match quotas {
            true => Config::default(),
            false => Config::default().labels(translated::OPTED_IN),
        };
        streams.push(follow::<PartialObjectMeta<core::Namespace>>(
            client,
            namespaces,
            move |seen| Changes {
                quotas: quotas.then(|| quotas::namespace(&seen)),
                translated: translated.then(|| translated::namespace(&seen)),
                ..Changes::default()
            },
        ));
    }
    if translated {
        let ours = Config::default().labels(vgpu_reconciler::LABEL);
        streams.push(follow(client, ours, |seen| Changes {
            translated: translated::template(&seen),
            ..Changes::default()
        }));
    }
    if quotas {
        streams.extend(of_quotas(client));
    }
    if usage {
        streams.push(follow::<Raw<VgpuNode>>(client, Config::default(), move |seen| {
            usage::node(&seen, quotas)
        }));
    }
    select_all(streams).boxed()
}

/// The kinds that the state needs: all slices, classes and claims, because a claim may ask for devices of other drivers
/// beside ours. Explanations alone need only pods that wait.
fn of_state(client: &Client, interest: Interest) -> Vec<BoxStream<'static, Watched>> {
    let all = Config::default;
    let Interest {
        mode,
        quotas,
        translated,
        ..
    } = interest;
    let are_all_needed = quotas || translated || mode != Mode::Scheduler;
    let pods = all().fields(match are_all_needed {
        true => "status.phase!=Succeeded,status.phase!=Failed",
        false => "spec.nodeName=,status.phase=Pending",
    });
    vec![
        follow::<Raw<core::Pod>>(client, pods, move |seen| Changes {
            translated: translated.then(|| translated::pod(&seen)).flatten(),
            ..Changes::of_state(state::pod(&seen), quotas)
        }),
        follow::<Raw<core::Node>>(client, all(), |seen| Changes::of_state(state::node(&seen), false)),
        follow::<Raw<resource::DeviceClass>>(client, all(), move |seen| {
            Changes::of_state(state::class(&seen), quotas)
        }),
        follow::<Raw<resource::ResourceSlice>>(client, all(), move |seen| {
            let state = state::slice(&seen);
            let is_ours = state::may_be_ours(state.as_ref());
            Changes {
                translated: (translated && is_ours).then(|| translated::slice(&seen)).flatten(),
                ..Changes::of_state(state, quotas)
            }
        }),
        follow::<Raw<resource::ResourceClaim>>(client, all(), move |seen| {
            Changes::of_state(state::claim(&seen), quotas)
        }),
        follow(client, all(), state::rules()),
    ]
}

/// The kinds that only quotas need.
fn of_quotas(client: &Client) -> [BoxStream<'static, Watched>; 3] {
    let all = Config::default;
    let fixed = all().fields(&format!("metadata.name={}", vgpu_quota::names::QUOTA));
    [
        follow::<Raw<VgpuQuota>>(client, fixed, |seen| Changes::of_quotas(quotas::quota(&seen))),
        follow::<Raw<VgpuQuotaDefault>>(client, all(), |seen| Changes::of_quotas(quotas::default(&seen))),
        follow::<Raw<core::ResourceQuota>>(client, all(), |seen| Changes::of_quotas(quotas::resource_quota(&seen))),
    ]
}

/// Watches one kind, and passes on what `reduce` makes of its events.
fn follow<K>(
    client: &Client,
    config: Config,
    mut reduce: impl FnMut(Seen<K>) -> Changes + Send + 'static,
) -> BoxStream<'static, Watched>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let mut list = List::default();
    watch_objects(Api::<K>::all(client.clone()), config)
        .backoff(Pauses::default())
        .filter_map(move |event| {
            let seen = match event {
                Ok(event) => list.seen(event).map(Ok),
                Err(error) if is_missing::<K>(&error) => Some(Ok(Seen::Listed(Vec::new()))),
                Err(error) => Some(Err((K::plural(&()).into_owned(), error))),
            };
            let changes = seen.map(|seen| seen.map(&mut reduce));
            ready(changes.filter(|changes| !matches!(changes, Ok(changes) if changes.is_empty())))
        })
        .boxed()
}

fn is_missing<K: Resource<DynamicType = ()>>(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status)) => {
            status.code == 404 && MAY_BE_MISSING.contains(&&*K::plural(&()))
        }
        _ => false,
    }
}

/// The longest pause before a watch that failed is tried again: a leader sees a kind that is back at most this late.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// kube's pauses, which grow to a minute, up to [`PAUSE_MAX`].
#[derive(Default)]
struct Pauses(DefaultBackoff);

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.next().map(|pause| pause.min(PAUSE_MAX))
    }
}

impl Backoff for Pauses {
    fn reset(&mut self) {
        self.0.reset();
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::Body;
    use axum::http::Request;

    use super::*;
    use crate::fake_api::{response, status};

    /// An API server that serves these kinds, without objects, and answers requests for others with this code.
    fn server(served: &'static [&'static str], code: u16) -> Client {
        let router = Router::new().fallback(async move |request: Request<Body>| {
            match served
                .iter()
                .any(|kind| request.uri().path().rsplit('/').next() == Some(kind))
            {
                true => std::future::pending().await,
                false => response(code, &status(code, "no").1),
            }
        });
        Client::new(router, "default")
    }

    const ALL: Interest = Interest {
        mode: Mode::Scheduler,
        quotas: true,
        translated: true,
        usage: true,
    };

    #[tokio::test]
    async fn each_kind_is_watched_once() {
        let mut changes = watch(&server(&[], 403), ALL);
        let mut kinds = Vec::new();
        for _ in 0..12 {
            match changes.next().await {
                Some(Err((kind, _))) => kinds.push(kind),
                other => panic!("{other:?}"),
            }
        }
        kinds.sort_unstable();
        assert_eq!(
            kinds,
            [
                "deviceclasses",
                "devicetaintrules",
                "namespaces",
                "nodes",
                "pods",
                "resourceclaims",
                "resourceclaimtemplates",
                "resourcequotas",
                "resourceslices",
                "vgpunodes",
                "vgpuquotadefaults",
                "vgpuquotas"
            ]
        );
    }

    #[tokio::test]
    async fn of_kinds_that_may_be_missing_there_are_none_and_of_others_an_error() {
        let served = &[
            "pods",
            "nodes",
            "deviceclasses",
            "resourceslices",
            "resourceclaims",
            "namespaces",
        ];
        let mut changes = watch(&server(served, 404), ALL);
        let mut missing = [false; 6];
        for _ in 0..6 {
            let at = match changes.next().await {
                Some(Ok(Changes {
                    state: Some(vgpu_planner::Change::Rules(rules)),
                    ..
                })) if rules.is_empty() => 0,
                Some(Ok(Changes {
                    quotas: Some(vgpu_quota::Change::Quotas { uids }),
                    ..
                })) if uids.is_empty() => 1,
                Some(Ok(Changes {
                    quotas: Some(vgpu_quota::Change::Defaults { names }),
                    ..
                })) if names.is_empty() => 2,
                Some(Err((kind, _))) if kind == "resourceclaimtemplates" => 3,
                Some(Err((kind, _))) if kind == "resourcequotas" => 4,
                Some(Ok(Changes {
                    usage: Some(crate::usage::plan::Change::Nodes { names }),
                    ..
                })) if names.is_empty() => 5,
                other => panic!("{other:?}"),
            };
            missing[at] = true;
        }
        assert_eq!(missing, [true; 6]);
    }

    #[test]
    fn a_watch_that_fails_for_long_is_tried_again_soon() {
        let pauses: Vec<Duration> = Pauses::default().take(20).collect();
        assert!(pauses.iter().all(|pause| *pause <= PAUSE_MAX), "{pauses:?}");
        assert_eq!(pauses.last(), Some(&PAUSE_MAX));
    }
}
