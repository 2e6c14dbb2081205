//! Taints each device that claims hold to say who allocates it: kube-scheduler or vgpu-controller. Monitors have no taint,
//! because kube-scheduler allocates them in every mode. Other taints, of unavailable GPUs
//! and faults, come with the wanted devices, and keep the time that the API server gave them.
//!
//! ```text
//!  --allocator=scheduler    no taint: kube-scheduler allocates
//!  --allocator=controller   dra.vgpu/allocator=controller:NoSchedule; once it is 30 s old, vgpu-controller allocates
//!  from controller to scheduler
//!    `controller` ─► `released`, which neither of them allocates ─► after HANDOVER ─► no taint
//! ```
//!
//! Both may still be writing a decision from before the taint changed, so the other one does not start at once.
//! vgpu-controller waits for the taint's age by the API server's time, which survives every restart. This plugin
//! waits [`HANDOVER`] from when it first saw the stored `released`, by its monotonic clock, which a wrong date of
//! the node cannot shorten. A restart of the plugin starts that wait again.
//!
//! kubelet deletes a node's slices when it starts, and with them the taints. So a file on the node (the mark)
//! records that vgpu-controller may have allocated devices. The plugin writes it before the first taint, and
//! removes it once every device is published without one. While it exists, devices that are published again in
//! scheduler mode start as `released`.

use crate::publish::slice::{Slice, devices_mut, is_held};
use k8s_openapi::api::resource::v1::{Device, DeviceTaint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::Instant;
use vgpu_api::allocator_taint::{CONTROLLER, EFFECT, KEY, RELEASED};
use vgpu_node::files;

/// How long a device has no allocator on its way from the controller to the scheduler. The controller drops
/// decisions that are older than 10 s.
pub const HANDOVER: Duration = Duration::from_secs(30);

/// The component that allocates this node's GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Allocator {
    #[default]
    Scheduler,
    Controller,
}

/// Computes the taints that devices should have from the ones that they have.
#[derive(Debug)]
pub struct Taints {
    allocator: Allocator,
    mark: Mark,
    /// When this process first saw a stored `released`, by device and the time that the server gave the
    /// taint.
    released: BTreeMap<(String, Option<Time>), Instant>,
}

/// The file that records that vgpu-controller may have allocated devices of this node.
#[derive(Debug)]
struct Mark {
    path: PathBuf,
    is_there: bool,
}

/// The devices to publish, with their taints.
#[derive(Debug, PartialEq)]
pub struct Tainted {
    pub slices: Vec<Slice>,
    /// When to compute the taints again although nothing happened: a `released` taint ends then.
    pub until: Option<Instant>,
}

// === impl Taints ===

impl Taints {
    /// # Errors
    /// The mark cannot be read or written. Without it a wiped device could be allocated twice.
    pub fn new(allocator: Allocator, mark: PathBuf) -> io::Result<Self> {
        let mut mark = Mark::read(mark)?;
        if allocator == Allocator::Controller {
            mark.set()?;
        }
        Ok(Self {
            allocator,
            mark,
            released: BTreeMap::new(),
        })
    }

