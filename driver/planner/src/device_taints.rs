//! Who allocates a device, by its taint `dra.vgpu/allocator`.
//!
//! ```text
//!  value of the taint             allocator
//!  none                           kube-scheduler
//!  controller, not yet 30 s old   nobody: an earlier decision of kube-scheduler may still land
//!  controller                     the controller, after a list of all claims that was begun when the taint was 30 s old
//!  released, or anything else     nobody; the plugin removes the taint when it is 30 s old
//! ```
//!
//! The allocator crate knows only taints and tolerations, not allocators. So the slices that it gets have other taints
//! than the published ones: kube-scheduler's devices get the value `scheduler`, and devices that are still waiting to
//! become the controller's get `settling`. The controller's claims tolerate `controller`, all other claims `scheduler`,
//! and no claim tolerates any other value. Each such taint carries the sentence with which a reason explains it.

use vgpu_allocator::model::{Device, ResourceSlice, Taint};

use crate::names::{CONTROLLER, DRIVER, TAINT_EFFECT, TAINT_KEY};
use crate::time::Time;

/// Values of the taint that only the allocator sees.
pub(crate) const SCHEDULER: &str = "scheduler";
const SETTLING: &str = "settling";

/// The sentences with which a reason explains these taints.
const IS_SCHEDULERS: &str =
    "it does not bear the taint dra.vgpu/allocator=controller, so kube-scheduler allocates it and not vgpu-controller";
const IS_YOUNG: &str = "its taint dra.vgpu/allocator=controller is not yet 30 s old, and nobody allocates it before";
const IS_SETTLING: &str = "its taint dra.vgpu/allocator=controller is not yet 30 s old, or all claims have not been \
                           listed since it was; nobody allocates it before";
const IS_AGELESS: &str =
    "its taint dra.vgpu/allocator=controller has no timeAdded that can be read, so nobody allocates it";
const IS_RELEASED: &str = "its taint dra.vgpu/allocator says that it is on its way back to kube-scheduler, and nobody \
                           allocates it before that taint is gone";

/// Who allocates a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeviceAllocator {
    Controller {
        since: Time,
    },
    /// Nobody yet; the controller once a list of all claims has begun after `until`. `until` is missing if the taint
    /// has no readable `timeAdded`.
    Settling {
        until: Option<Time>,
    },
    Scheduler,
    /// Being returned to kube-scheduler.
    Released,
    OtherDriver,
}

/// When a device's taint takes effect.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Handover {
    /// How old the taint must be.
    pub(crate) after: std::time::Duration,
    /// When the last consistent list of all claims was begun: every allocation written before is known.
    pub(crate) listed: Option<Time>,
    /// True if that list is of this moment, so that only the taint's age can be missing.
    pub(crate) is_listed_now: bool,
}

/// Rewrites the taints of a slice for the allocator crate, and returns who allocates each device.
pub(crate) fn rewrite_taints(slice: &mut ResourceSlice, handover: Handover) -> Vec<DeviceAllocator> {
    if slice.spec.driver != DRIVER {
        return vec![DeviceAllocator::OtherDriver; slice.spec.devices.len()];
    }
    let devices = slice.spec.devices.iter_mut();
    devices
        .map(|device| {
            let allocator = allocator_of(device, handover);
            match allocator {
                DeviceAllocator::Scheduler => device.taints.push(schedulers()),
                DeviceAllocator::Settling { until } => {
                    let means = match (until, handover.is_listed_now) {
                        (None, _) => IS_AGELESS,
                        (Some(_), true) => IS_YOUNG,
                        (Some(_), false) => IS_SETTLING,
                    };
                    for taint in device.taints.iter_mut().filter(|taint| is_controller(taint)) {
                        SETTLING.clone_into(&mut taint.value);
                        taint.means = Some(means);
                    }
                }
                DeviceAllocator::Released => {
                    for taint in device.taints.iter_mut().filter(|taint| taint.key == TAINT_KEY) {
                        taint.means = Some(IS_RELEASED);
                    }
                }
                DeviceAllocator::Controller { .. } | DeviceAllocator::OtherDriver => {}
            }
            allocator
        })
        .collect()
}

