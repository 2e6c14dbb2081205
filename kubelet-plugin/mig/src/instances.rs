//! Makes an instance when the first claim needs it, and destroys it after the last.
//!
//! ```text
//!  Prepare    mode (switched on if the node allows) ─► is the place free? ─► record ─► GPU instance ─► compute instance
//!             ─► record with ids ─► answer            a further claim: record ─► answer
//!  Unprepare  record without the claim ─► the last one: compute instance ─► GPU instance ─► no record ─► mode
//!  whole      (a claim has the GPU or shares of it) leftovers ─► mode (switched off if it was switched on here)
//!  recover    at a start and in each turn: each record is carried to its end, in either direction
//! ```
//!
//! Nothing is kept in memory: each call reads the records, because an upgrade has two plugins that take turns. The caller holds
//! the node's lock during each call. [`Settings::boot`] is the boot id.
//!
//! An instance is the claims' if a record of this boot names its profile and place, and its ids once they are known. Its UUID
//! proves nothing, because the driver derives it from the place. All others are the administrator's: they are never touched.
//!
//! Failure modes:
//! - The plugin is killed between two steps: the record is there before the instance and until after its end. `recover`
//!   completes what a claim still uses, and destroys the rest.
//! - The driver gives no answer: as if killed, and the claim stays in the record, because a call that takes longer than the caller
//!   waits would be undone again and again. A list that comes later shows the outcome ([`crate::driver`] says why). While a
//!   call of a killed plugin may still be carried out, no list is answered, so a record stays as it is.
//! - A reboot: records of another boot name nothing that is there. Those of claims that are still prepared are made again.
//! - The module was reloaded or the GPU reset, or somebody destroyed a claim's instance: it is made again for its claims if
//!   its place is free, else [`Error::Vanished`] is reported until they are unprepared. From then on, an instance in its place
//!   is somebody else's.
//! - Somebody makes an instance of the same profile in the same place while its record says that it may be there (between
//!   record and answer, or between destruction and the record's end, or when it vanished unseen): nothing tells it from the
//!   claim's, and it counts as that. On a dynamic GPU an administrator makes instances only in places that no device of its
//!   pool offers: before the plugin starts.
//! - A process uses an instance whose claims are gone: it stays, is reported and tried again, and no other claim gets it or a
//!   part of it, because that process is another tenant's.
//! - The driver refuses to create: the record is removed, and the mode that was switched on for it is off again.
//! - Mode: it is on without a record when an administrator switched it on, and then it stays on. One that cannot be switched
//!   off again is reported and tried again. One that the driver could not activate is taken back.
//! - A node that switches no mode any more finds one that it switched: it is left on and reported, as an administrator's would
//!   be, and the record stays for a node that switches it again.
//! - A claim for the whole GPU and one for an instance: the caller's lock puts one before the other, and the second one is
//!   refused with the holders of the first.
//! - The disk is full: no instance is made, and those of ended claims are destroyed. If it becomes full between record and
//!   refusal, the record is removed: an instance that had vanished is then not made again before the next Prepare.
//! - A claim is allocated to two places of one pool, or two claims overlap: the second one is refused, with the holders.

use crate::driver::{Code, ComputeInstance, GpuInstance, MigDriver, Profile, Refused, overlap};
use crate::error::Error;
use crate::records::{Key, Record, Records, Stage, Store, Switched};
use std::collections::{BTreeMap, BTreeSet};
use vgpu_node::files::Failed;
use vgpu_node::gpus::{Gpu, Placement};

/// Makes and destroys the instances of a node's claims.
#[derive(Debug)]
pub struct Instances<D, S> {
    driver: D,
    store: S,
    settings: Settings,
}

#[derive(Clone, Debug)]
pub struct Settings {
    /// The boot id of the machine.
    pub boot: String,
    /// The node allows that MIG mode is switched on and off.
    pub switches_mode: bool,
}

/// A claim that needs an instance.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Its UID.
    pub claim: &'a str,
    /// UUID.
    pub gpu: &'a str,
    pub profile: u32,
    pub profile_name: &'a str,
    pub placement: Placement,
    /// The GPU as it is published, for the record of a mode that is switched.
    pub whole: Option<&'a Gpu>,
}

/// An instance with its compute instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    pub gpu_instance: u32,
    pub compute_instance: u32,
    /// None: the driver does not tell.
    pub uuid: Option<String>,
}

