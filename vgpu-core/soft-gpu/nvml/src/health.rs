//! Faults: ECC errors, remapped rows, recovery actions, and events. The file `control` sets all of them
//! (soft_gpu::control); without it every GPU is healthy.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use soft_gpu::lock;

use soft_gpu::c::Code;
use soft_gpu::control::{Health, NoHealth};

use crate::codes::{INVALID_ARGUMENT, NOT_SUPPORTED, Out, TIMEOUT, UNKNOWN};
use crate::library::{device, handle, state};

/// nvmlFieldValue_t.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Field {
    id: u32,
    scope: u32,
    time: i64,
    latency: i64,
    kind: u32,
    result: i32,
    value: u64,
}

/// nvmlEventData_t; its first version ends before the instances.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Event {
    gpu: u64,
    kind: u64,
    data: u64,
    gpu_instance: u32,
    compute_instance: u32,
}

const _: () = {
    assert!(size_of::<Field>() == 40);
    assert!(size_of::<Event>() == 32);
};

/// nvmlFieldValue_t's ids.
mod field {
    pub(super) const REMAPPED_CORRECTABLE: u32 = 142;
    pub(super) const REMAPPED_UNCORRECTABLE: u32 = 143;
    pub(super) const REMAPPED_PENDING: u32 = 144;
    pub(super) const REMAPPED_FAILURE: u32 = 145;
    pub(super) const RESETLESS_MIG: u32 = 184;
    pub(super) const RECOVERY_ACTION: u32 = 230;
}

/// NVML_VALUE_TYPE_UNSIGNED_INT.
const UNSIGNED_INT: u32 = 1;
/// nvmlEventTypeXidCriticalError: the event for which health checks wait.
const XID: u64 = 8;
/// Time between two checks for an event.
const LOOK: Duration = Duration::from_millis(500);

/// An event set: the events for which its owner waits.
struct Set {
    number: u64,
    gpus: Vec<usize>,
    /// The XIDs of the file that are not to be delivered: already delivered, or older than the set.
    past: Vec<(usize, u64)>,
}

static SETS: Mutex<Vec<Set>> = Mutex::new(Vec::new());
/// The number of the first set; they look like pointers.
const FIRST_SET: u64 = 0x506a_0000_0010;

fn health(gpu: u64) -> Result<Health, Code> {
    let (state, gpu) = device(gpu)?;
    state.control().health(gpu).map_err(|why| match why {
        NoHealth::Unreadable => UNKNOWN,
        NoHealth::Unsupported => NOT_SUPPORTED,
    })
}

fn read(health: Result<Health, Code>, id: u32) -> Result<u32, Code> {
    let health = health?;
    match id {
        field::REMAPPED_CORRECTABLE | field::REMAPPED_UNCORRECTABLE => Ok(0),
        field::REMAPPED_PENDING => Ok(u32::from(health.remap_pending)),
        field::REMAPPED_FAILURE => Ok(u32::from(health.remap_failed)),
        field::RECOVERY_ACTION => Ok(health.action),
        _ => Err(NOT_SUPPORTED),
    }
}

/// Calls `run` with the event set of this number.
fn with<T>(number: u64, run: impl FnOnce(&mut Set) -> Result<T, Code>) -> Result<T, Code> {
    let mut sets = lock(&SETS);
    let set = sets.iter_mut().find(|set| set.number == number);
    run(set.ok_or(INVALID_ARGUMENT)?)
}

/// The next XID of the file that a set has not delivered.
fn next(set: u64) -> Result<Option<(usize, u64)>, Code> {
    let control = state()?.control();
    let xids = control.xids();
    with(set, |set| {
        // Forgets lines that are gone or changed, so that new lines in their positions are delivered.
        let same = set.past.iter().zip(xids).take_while(|(past, xid)| past == xid).count();
        set.past.truncate(same);
        while let Some(event) = xids.get(set.past.len()).copied() {
            set.past.push(event);
            if set.gpus.contains(&event.0) {
                return Ok(Some(event));
            }
        }
        Ok(None)
    })
}