    /// Checks that the mark can be read, and writes nothing.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn check(mark: PathBuf) -> io::Result<()> {
        Mark::read(mark).map(drop)
    }

    /// Returns the wanted devices with the taints that they should have now. `stored` are this pool's devices in
    /// the API server.
    pub fn apply(&mut self, wanted: &[Slice], stored: &[Device], now: Instant) -> Tainted {
        let stored: BTreeMap<&str, &Device> = stored.iter().map(|device| (&*device.name, device)).collect();
        let mut tainted = Tainted {
            slices: wanted.to_vec(),
            until: None,
        };
        let mut seen = BTreeMap::new();
        for device in devices_mut(&mut tainted.slices).filter(|device| is_held(device)) {
            let stored = stored.get(&*device.name).copied();
            // Devices that are written back as they are stored have it already.
            if let Some(taints) = &mut device.taints {
                taints.retain(|taint| taint.key != KEY);
            }
            for taint in device.taints.iter_mut().flatten() {
                taint.time_added = time_of(stored, taint);
            }
            let taint = match self.allocator {
                Allocator::Controller => Some(keep(stored, CONTROLLER)),
                Allocator::Scheduler => self.handing_back(stored, now, &mut seen),
            };
            device.taints.get_or_insert_default().extend(taint);
            if device.taints.as_ref().is_some_and(Vec::is_empty) {
                device.taints = None;
            }
        }
        let ends = seen.values().map(|since| *since + HANDOVER);
        tainted.until = ends.filter(|end| *end > now).min();
        self.released = seen;
        tainted
    }

    /// Returns the taint of a device in scheduler mode, if it should still have one. `seen` collects since when
    /// each stored `released` is known.
    fn handing_back(
        &self,
        stored: Option<&Device>,
        now: Instant,
        seen: &mut BTreeMap<(String, Option<Time>), Instant>,
    ) -> Option<DeviceTaint> {
        let Some(stored) = stored else {
            return self.mark.is_there.then(|| taint(RELEASED, None));
        };
        let found = of_allocator(stored)?;
        if found.value.as_deref() != Some(RELEASED) {
            return Some(taint(RELEASED, None));
        }
        let id = (stored.name.clone(), found.time_added.clone());
        let since = *self.released.get(&id).unwrap_or(&now);
        // Kept until the stored taint is gone, because the write that removes it may fail.
        seen.insert(id, since);
        (now.saturating_duration_since(since) < HANDOVER).then(|| found.clone())
    }

    /// Call this when the API server has stored the last result of [`Taints::apply`]. Removes the mark once no
    /// device has the taint. Keeps it while there is no device, because a device that comes back may have been
    /// the controller's a moment ago.
    pub fn confirm_stored(&mut self, stored: &[Device]) {
        let is_over = || {
            let mut shared = stored.iter().filter(|device| is_held(device)).peekable();
            shared.peek().is_some() && shared.all(|device| of_allocator(device).is_none())
        };
        if self.allocator == Allocator::Scheduler && self.mark.is_there && is_over() {
            self.mark.remove();
        }
    }

    /// Returns true if the API server kept the taint on every device of `stored` that should have it.
    #[must_use]
    pub fn are_kept(&self, stored: &[Device]) -> bool {
        let mut shared = stored.iter().filter(|device| is_held(device));
        self.allocator == Allocator::Scheduler || shared.all(|device| of_allocator(device).is_some())
    }
}

// === impl Mark ===

impl Mark {
    fn read(path: PathBuf) -> io::Result<Self> {
        match std::fs::symlink_metadata(&path) {
            Ok(_) => Ok(Self { path, is_there: true }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self { path, is_there: false }),
            Err(error) => Err(error),
        }
    }

    fn set(&mut self) -> io::Result<()> {
        if !self.is_there {
            if let Some(folder) = self.path.parent() {
                std::fs::create_dir_all(folder)?;
            }
            files::replace_synced(&self.path, b"controller\n", 0o600)?;
            self.is_there = true;
        }
        Ok(())
    }

    /// If the mark cannot be removed, the next wipe costs [`HANDOVER`] once more and nothing else.
    fn remove(&mut self) {
        match std::fs::remove_file(&self.path) {
            Ok(()) => self.is_there = false,
            Err(error) => tracing::warn!("cannot remove {}: {error}", self.path.display()),
        }
    }
}

fn of_allocator(device: &Device) -> Option<&DeviceTaint> {
    device.taints.iter().flatten().find(|taint| taint.key == KEY)
}

/// Returns the taint with the server's time, if it is stored already.
fn keep(stored: Option<&Device>, value: &str) -> DeviceTaint {
    let new = taint(value, None);
    DeviceTaint {
        time_added: time_of(stored, &new),
        ..new
    }
}

/// When the server stored a taint like this one: the taint is to keep that time.
fn time_of(stored: Option<&Device>, taint: &DeviceTaint) -> Option<Time> {
    let same =
        |found: &&DeviceTaint| (&found.key, &found.value, &found.effect) == (&taint.key, &taint.value, &taint.effect);
    let found = stored?.taints.iter().flatten().find(same)?;
    found.time_added.clone()
}