/// The plugin's knowledge of claims.
#[derive(Clone, Copy)]
pub struct Known<'a> {
    /// Returns false only if it is certain that the claim with this UID is not prepared.
    pub is_prepared: &'a dyn Fn(&str) -> bool,
    /// Returns true if claims may hold the GPU with this UUID as a whole, or shares of it.
    pub is_gpu_held: &'a dyn Fn(&str) -> bool,
}

/// The instances that came and went, and what is wrong.
#[derive(Debug, Default)]
pub struct Report {
    pub made: Vec<Record>,
    pub destroyed: Vec<Record>,
    pub problems: Vec<Error>,
}

// === impl Instances ===

impl<D: MigDriver, S: Store> Instances<D, S> {
    pub fn new(driver: D, store: S, settings: Settings) -> Self {
        Self {
            driver,
            store,
            settings,
        }
    }

    /// Makes the instance that a claim was allocated, or adds the claim to those that use it. `is_gpu_held`: claims may hold the
    /// GPU as a whole, or shares of it.
    ///
    /// # Errors
    /// There is no such instance for the claim. Nothing is left of the try but what [`recover`](Self::recover) removes. If a call has
    /// no answer yet, that is a record with the claim, which `recover` completes for as long as the claim counts as prepared.
    pub fn prepare(&self, asked: &Asked<'_>, is_gpu_held: bool) -> Result<Made, Error> {
        let mut records = self.records()?;
        let key = asked.key();
        if let Some(ended) = records.instances.get(&key).filter(|known| known.claims.is_empty()) {
            // A process of its former claims may still use it.
            self.end(ended)?;
            records = self.records()?;
        }
        let mut record = match records.instances.get(&key) {
            Some(known) => known.clone(),
            None => asked.record(&self.settings.boot),
        };
        let is_new = record.claims.insert(asked.claim.to_owned());
        if is_new && records.instances.contains_key(&key) {
            record.save(&self.store, false)?;
        }
        let result = self.ensure(&mut record, is_gpu_held, asked.whole);
        let result = result.map(|(made, _)| made);
        if let Err(error) = &result
            && is_new
        {
            match error.silence().is_some() && self.is_under_way(&record) {
                // Without the claim in the record, a later turn would undo what the driver is doing.
                true => drop(record.save(&self.store, false)),
                false => self.give_up(&key, asked.claim),
            }
        }
        result
    }

    /// Has the GPU whole for a claim that gets it, or shares of it: MIG mode that was switched on here is off again.
    ///
    /// # Errors
    /// Claims have instances of it, an administrator has or switched the mode, or the driver refuses.
    pub fn whole(&self, gpu: &str) -> Result<(), Error> {
        let records = self.records()?;
        // Also while the mode is off: after a reload of the module, instances are made again for their claims.
        let held: Vec<&Record> = records.of_gpu(gpu).filter(|one| !one.claims.is_empty()).collect();
        if !held.is_empty() {
            let claims = held.iter().flat_map(|record| record.claims.iter().cloned()).collect();
            let instances = held.iter().map(|record| record.place()).collect::<Vec<_>>();
            return Err(Error::Divided {
                gpu: gpu.to_owned(),
                instances: instances.join(", "),
                claims: list_of(&claims),
            });
        }
        if !self.is_on(gpu)? {
            return Ok(());
        }
        for ended in records.of_gpu(gpu) {
            self.end(ended)?;
        }
        if let Some(instance) = self.list(gpu)?.first() {
            return Err(Error::DividedByAdministrator {
                gpu: gpu.to_owned(),
                gpu_instance: instance.id,
            });
        }
        let Some(switched) = records.switched(gpu, &self.settings.boot) else {
            return Err(Error::ModeOn { gpu: gpu.to_owned() });
        };
        self.switch_off(switched, &self.records()?)
    }

    /// Destroys the instances of which this claim was the last, as far as no process uses them.
    ///
    /// # Errors
    /// The records cannot be listed. All else is a problem in the report, and tried again by [`recover`](Self::recover).
    pub fn unprepare(&self, claim: &str) -> Result<Report, Failed> {
        let mut report = Report::default();
        for record in self.records()?.instances.into_values() {
            if record.claims.contains(claim) {
                self.release(record, |uid| uid != claim, &mut report);
            }
        }
        self.switch_off_unused(&mut report)?;
        Ok(report)
    }