/// Waits for the next XID. Works even if the GPU is lost.
fn wait(set: u64, milliseconds: u32) -> Result<Event, Code> {
    let end = Instant::now() + Duration::from_millis(u64::from(milliseconds));
    loop {
        if let Some((gpu, xid)) = next(set)? {
            return Ok(Event {
                gpu: handle(gpu),
                kind: XID,
                data: xid,
                gpu_instance: u32::MAX,
                compute_instance: u32::MAX,
            });
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(TIMEOUT);
        }
        std::thread::sleep(left.min(LOOK));
    }
}

soft_gpu::api! {
    fn nvmlDeviceGetEccMode(gpu: u64, now: Out<u32>, next: Out<u32>) {
        health(gpu)?;
        now.set(1)?;
        next.set(1)
    }

    fn nvmlDeviceGetTotalEccErrors(gpu: u64, kind: u32, counter: u32, out: Out<u64>) {
        let uncorrected = health(gpu)?.uncorrected;
        if kind > 1 || counter > 1 {
            return Err(INVALID_ARGUMENT);
        }
        out.set(if kind == 1 { uncorrected } else { 0 })
    }

    fn nvmlDeviceGetRemappedRows(gpu: u64, fixed: Out<u32>, lost: Out<u32>, pending: Out<u32>, failed: Out<u32>) {
        let (health, (state, index)) = (health(gpu)?, device(gpu)?);
        if !state.gpu_instances(index).is_empty() {
            return Err(NOT_SUPPORTED); // as NVML answers while a GPU has instances
        }
        fixed.set(0)?;
        lost.set(0)?;
        pending.set(u32::from(health.remap_pending))?;
        failed.set(u32::from(health.remap_failed))
    }

    fn nvmlDeviceGetFieldValues(gpu: u64, count: i32, values: Out<Field>) {
        let (state, index) = device(gpu)?;
        let count = usize::try_from(count).map_err(|_| INVALID_ARGUMENT)?;
        let asked = values.read(count)?;
        let value = |id| match id {
            field::RESETLESS_MIG => Ok(u32::from(state.can_divide(index) && state.profile().mig_product.resetless)),
            _ => read(health(gpu), id),
        };
        // A field that cannot be read does not affect the others.
        let answer = |field: Field| match value(field.id) {
            Ok(value) => Field { kind: UNSIGNED_INT, result: 0, value: u64::from(value), ..field },
            Err(Code(code)) => Field { result: code, ..field },
        };
        values.fill(&asked.into_iter().map(answer).collect::<Vec<_>>())
    }

    fn nvmlEventSetCreate(set: Out<u64>) {
        let past = state()?.control().xids().to_vec();
        let mut sets = lock(&SETS);
        let number = sets.iter().map(|set| set.number + 16).max().unwrap_or(FIRST_SET);
        sets.push(Set { number, gpus: Vec::new(), past });
        set.set(number)
    }

    fn nvmlEventSetFree(set: u64) {
        state()?;
        with(set, |_| Ok(()))?;
        lock(&SETS).retain(|other| other.number != set);
        Ok(())
    }

    fn nvmlDeviceGetSupportedEventTypes(gpu: u64, out: Out<u64>) {
        device(gpu)?;
        out.set(XID)
    }

    fn nvmlDeviceRegisterEvents(gpu: u64, types: u64, set: u64) {
        let (_, gpu) = device(gpu)?;
        if types & !XID != 0 {
            return Err(NOT_SUPPORTED);
        }
        with(set, |set| {
            set.gpus.extend((types & XID != 0).then_some(gpu));
            Ok(())
        })
    }

    fn nvmlEventSetWait(set: u64, event: Out<[u64; 3]>, milliseconds: u32) {
        let found = wait(set, milliseconds)?;
        event.set([found.gpu, found.kind, found.data])
    }

    fn nvmlEventSetWait_v2(set: u64, event: Out<Event>, milliseconds: u32) {
        event.set(wait(set, milliseconds)?)
    }
}