/// Builds a taint. Without a time, the server sets its own.
fn taint(value: &str, time_added: Option<Time>) -> DeviceTaint {
    DeviceTaint {
        key: KEY.to_owned(),
        value: Some(value.to_owned()),
        effect: EFFECT.to_owned(),
        time_added,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publish::inventory::tests::gpu;
    use crate::publish::inventory::{Inventory, Unavailable};
    use crate::publish::slice::tests::WHOLE;
    use crate::publish::slice::{devices, slices};

    struct Node {
        folder: tempfile::TempDir,
        taints: Taints,
        /// The devices in the API server.
        stored: Vec<Device>,
        writes: i64,
        now: Instant,
    }

    impl Node {
        fn new(allocator: Allocator) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let taints = Taints::new(allocator, folder.path().join("plugin/allocator")).unwrap();
            Self {
                folder,
                taints,
                stored: Vec::new(),
                writes: 0,
                now: Instant::now(),
            }
        }

        /// A node whose devices were the controller's until a moment ago.
        fn on_the_way_back() -> Self {
            let mut node = Self::new(Allocator::Controller);
            assert_eq!(node.publish(), controller(1));
            node.restart(Allocator::Scheduler);
            assert_eq!(node.publish(), released(2));
            node
        }

        fn restart(&mut self, allocator: Allocator) {
            self.taints = Taints::new(allocator, self.folder.path().join("plugin/allocator")).unwrap();
        }

        /// Publishes until nothing changes. Returns the value of the GPU's taint, and its time.
        fn publish(&mut self) -> Option<(String, i64)> {
            for _ in 0..4 {
                let wanted = slices(&Inventory::new(vec![gpu(0)]), WHOLE);
                let tainted = self.taints.apply(&wanted, &self.stored, self.now);
                let mut devices: Vec<Device> = devices(&tainted.slices).cloned().collect();
                if devices == self.stored {
                    self.taints.confirm_stored(&self.stored);
                    let (shared, monitor) = (&self.stored[0], &self.stored[1]);
                    assert_eq!(monitor.taints, None, "the monitor stays the scheduler's");
                    assert!(self.taints.are_kept(&self.stored));
                    return of_allocator(shared).map(|taint| {
                        let time = taint.time_added.as_ref().unwrap().0.as_second();
                        (taint.value.clone().unwrap(), time)
                    });
                }
                self.writes += 1;
                for taint in devices.iter_mut().filter_map(|device| device.taints.as_mut()).flatten() {
                    let time = k8s_openapi::jiff::Timestamp::from_second(self.writes).unwrap();
                    taint.time_added.get_or_insert(Time(time));
                }
                self.stored = devices;
            }
            panic!("it never comes to rest: {:?}", self.stored);
        }

        fn wait(&mut self, seconds: u64) -> Option<(String, i64)> {
            self.now += Duration::from_secs(seconds);
            self.publish()
        }
    }

    fn controller(time: i64) -> Option<(String, i64)> {
        Some((CONTROLLER.to_owned(), time))
    }

    fn released(time: i64) -> Option<(String, i64)> {
        Some((RELEASED.to_owned(), time))
    }

    #[test]
    fn the_schedulers_devices_have_no_taint() {
        let mut node = Node::new(Allocator::Scheduler);
        assert_eq!((node.publish(), node.writes), (None, 1));
        node.stored.clear();
        assert_eq!(node.publish(), None, "after a wipe too");
        assert!(!node.taints.mark.path.exists());
    }

    #[test]
    fn the_controllers_taint_keeps_its_age_over_restarts_and_other_changes() {
        let mut node = Node::new(Allocator::Controller);
        assert_eq!(node.publish(), controller(1));
        node.restart(Allocator::Controller);
        node.stored[0].attributes.as_mut().unwrap().clear();
        assert_eq!((node.publish(), node.writes), (controller(1), 2));
        node.stored.clear();
        assert_eq!(node.publish(), controller(3), "a wiped one is young again");
    }

    #[test]
    fn on_the_way_back_it_is_nobodys_for_a_while() {
        let mut node = Node::on_the_way_back();
        assert_eq!(node.wait(29), released(2));
        assert!(node.taints.mark.path.exists());
        assert_eq!(node.wait(1), None);
        assert!(!node.taints.mark.path.exists());
        node.restart(Allocator::Controller);
        assert_eq!(node.publish(), controller(4), "and forth, young");
    }

    #[test]
    fn a_restart_on_the_way_back_waits_anew_and_keeps_the_servers_time() {
        let mut node = Node::on_the_way_back();
        node.wait(29);
        node.restart(Allocator::Scheduler);
        assert_eq!(node.wait(29), released(2));
        assert_eq!(node.wait(29), released(2));
        assert_eq!(node.wait(1), None);
    }

    #[test]
    fn a_wipe_does_not_make_anybody_forget_the_controller() {
        let mut node = Node::new(Allocator::Controller);
        node.publish();
        node.stored.clear();
        node.restart(Allocator::Scheduler);
        assert_eq!(node.publish(), released(2));
        node.wait(20);
        node.stored.clear();
        assert_eq!(node.publish(), released(3), "wiped again: from the beginning");
        assert_eq!(node.wait(29), released(3));
        assert_eq!(node.wait(1), None);
    }

    #[test]
    fn a_driver_that_is_away_does_not_make_anybody_forget_the_controller() {
        let mut node = Node::new(Allocator::Controller);
        node.publish();
        node.restart(Allocator::Scheduler);
        node.stored.clear();
        node.taints.apply(&[], &[], node.now);
        node.taints.confirm_stored(&[]);
        assert_eq!(node.publish(), released(2));
    }

    #[test]
    fn a_write_that_fails_costs_no_second_wait() {
        let mut node = Node::on_the_way_back();
        node.now += HANDOVER;
        let wanted = slices(&Inventory::new(vec![gpu(0)]), WHOLE);
        for _ in 0..2 {
            let tainted = node.taints.apply(&wanted, &node.stored, node.now);
            assert_eq!(
                (of_allocator(&tainted.slices[0].devices[0]), tainted.until),
                (None, None)
            );
        }
        assert_eq!(node.publish(), None);
    }

    #[test]
    fn who_changes_their_mind_on_the_way_back_waits_like_everybody() {
        let mut node = Node::on_the_way_back();
        node.restart(Allocator::Controller);
        assert_eq!(node.publish(), controller(3));
    }

    #[test]
    fn until_says_when_to_look_again() {
        let mut node = Node::on_the_way_back();
        let wanted = slices(&Inventory::new(vec![gpu(0)]), WHOLE);
        let first = node.now;
        node.now += Duration::from_secs(5);
        assert_eq!(
            node.taints.apply(&wanted, &node.stored, node.now).until,
            Some(first + HANDOVER)
        );
    }

    #[test]
    fn a_server_without_taints_is_noticed_and_other_taints_stay() {
        let mut node = Node::new(Allocator::Controller);
        let mut wanted = slices(&Inventory::new(vec![gpu(0)]), WHOLE);
        let all: Vec<Device> = devices(&wanted).cloned().collect();
        assert!(!node.taints.are_kept(&all));
        let health = DeviceTaint {
            key: "dra.vgpu/health".into(),
            ..taint("x", None)
        };
        wanted[0].devices[0].taints = Some(vec![health.clone()]);
        let tainted = node.taints.apply(&wanted, &[], node.now).slices;
        assert_eq!(
            tainted[0].devices[0].taints.as_ref().unwrap()[..],
            [health, taint(CONTROLLER, None)]
        );
    }

    #[test]
    fn a_mark_that_cannot_be_written_stops_the_controllers_mode_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(Taints::new(Allocator::Controller, file.join("allocator")).is_err());
        let free = folder.path().join("none/allocator");
        assert!(Taints::new(Allocator::Scheduler, free).is_ok());
    }

    #[test]
    fn the_taint_of_an_unavailable_gpu_keeps_its_time_until_the_gpu_is_back() {
        let inventory = |is_lost: bool| {
            let lost = is_lost.then(|| (gpu(0).uuid, Unavailable::Lost(String::new())));
            slices(
                &Inventory::with_unavailable(vec![gpu(0)], lost.into_iter().collect()),
                WHOLE,
            )
        };
        for allocator in [Allocator::Scheduler, Allocator::Controller] {
            let folder = tempfile::tempdir().unwrap();
            let mut taints = Taints::new(allocator, folder.path().join("allocator")).unwrap();
            let mut keys = |wanted: Vec<Slice>, stored: &[Device]| {
                let tainted = taints.apply(&wanted, stored, Instant::now()).slices.remove(0).devices;
                let found = tainted[0].taints.iter().flatten();
                let found = found.map(|taint| (taint.key.clone(), taint.time_added.clone()));
                (found.collect::<BTreeMap<_, _>>(), tainted)
            };
            let (new, mut stored) = keys(inventory(true), &[]);
            assert_eq!(new["dra.vgpu/lost"], None, "the server gives it its time");
            // As the API server stores it.
            let time = Some(Time(k8s_openapi::jiff::Timestamp::from_second(7).unwrap()));
            for taint in stored[0].taints.iter_mut().flatten() {
                taint.time_added = time.clone();
            }
            let (again, same) = keys(inventory(true), &stored);
            assert_eq!((&again["dra.vgpu/lost"], &same), (&time, &stored));
            let (well, _) = keys(inventory(false), &stored);
            assert!(!well.contains_key("dra.vgpu/lost"));
        }
    }
}