    /// Carries all that is unfinished to its end, at a start and in each turn.
    ///
    /// # Errors
    /// The records cannot be listed.
    pub fn recover(&self, known: Known<'_>) -> Result<Report, Failed> {
        let mut report = Report::default();
        let records = self.records()?;
        for (file, damage) in records.damaged {
            match self.is_anything_at(&file) {
                false => self.store.remove(&file)?,
                true => report.problems.push(Error::Damaged { file, damage }),
            }
        }
        // First, because it makes room for instances that are made again.
        for record in records.instances.into_values() {
            if !record.claims.iter().all(|uid| (known.is_prepared)(uid)) || record.claims.is_empty() {
                self.release(record, known.is_prepared, &mut report);
            }
        }
        let used = self.records()?.instances.into_values();
        let mut lists = BTreeMap::new();
        for mut record in used.filter(|record| !record.claims.is_empty()) {
            // Once a GPU: a list is a hundred calls of NVML, and a driver that hangs answers none.
            let list = lists.entry(record.gpu.clone()).or_insert_with(|| {
                let list = self.list(&record.gpu);
                list.map_err(|error| report.problems.push(error)).ok()
            });
            let Some(list) = list else { continue };
            if list.iter().any(|instance| self.is_complete(&record, instance)) {
                continue;
            }
            let is_gpu_held = (known.is_gpu_held)(&record.gpu);
            match self.ensure(&mut record, is_gpu_held, None) {
                Ok((_, true)) => report.made.push(record),
                Ok((_, false)) => {}
                // Without a list of instances it may be there.
                Err(why) if record.stage != Stage::Absent => report.problems.push(why),
                Err(why) => report.problems.push(vanished(&record, why)),
            }
        }
        self.switch_off_unused(&mut report)?;
        Ok(report)
    }

    /// Returns true if the GPU is in MIG mode.
    ///
    /// # Errors
    /// The driver does not say it.
    pub fn is_divided(&self, gpu: &str) -> Result<bool, Error> {
        let mode = self.driver.mode(gpu);
        let mode = mode.map_err(|source| gpu_refused(gpu, "say its MIG mode", source))?;
        Ok(mode.is_on)
    }

    /// Returns true if claims may switch the GPU's MIG mode: it needs no reset for that, and has profiles.
    ///
    /// # Errors
    /// The driver does not answer.
    pub fn is_switchable(&self, gpu: &str) -> Result<bool, Error> {
        // A driver without these functions cannot. Any other failure may pass.
        let is_refusal = |source: &Refused| source.code.is_refusal() || source.code == Code::FUNCTION_NOT_FOUND;
        let answer = match self.driver.is_resetless(gpu) {
            Ok(true) => self.driver.profiles(gpu).map(|profiles| !profiles.is_empty()),
            answer => answer,
        };
        match answer {
            Err(source) if is_refusal(&source) => Ok(false),
            answer => answer.map_err(|source| gpu_refused(gpu, "say whether claims may switch its MIG mode", source)),
        }
    }

    /// Returns the instances of a GPU that no claim made.
    ///
    /// # Errors
    /// The records or the instances cannot be listed.
    pub fn administrators(&self, gpu: &str) -> Result<Vec<GpuInstance>, Error> {
        let records = self.records()?;
        let mut found = self.list(gpu)?;
        found.retain(|instance| !records.of_gpu(gpu).any(|record| self.is_its(record, instance)));
        Ok(found)
    }

    /// # Errors
    /// The driver does not list them.
    pub fn profiles(&self, gpu: &str) -> Result<Vec<Profile>, Error> {
        let found = self.driver.profiles(gpu);
        found.map_err(|source| gpu_refused(gpu, "list its profiles", source))
    }

    /// # Errors
    /// The files cannot be listed.
    pub fn records(&self) -> Result<Records, Failed> {
        Records::read(&self.store)
    }

