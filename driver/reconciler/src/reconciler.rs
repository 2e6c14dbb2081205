//! Decides which templates to create and to delete, and which pods get their annotations.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use vgpu_api::{PodRef, class};
use vgpu_dialects::{Request, template};

use crate::Now;
use crate::backoff::Backoff;
use crate::gpus::Gpus;
use crate::notice::Notice;
use crate::plan::{Change, Outcome, Plan, Task, Write};
use crate::pod::TranslatedPod;
use crate::template::{Key, SPEC_HASH, Template, hash, object};

/// How long a template is kept that no pod needs.
pub const KEEP: Duration = Duration::from_secs(3600);
/// How often a creation may find the name taken before that is reported: the watch may not show our own template yet.
const TAKEN_AFTER: u32 = 2;

/// The chart's values that matter here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// `translate.highPriorityClass`: a class beside `vgpu` and `gpu` that a request may name.
    pub high_priority_class: Option<String>,
}

/// The kinds that were listed at least once.
#[derive(Debug, Default, Clone, Copy)]
struct Listed {
    pods: bool,
    templates: bool,
    slices: bool,
    namespaces: bool,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub struct Reconciler {
    settings: Settings,
    /// By `namespace/name`.
    pods: BTreeMap<String, TranslatedPod>,
    /// The pods that need a template, by their keys. Nearly always one, or one Deployment's.
    users: BTreeMap<Key, BTreeSet<String>>,
    templates: BTreeMap<Key, Template>,
    /// Since when nobody needs a template.
    unneeded: BTreeMap<Key, Now>,
    /// The requests of templates that are parts of GPUs, also after the last pod that needed them.
    parts: BTreeMap<Key, Request>,
    namespaces: BTreeSet<String>,
    gpus: Arc<Gpus>,
    listed: Listed,
    is_leading: bool,
    /// When to check each task again.
    due: BTreeMap<Task, Now>,
    under_way: BTreeSet<Task>,
    backoffs: BTreeMap<Task, Backoff>,
    /// Pods that got their annotations, by UID, until the watch shows it.
    with_legacy_view: BTreeSet<String>,
    /// What was found since the last plan.
    found: Vec<(PodRef, Notice)>,
}

impl Reconciler {
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            ..Self::default()
        }
    }

    /// The GPUs as they are now, for [`crate::legacy_patch`].
    #[must_use]
    pub fn gpus(&self) -> Arc<Gpus> {
        self.gpus.clone()
    }

    /// Returns true once every kind was listed: before, a template might seem to be missing or unneeded.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        let listed = self.listed;
        listed.pods && listed.templates && listed.slices && listed.namespaces
    }

    pub fn apply(&mut self, change: Change, now: Now) {
        match change {
            Change::Pod { key, pod: None } | Change::PodGone { key } => self.remove_pod(&key, now),
            Change::Pod { key, pod: Some(pod) } => self.set_pod(key, pod, now),
            Change::Pods { keys } => {
                let gone = missing(self.pods.keys(), keys);
                gone.iter().for_each(|key| self.remove_pod(key, now));
                self.listed.pods = true;
            }
            Change::Template { key, template } => {
                self.look(Task::Template(key.clone()), now);
                self.templates.insert(key, template);
            }
            Change::TemplateGone { key, uid } => {
                if self.templates.get(&key).is_some_and(|known| known.uid == uid) {
                    self.templates.remove(&key);
                    self.look(Task::Template(key), now);
                }
            }
            Change::Templates { keys } => {
                let gone = missing(self.templates.keys(), keys);
                for key in gone {
                    self.templates.remove(&key);
                    self.look(Task::Template(key), now);
                }
                self.listed.templates = true;
            }
            Change::Slice(slice) => {
                let is_new = Arc::make_mut(&mut self.gpus).set(&slice, now);
                self.look_at_parts(is_new, now);
            }
            Change::SliceGone { name } => {
                let is_new = Arc::make_mut(&mut self.gpus).remove(&name, now);
                self.look_at_parts(is_new, now);
            }
            Change::Slices { names } => {
                let is_new = Arc::make_mut(&mut self.gpus).retain(&names, now);
                self.look_at_parts(is_new, now);
                self.listed.slices = true;
            }
            Change::Namespace { name } => {
                if self.namespaces.insert(name.clone()) {
                    self.look_at_namespace(&name, now);
                }
            }
            Change::NamespaceGone { name } => {
                if self.namespaces.remove(&name) {
                    self.look_at_namespace(&name, now);
                }
            }
            Change::Namespaces { names } => {
                for name in missing(&self.namespaces, names) {
                    self.namespaces.remove(&name);
                    self.look_at_namespace(&name, now);
                }
                self.listed.namespaces = true;
            }
            Change::Leads(leads) => self.set_leading(leads, now),
        }
    }

    fn set_leading(&mut self, leads: bool, now: Now) {
        if leads && !self.is_leading {
            // The last leader may have done any of it.
            self.backoffs.clear();
            let templates = self.templates.keys().chain(self.users.keys());
            let templates: Vec<Task> = templates.cloned().map(Task::Template).collect();
            let pods: Vec<Task> = self.pods.values().map(|pod| Task::Pod(pod.at.clone())).collect();
            templates.into_iter().chain(pods).for_each(|task| self.look(task, now));
        }
        self.is_leading = leads;
    }

    /// Returns what to do now. Its writes count as in flight until [`Self::report`].
    pub fn plan(&mut self, now: Now) -> Plan {
        let mut plan = Plan::default();
        if !self.is_complete() {
            return plan;
        }
        if self.gpus.next_expiry().is_some_and(|at| at <= now) && Arc::make_mut(&mut self.gpus).expire(now) {
            self.look_at_parts(true, now);
        }
        let due: Vec<Task> = self
            .due
            .iter()
            .filter(|(_, at)| **at <= now)
            .map(|(task, _)| task.clone())
            .collect();
        for task in due {
            self.due.remove(&task);
            if self.under_way.contains(&task) {
                // It is checked again when its outcome is known.
                continue;
            }
            let paused = self
                .backoffs
                .get(&task)
                .map(|backoff| backoff.not_before)
                .filter(|at| *at > now);
            if let Some(at) = paused {
                self.due.insert(task, at);
                continue;
            }
            let write = match &task {
                Task::Template(key) => self.template(key, now),
                Task::Pod(pod) => self.pod(pod),
            };
            if let Some(write) = write {
                self.under_way.insert(task);
                plan.writes.push(write);
            }
        }
        plan.notices = std::mem::take(&mut self.found);
        plan.wake = self.due.values().copied().chain(self.gpus.next_expiry()).min();
        plan
    }

    /// Reports the outcome of a write in a plan.
    pub fn report(&mut self, task: &Task, outcome: Outcome, now: Now) {
        self.under_way.remove(task);
        let is_done = match (task, outcome) {
            (Task::Template(key), Outcome::Created(template)) => {
                let is_ours = self.hash(key).is_none_or(|wanted| wanted == template.hash);
                // The watch may have shown a newer one already.
                self.templates.entry(key.clone()).or_insert(template);
                if !is_ours {
                    let why = format!("something changes its annotation {SPEC_HASH} when it is created");
                    let template = key.name.clone();
                    self.tell_users(key, &Notice::Refused { template, why });
                }
                is_ours
            }
            (Task::Template(key), Outcome::Deleted) => {
                if let Some(known) = self.templates.get_mut(key) {
                    known.is_deleted = true;
                }
                // Not counted as a success yet: if somebody changes every template that is created, this would repeat
                // without a pause.
                self.look(task.clone(), now);
                return;
            }
            (Task::Template(key), Outcome::Exists) => {
                let failures = self.backoffs.get(task).map_or(0, |backoff| backoff.failures);
                if failures + 1 >= TAKEN_AFTER && !self.templates.contains_key(key) {
                    let template = key.name.clone();
                    self.tell_users(key, &Notice::Taken { template });
                }
                false
            }
            (Task::Template(key), Outcome::Refused(why)) => {
                let template = key.name.clone();
                self.tell_users(key, &Notice::Refused { template, why });
                false
            }
            (Task::Pod(pod), Outcome::LegacyView) => {
                self.with_legacy_view.insert(pod.uid.clone());
                true
            }
            (_, Outcome::Dropped) => true,
            _ => false,
        };
        match is_done {
            true => {
                self.backoffs.remove(task);
            }
            false => self.backoffs.entry(task.clone()).or_default().fail(now),
        }
        self.look(task.clone(), now);
    }

    fn look(&mut self, task: Task, now: Now) {
        self.due.insert(task, now);
    }

    /// Checks the templates again that depend on the GPUs.
    fn look_at_parts(&mut self, is_new: bool, now: Now) {
        if !is_new {
            return;
        }
        let tasks: Vec<Task> = self.parts.keys().cloned().map(Task::Template).collect();
        tasks.into_iter().for_each(|task| self.look(task, now));
    }

    fn look_at_namespace(&mut self, name: &str, now: Now) {
        let pods = self.pods.values().filter(|pod| pod.at.namespace == name);
        let pods: Vec<Task> = pods.map(|pod| Task::Pod(pod.at.clone())).collect();
        let templates = self.users.keys().filter(|key| key.namespace == name);
        let templates: Vec<Task> = templates.cloned().map(Task::Template).collect();
        pods.into_iter().chain(templates).for_each(|task| self.look(task, now));
    }

    fn set_pod(&mut self, key: String, pod: TranslatedPod, now: Now) {
        if self.pods.get(&key) == Some(&pod) {
            return;
        }
        self.remove_pod(&key, now);
        if pod.is_over {
            return;
        }
        for (name, request) in &pod.needs {
            let template = key_of(&pod.at.namespace, name);
            self.users.entry(template.clone()).or_default().insert(key.clone());
            if request.is_by_inventory() {
                self.parts.insert(template.clone(), request.clone());
            }
            self.look(Task::Template(template), now);
        }
        if pod.has_legacy_view {
            self.with_legacy_view.remove(&pod.at.uid);
        }
        self.look(Task::Pod(pod.at.clone()), now);
        self.pods.insert(key, pod);
    }

    fn remove_pod(&mut self, key: &str, now: Now) {
        let Some(pod) = self.pods.remove(key) else { return };
        for name in pod.needs.keys() {
            let template = key_of(&pod.at.namespace, name);
            if let Some(users) = self.users.get_mut(&template) {
                users.remove(key);
                if users.is_empty() {
                    self.users.remove(&template);
                }
            }
            self.look(Task::Template(template), now);
        }
        let task = Task::Pod(pod.at);
        self.look(task, now);
    }

    /// Returns the known pod under this name, unless it is another one with the same name.
    fn known(&self, pod: &PodRef) -> Option<&TranslatedPod> {
        let known = self.pods.get(&format!("{}/{}", pod.namespace, pod.name))?;
        (known.at == *pod).then_some(known)
    }

    fn pod(&mut self, at: &PodRef) -> Option<Write> {
        let task = Task::Pod(at.clone());
        let Some(pod) = self.known(at) else {
            self.with_legacy_view.remove(&at.uid);
            self.backoffs.remove(&task);
            return None;
        };
        if !self.namespaces.contains(&at.namespace) {
            return None;
        }
        let (is_bound, has_legacy_view, problem) = (pod.is_bound, pod.has_legacy_view, pod.problem.clone());
        if let Some(problem) = problem {
            self.tell(at, &Notice::Annotation(problem));
            return None;
        }
        let wanted = self.is_leading && is_bound && !has_legacy_view && !self.with_legacy_view.contains(&at.uid);
        wanted.then(|| Write::GiveBack(at.clone()))
    }

    /// The request of a template that a pod needs in a namespace that opted in.
    fn request(&self, key: &Key) -> Option<&Request> {
        let users = self
            .users
            .get(key)
            .filter(|_| self.namespaces.contains(&key.namespace))?;
        users.iter().find_map(|pod| self.pods.get(pod)?.needs.get(&key.name))
    }

    /// The hash of the spec that a template should have. `None` if nobody needs it, or no GPU fits.
    fn hash(&self, key: &Key) -> Option<String> {
        let spec = template(self.request(key)?, &self.gpus.inventory())?;
        Some(hash(&spec))
    }

    fn template(&mut self, key: &Key, now: Now) -> Option<Write> {
        let known = self.templates.get(key).cloned();
        let Some(request) = self.request(key).cloned() else {
            return self.unneeded(key, known, now);
        };
        self.unneeded.remove(key);
        if known.as_ref().is_some_and(|known| known.is_deleted) {
            return None;
        }
        if !self.is_allowed(&request.class) {
            let mut allowed = vec![class::VGPU.to_owned(), class::GPU.to_owned()];
            allowed.extend(self.settings.high_priority_class.clone());
            let notice = Notice::Class {
                class: request.class,
                allowed: allowed.join(", "),
            };
            self.tell_users(key, &notice);
            return None;
        }
        let spec = template(&request, &self.gpus.inventory());
        match (known, spec) {
            // While no GPU fits, the existing template stays.
            (Some(_), None) => None,
            (None, None) => {
                let template = key.name.clone();
                self.tell_users(key, &Notice::NoGpu { template });
                None
            }
            (None, Some(spec)) => self.is_leading.then(|| Write::Create {
                key: key.clone(),
                template: Box::new(object(key, spec)),
            }),
            (Some(known), Some(spec)) => (self.is_leading && known.hash != hash(&spec)).then(|| Write::Delete {
                key: key.clone(),
                uid: known.uid,
                version: known.version,
            }),
        }
    }

    fn unneeded(&mut self, key: &Key, known: Option<Template>, now: Now) -> Option<Write> {
        let Some(known) = known else {
            self.unneeded.remove(key);
            self.parts.remove(key);
            self.backoffs.remove(&Task::Template(key.clone()));
            return None;
        };
        let goes = *self.unneeded.entry(key.clone()).or_insert(now) + KEEP;
        // A template of former sizes is deleted at once: the next pod that names it would get its claim from it.
        let spec = self
            .parts
            .get(key)
            .and_then(|request| template(request, &self.gpus.inventory()));
        let is_old = spec.is_some_and(|spec| hash(&spec) != known.hash);
        if now < goes && !is_old {
            self.look(Task::Template(key.clone()), goes);
            return None;
        }
        (self.is_leading && !known.is_deleted).then(|| Write::Delete {
            key: key.clone(),
            uid: known.uid,
            version: known.version,
        })
    }

    fn is_allowed(&self, of: &str) -> bool {
        [class::VGPU, class::GPU].contains(&of) || self.settings.high_priority_class.as_deref() == Some(of)
    }

    fn tell_users(&mut self, key: &Key, notice: &Notice) {
        let users = self.users.get(key).into_iter().flatten();
        let users: Vec<PodRef> = users.filter_map(|pod| Some(self.pods.get(pod)?.at.clone())).collect();
        users.iter().for_each(|pod| self.tell(pod, notice));
    }

    /// Adds a notice if this replica leads.
    fn tell(&mut self, pod: &PodRef, notice: &Notice) {
        if self.is_leading {
            self.found.push((pod.clone(), notice.clone()));
        }
    }
}

/// Returns the known ones that a list lacks.
fn missing<'a, T: Ord + Clone + 'a>(known: impl IntoIterator<Item = &'a T>, listed: Vec<T>) -> Vec<T> {
    let listed: BTreeSet<T> = listed.into_iter().collect();
    known.into_iter().filter(|one| !listed.contains(one)).cloned().collect()
}

fn key_of(namespace: &str, name: &str) -> Key {
    Key {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}
