//! The events of a watch, and the changes that follow from one event.

use kube::Resource;
use kube::runtime::watcher::Event;
use vgpu_planner::model::Version;

use crate::decode::{Object, Parts};
use crate::usage::plan as usage;

/// An object that is not decoded yet.
pub(crate) type Raw<K> = Object<K, Parts>;

/// The changes in each part that follow from one event.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    pub(crate) state: Option<vgpu_planner::Change>,
    pub(crate) quotas: Option<vgpu_quota::Change>,
    pub(crate) translated: Option<vgpu_reconciler::Change>,
    pub(crate) usage: Option<usage::Change>,
}

impl Changes {
    /// `quotas`: whether quotas need this kind too.
    pub(crate) fn of_state(state: Option<vgpu_planner::Change>, quotas: bool) -> Self {
        let of_quotas = state.as_ref().filter(|_| quotas).and_then(vgpu_quota::Change::of);
        Self {
            state,
            quotas: of_quotas,
            ..Self::default()
        }
    }

    pub(super) fn of_quotas(quotas: Option<vgpu_quota::Change>) -> Self {
        let changes = Self::default();
        Self { quotas, ..changes }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.state.is_none() && self.quotas.is_none() && self.translated.is_none() && self.usage.is_none()
    }
}

/// An event of a watch.
#[derive(Debug)]
pub(crate) enum Seen<K> {
    /// The current state of an object.
    Set(K),
    /// The object was deleted, or no longer matches the watch.
    Gone(Names),
    /// The list is complete: it has these objects.
    Listed(Vec<Names>),
}

/// The names of an object, and its version.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) version: Option<Version>,
}

impl Names {
    pub(super) fn of(object: &impl Resource) -> Self {
        let meta = object.meta();
        Self {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            version: meta
                .resource_version
                .as_deref()
                .and_then(|version| version.parse().ok()),
        }
    }

    /// `namespace/name`, or the name of an object without a namespace.
    pub(super) fn key(&self) -> String {
        match self.namespace.as_str() {
            "" => self.name.clone(),
            namespace => format!("{namespace}/{}", self.name),
        }
    }
}

/// The objects of a list that were received so far.
#[derive(Debug, Default)]
pub(crate) struct List(Vec<Names>);

impl List {
    pub(crate) fn seen<K: Resource>(&mut self, event: Event<K>) -> Option<Seen<K>> {
        Some(match event {
            Event::Init => {
                self.0.clear();
                return None;
            }
            Event::InitApply(object) => {
                self.0.push(Names::of(&object));
                Seen::Set(object)
            }
            Event::InitDone => Seen::Listed(std::mem::take(&mut self.0)),
            Event::Apply(object) => Seen::Set(object),
            Event::Delete(object) => Seen::Gone(Names::of(&object)),
        })
    }
}