    /// Makes what is missing of a record's instance. Returns true with it if it was not there.
    fn ensure(&self, record: &mut Record, is_gpu_held: bool, whole: Option<&Gpu>) -> Result<(Made, bool), Error> {
        let found = self.list(&record.gpu)?;
        if let Some(instance) = found.iter().find(|instance| self.is_its(record, instance)) {
            return Ok((self.complete(record, instance)?, false));
        }
        if record.stage != Stage::Absent {
            record.stage = Stage::Absent;
            record.save(&self.store, true)?;
        }
        let made = self
            .ready(&record.gpu, is_gpu_held, whole)
            .and_then(|()| self.make_room(record, &found))
            .and_then(|()| self.make(record))
            .and_then(|instance| self.complete(record, &instance));
        if made.is_err() {
            self.switch_back(&record.gpu);
        }
        Ok((made?, true))
    }

    /// Makes the GPU instance of a record. Its place is free.
    fn make(&self, record: &mut Record) -> Result<GpuInstance, Error> {
        record.boot.clone_from(&self.settings.boot);
        record.stage = Stage::Making;
        record.save(&self.store, true)?;
        match self.driver.create(&record.gpu, record.profile, record.placement) {
            Ok(id) => Ok(GpuInstance {
                id,
                profile: record.profile,
                placement: record.placement,
                compute: Vec::new(),
            }),
            Err(source) => {
                if source.code.is_refusal() {
                    record.stage = Stage::Absent;
                    if record.save(&self.store, true).is_err() {
                        // The create may have failed because of the same instance, an administrator's, which must not look
                        // like the claim's.
                        self.store.remove(&record.key().file())?;
                    }
                }
                Err(refused(record, "create it", source))
            }
        }
    }

    /// Makes the compute instance of a record's GPU instance if it is missing, and writes down the ids.
    fn complete(&self, record: &mut Record, instance: &GpuInstance) -> Result<Made, Error> {
        let known = match &record.stage {
            Stage::Made { compute_instance, .. } => Some(*compute_instance),
            Stage::Making | Stage::Absent => None,
        };
        let is_known = |compute: &&ComputeInstance| known.is_none_or(|id| id == compute.id);
        let compute = match instance.compute.iter().find(is_known) {
            Some(compute) => compute.clone(),
            None => {
                let made = self.driver.create_compute(&record.gpu, instance.id);
                made.map_err(|source| refused(record, "create its compute instance", source))?
            }
        };
        let stage = Stage::Made {
            gpu_instance: instance.id,
            compute_instance: compute.id,
            uuid: compute.uuid.clone(),
        };
        if record.stage != stage {
            record.stage = stage;
            // The record on the disk says that the instance may be there, which is enough to find it again.
            let _ = record.save(&self.store, false);
        }
        Ok(Made {
            gpu_instance: instance.id,
            compute_instance: compute.id,
            uuid: compute.uuid,
        })
    }

    /// Has a record's place free, or says who has it. `found`: the instances of its GPU.
    fn make_room(&self, record: &Record, found: &[GpuInstance]) -> Result<(), Error> {
        let records = self.records()?;
        let others = records.of_gpu(&record.gpu).filter(|other| other.key() != record.key());
        let overlapping: Vec<&Record> = others
            .filter(|other| overlap(other.placement, record.placement))
            .collect();
        for instance in found.iter().filter(|found| overlap(found.placement, record.placement)) {
            match overlapping.iter().find(|other| self.is_its(other, instance)) {
                None => {
                    return Err(Error::TakenByAdministrator {
                        instance: record.to_string(),
                        gpu_instance: instance.id,
                    });
                }
                Some(other) if !other.claims.is_empty() => {
                    return Err(Error::TakenByClaims {
                        instance: record.to_string(),
                        other: other.to_string(),
                        claims: list_of(&other.claims),
                    });
                }
                Some(_) => {}
            }
        }
        for ended in overlapping.into_iter().filter(|other| other.claims.is_empty()) {
            self.end(ended)?;
        }
        Ok(())
    }

    /// Takes claims off a record, and ends it after the last one.
    fn release(&self, mut record: Record, stays: impl Fn(&str) -> bool, report: &mut Report) {
        let before = record.claims.len();
        record.claims.retain(|uid| stays(uid));
        if record.claims.len() != before
            && let Err(error) = record.save(&self.store, false)
        {
            // A full disk: the instance is destroyed nevertheless. A claim that stays in the record is taken off in a later turn.
            report.problems.push(error.into());
        }
        if record.claims.is_empty() {
            match self.end(&record) {
                Ok(true) => report.destroyed.push(record),
                Ok(false) => {}
                Err(error) => report.problems.push(error),
            }
        }
    }

