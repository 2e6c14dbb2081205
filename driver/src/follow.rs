//! A watch of one kind as a stream of changes: each object of a list at once, and at its end all of them by name.

use std::future::ready;
use std::time::Duration;

use futures::stream::{BoxStream, Stream, StreamExt as _};
use kube::Resource;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, DefaultBackoff, Event};

/// What happened to one object, or to a list.
pub(crate) enum Happened<K> {
    Set(K),
    Gone(K),
    /// The list is complete: these are all.
    Listed(Vec<K>),
}

/// The longest pause before a watch that failed is tried again: so late may a leader see a kind that is back.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// kube's pauses, which grow to a minute, up to that.
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

/// Passes each object of a list on at once, and at its end all of them by name.
pub(crate) fn follow<K: Resource + Clone + Send + 'static, C: Send + 'static>(
    kind: &'static str,
    events: impl Stream<Item = Result<Event<K>, watcher::Error>> + Send + 'static,
    change: fn(Happened<Named<K>>) -> Option<C>,
) -> BoxStream<'static, Result<C, (&'static str, watcher::Error)>> {
    let mut listed = Vec::new();
    events
        .backoff(Pauses::default())
        .filter_map(move |event| {
            ready(match event {
                Ok(event) => happened(event, &mut listed).and_then(change).map(Ok),
                Err(error) => Some(Err((kind, error))),
            })
        })
        .boxed()
}

/// The names of an object; with the object itself, except in a list, where its names are enough.
pub(crate) struct Named<K> {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) object: Option<K>,
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
    pub(crate) fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

pub(crate) fn happened<K: Resource>(event: Event<K>, listed: &mut Vec<Named<K>>) -> Option<Happened<Named<K>>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_that_fails_for_long_is_tried_again_soon() {
        let pauses: Vec<Duration> = Pauses::default().take(20).collect();
        assert!(pauses.iter().all(|pause| *pause <= PAUSE_MAX), "{pauses:?}");
        assert_eq!(pauses.last(), Some(&PAUSE_MAX));
    }
}