fn allocator_of(device: &Device, handover: Handover) -> DeviceAllocator {
    let mut ours = device.taints.iter().filter(|taint| taint.key == TAINT_KEY);
    let Some(first) = ours.next() else {
        return DeviceAllocator::Scheduler;
    };
    if !is_controller(first) || ours.next().is_some() {
        return DeviceAllocator::Released;
    }
    let added = first.time_added.as_deref().and_then(Time::parse);
    match added.map(|added| added.after(handover.after)) {
        Some(since) if handover.listed.is_some_and(|listed| since <= listed) => DeviceAllocator::Controller { since },
        until => DeviceAllocator::Settling { until },
    }
}

fn is_controller(taint: &Taint) -> bool {
    (&*taint.key, &*taint.value, &*taint.effect) == (TAINT_KEY, CONTROLLER, TAINT_EFFECT)
}

fn schedulers() -> Taint {
    Taint {
        key: TAINT_KEY.to_owned(),
        value: SCHEDULER.to_owned(),
        effect: TAINT_EFFECT.to_owned(),
        time_added: None,
        means: Some(IS_SCHEDULERS),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn slice(driver: &str, taints: &str) -> ResourceSlice {
        serde_json::from_str(&format!(
            r#"{{"spec":{{"driver":"{driver}","devices":[{{"name":"d","taints":[{taints}]}}]}}}}"#
        ))
        .unwrap()
    }

    fn whose(driver: &str, taints: &str, listed: Option<i64>) -> (DeviceAllocator, Vec<String>) {
        let mut slice = slice(driver, taints);
        let handover = Handover {
            after: Duration::from_secs(30),
            listed: listed.map(Time::from_millis),
            is_listed_now: false,
        };
        let who = rewrite_taints(&mut slice, handover)[0];
        let taints = slice.spec.devices[0].taints.iter();
        (who, taints.map(|taint| taint.value.clone()).collect())
    }

    const OURS: &str =
        r#"{"key":"dra.vgpu/allocator","value":"controller","effect":"NoSchedule","timeAdded":"1970-01-01T00:00:10Z"}"#;

    #[test]
    fn each_device_has_one_allocator_or_none() {
        let since = Time::from_millis(40_000);
        assert_eq!(
            whose(DRIVER, "", None),
            (DeviceAllocator::Scheduler, vec![SCHEDULER.into()])
        );
        let settling = DeviceAllocator::Settling { until: Some(since) };
        assert_eq!(whose(DRIVER, OURS, None), (settling, vec![SETTLING.into()]));
        assert_eq!(whose(DRIVER, OURS, Some(39_999)).0, settling);
        assert_eq!(
            whose(DRIVER, OURS, Some(40_000)),
            (DeviceAllocator::Controller { since }, vec![CONTROLLER.into()])
        );
        let released = OURS.replace("\"controller\"", "\"released\"");
        assert_eq!(whose(DRIVER, &released, Some(99_999)).0, DeviceAllocator::Released);
        let both = format!("{OURS},{released}");
        assert_eq!(whose(DRIVER, &both, Some(99_999)).0, DeviceAllocator::Released);
        let harder = OURS.replace("NoSchedule", "NoExecute");
        assert_eq!(whose(DRIVER, &harder, Some(99_999)).0, DeviceAllocator::Released);
        let ageless = OURS.replace("1970", "then");
        assert_eq!(
            whose(DRIVER, &ageless, Some(99_999)).0,
            DeviceAllocator::Settling { until: None }
        );
        assert_eq!(whose("other", OURS, Some(99_999)).0, DeviceAllocator::OtherDriver);
    }
}