    /// Destroys a record's instance if it is there, and then the record. Returns true if it was there.
    fn end(&self, record: &Record) -> Result<bool, Error> {
        let mut was_there = false;
        if record.boot == self.settings.boot && record.stage != Stage::Absent {
            let found = self.list(&record.gpu)?;
            if let Some(instance) = found.iter().find(|instance| self.is_its(record, instance)) {
                self.destroy(record, instance)?;
                was_there = true;
            }
        }
        self.store.remove(&record.key().file())?;
        Ok(was_there)
    }

    fn destroy(&self, record: &Record, instance: &GpuInstance) -> Result<(), Error> {
        let done = |result: Result<(), Refused>, action| match result {
            Err(source) if source.code == Code::InUse => Err(Error::StillInUse {
                instance: record.to_string(),
            }),
            Err(source) if source.code != Code::NotFound => Err(refused(record, action, source)),
            _ => Ok(()),
        };
        for compute in &instance.compute {
            let destroyed = self.driver.destroy_compute(&record.gpu, instance.id, compute.id);
            done(destroyed, "destroy its compute instance")?;
        }
        done(self.driver.destroy(&record.gpu, instance.id), "destroy it")
    }

    /// Returns true if the driver may have begun something for a record.
    fn is_under_way(&self, record: &Record) -> bool {
        let is_switched = |records: Records| records.switched(&record.gpu, &self.settings.boot).is_some();
        record.stage != Stage::Absent || self.records().is_ok_and(is_switched)
    }

    /// Takes a claim whose Prepare failed off its record. What is left is for [`recover`](Self::recover).
    fn give_up(&self, key: &Key, claim: &str) {
        let mut report = Report::default();
        let Ok(mut records) = self.records() else { return };
        let Some(record) = records.instances.remove(key) else {
            return;
        };
        if record.claims.contains(claim) {
            self.release(record, |uid| uid != claim, &mut report);
        }
        let _ = self.switch_off_unused(&mut report);
    }

    /// Has MIG mode on.
    fn ready(&self, gpu: &str, is_gpu_held: bool, whole: Option<&Gpu>) -> Result<(), Error> {
        let owned = || gpu.to_owned();
        if self.is_on(gpu)? {
            return Ok(());
        }
        if !self.settings.switches_mode {
            return Err(Error::ModeOff { gpu: owned() });
        }
        let asked = |action| move |source| gpu_refused(gpu, action, source);
        let is_resetless = self.driver.is_resetless(gpu);
        if !is_resetless.map_err(asked("say whether MIG mode changes without a reset"))? {
            return Err(Error::NeedsReset { gpu: owned() });
        }
        if is_gpu_held {
            return Err(Error::GpuHeld { gpu: owned() });
        }
        let users = self.driver.users(gpu).map_err(asked("list its processes"))?;
        if users > 0 {
            return Err(Error::GpuInUse { gpu: owned(), users });
        }
        let former = self.records()?.switched;
        let former = former.into_iter().find(|switched| switched.gpu == gpu);
        let whole = whole.cloned().map(Box::new);
        let switched = Switched {
            boot: self.settings.boot.clone(),
            gpu: owned(),
            whole: whole.or(former.and_then(|switched| switched.whole)),
        };
        switched.save(&self.store)?;
        let set = self.driver.set_mode(gpu, true);
        set.map_err(asked("switch MIG mode on"))?;
        match self.is_on(gpu)? {
            true => Ok(()),
            false => Err(Error::ModeOff { gpu: owned() }),
        }
    }

    fn is_on(&self, gpu: &str) -> Result<bool, Error> {
        let mode = self.driver.mode(gpu);
        let mode = mode.map_err(|source| gpu_refused(gpu, "say its MIG mode", source))?;
        match mode.is_on == mode.is_on_after_reset {
            true => Ok(mode.is_on),
            false => Err(Error::ResetPending {
                gpu: gpu.to_owned(),
                is_on: mode.is_on,
            }),
        }
    }

    /// Switches MIG mode off again where the plugin switched it on and nothing is left.
    fn switch_off_unused(&self, report: &mut Report) -> Result<(), Failed> {
        let records = self.records()?;
        for switched in &records.switched {
            if let Err(error) = self.switch_off(switched, &records) {
                report.problems.push(error);
            }
        }
        Ok(())
    }

    fn switch_off(&self, switched: &Switched, records: &Records) -> Result<(), Error> {
        if switched.boot == self.settings.boot {
            if records.of_gpu(&switched.gpu).next().is_some() {
                return Ok(());
            }
            let mode = self.driver.mode(&switched.gpu);
            let mode = mode.map_err(|source| gpu_refused(&switched.gpu, "say its MIG mode", source))?;
            // A mode that could not be activated is pending, and is taken back too.
            if mode.is_on || mode.is_on_after_reset {
                if !self.settings.switches_mode {
                    let gpu = switched.gpu.clone();
                    return Err(Error::StaysOn { gpu });
                }
                if !self.list(&switched.gpu)?.is_empty() {
                    return Ok(());
                }
                let set = self.driver.set_mode(&switched.gpu, false);
                set.map_err(|source| gpu_refused(&switched.gpu, "switch MIG mode off again", source))?;
            }
        }
        Ok(self.store.remove(&switched.file())?)
    }

    /// After a failure: the mode does not stay on for nothing. If that fails too, a later turn tries it again.
    fn switch_back(&self, gpu: &str) {
        let Ok(records) = self.records() else { return };
        for switched in records.switched.iter().filter(|switched| switched.gpu == gpu) {
            let _ = self.switch_off(switched, &records);
        }
    }

    fn list(&self, gpu: &str) -> Result<Vec<GpuInstance>, Error> {
        let found = self.driver.instances(gpu);
        found.map_err(|source| gpu_refused(gpu, "list its instances", source))
    }

    /// Returns true if a record's instance is this one.
    fn is_its(&self, record: &Record, instance: &GpuInstance) -> bool {
        let is_there = (record.profile, record.placement) == (instance.profile, instance.placement);
        let is_possible = match record.stage {
            Stage::Making => true,
            Stage::Made { gpu_instance, .. } => gpu_instance == instance.id,
            Stage::Absent => false,
        };
        record.boot == self.settings.boot && is_there && is_possible
    }

    fn is_complete(&self, record: &Record, instance: &GpuInstance) -> bool {
        let Stage::Made { compute_instance, .. } = record.stage else {
            return false;
        };
        let has_compute = instance.compute.iter().any(|compute| compute.id == compute_instance);
        has_compute && self.is_its(record, instance)
    }

    /// Returns false if it is certain that no instance is where a damaged record's name says, and that the mode is off which it
    /// names.
    fn is_anything_at(&self, file: &str) -> bool {
        if let Some(gpu) = Switched::gpu_of_file(file) {
            let mode = self.driver.mode(gpu);
            return mode.map_or(true, |mode| mode.is_on || mode.is_on_after_reset);
        }
        let Some(key) = Key::of_file(file) else { return false };
        let is_there = |found: &GpuInstance| (found.profile, found.placement.start) == (key.profile, key.start);
        self.list(&key.gpu).map_or(true, |found| found.iter().any(is_there))
    }
}

// === impl Asked ===

impl Asked<'_> {
    fn key(&self) -> Key {
        Key {
            gpu: self.gpu.to_owned(),
            profile: self.profile,
            start: self.placement.start,
        }
    }

    fn record(&self, boot: &str) -> Record {
        Record {
            boot: boot.to_owned(),
            gpu: self.gpu.to_owned(),
            profile: self.profile,
            profile_name: self.profile_name.to_owned(),
            placement: self.placement,
            claims: BTreeSet::new(),
            stage: Stage::Absent,
        }
    }
}

fn vanished(record: &Record, why: Error) -> Error {
    Error::Vanished {
        instance: record.to_string(),
        claims: list_of(&record.claims),
        why: Box::new(why),
    }
}

fn list_of(claims: &BTreeSet<String>) -> String {
    claims.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

fn refused(record: &Record, action: &'static str, source: Refused) -> Error {
    Error::Refused {
        object: record.to_string(),
        action,
        source,
    }
}

fn gpu_refused(gpu: &str, action: &'static str, source: Refused) -> Error {
    Error::Refused {
        object: format!("GPU {gpu}"),
        action,
        source,
    }
}

#[cfg(test)]
#[path = "instances_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "model_tests.rs"]
mod model_tests;
