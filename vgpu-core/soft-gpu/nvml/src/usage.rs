//! Figures that change: memory, processes, utilisation. Each result comes from one consistent picture.

use soft_gpu::c::{Code, Res};
use soft_gpu::memory_limits::Told;
use soft_gpu::profile::NvmlPids;
use soft_gpu::state::{Picture, State, User};

use crate::codes::{INSUFFICIENT_SIZE, NOT_FOUND, NOT_SUPPORTED, Out, VERSION_MISMATCH};
use crate::library::{device, either};
use crate::sensors::constant;

/// nvmlMemory_t: total, free, used.
type Memory = [u64; 3];

/// nvmlMemory_v2_t.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct MemoryV2 {
    version: u32,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// nvmlProcessInfo_v1_t.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ProcessV1 {
    pid: u32,
    memory: u64,
}

/// nvmlProcessInfo_v2_t, which v3 kept.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ProcessV2 {
    pid: u32,
    memory: u64,
    gpu_instance: u32,
    compute_instance: u32,
}

/// nvmlProcessUtilizationSample_t.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Sample {
    pid: u32,
    time: u64,
    sm: u32,
    memory: u32,
    encoder: u32,
    decoder: u32,
}

const _: () = {
    assert!(std::mem::size_of::<MemoryV2>() == 40);
    assert!(std::mem::size_of::<ProcessV1>() == 16);
    assert!(std::mem::size_of::<ProcessV2>() == 24);
    assert!(std::mem::size_of::<Sample>() == 32);
    assert!(std::mem::size_of::<Accounting>() == 56);
};

/// nvmlAccountingStats_t.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Accounting {
    busy: u32,
    memory_busy: u32,
    most: u64,
    time: u64,
    started: u64,
    running: u32,
    reserved: [u32; 5],
}

pub(crate) fn picture(gpu: u64) -> Result<Picture, Code> {
    let (state, gpu) = device(gpu)?;
    Ok(state.look(gpu))
}

/// A picture for utilisation, which NVML does not measure in MIG mode.
fn measured(gpu: u64) -> Result<Picture, Code> {
    let (state, index) = device(gpu)?;
    match state.has_mig(index) {
        true => Err(NOT_SUPPORTED),
        false => Ok(state.look(index)),
    }
}

/// The GPU instance and the compute instance of a device; a GPU has neither.
fn instance_ids(state: &State, device: usize) -> [u32; 2] {
    let instance = state.instance(device);
    instance.map_or([u32::MAX; 2], |instance| {
        [instance.id(), instance.compute.unwrap_or(u32::MAX)]
    })
}

/// A GPU or an instance; or a GPU in MIG mode, which has what its instances have: itself, and these.
fn parts(gpu: u64) -> Result<(&'static State, Vec<usize>), Code> {
    let (state, device) = either(gpu)?;
    let mut parts = state.instances_of(device);
    parts.insert(0, device);
    Ok((state, parts))
}

/// The bytes in use on a GPU with its instances, or in an instance.
fn used(gpu: u64) -> Result<u64, Code> {
    let (state, parts) = parts(gpu)?;
    Ok(parts.into_iter().map(|part| state.look(part).used).sum())
}

/// Higher than any PID (the kernel's PID_MAX_LIMIT).
const NO_PID: u32 = 1 << 22;

/// Returns the processes of a picture with the PIDs by which NVML lists them, as the profile and the file `control`
/// say.
pub(crate) fn visible(gpu: u64, picture: &Picture) -> Result<Vec<(u32, &User)>, Code> {
    let (state, _) = either(gpu)?;
    let (mode, wrong) = (state.profile().nvml_pids, state.control().wrong_pids);
    let listed = picture.users.iter().filter_map(|user| {
        let pid = match mode {
            _ if wrong => 1,
            NvmlPids::Own => user.pid?,
            NvmlPids::Host => NO_PID + user.place as u32,
            NvmlPids::None => return None,
        };
        Some((pid, user))
    });
    Ok(listed.collect())
}

/// Fills a caller's array, or says how large it must be.
pub(crate) fn list<T: Copy>(count: Out<u32>, out: Out<T>, items: &[T]) -> Res {
    let room = count.get()? as usize;
    count.set(items.len() as u32)?;
    if items.len() > room || (!items.is_empty() && !out.given()) {
        return Err(INSUFFICIENT_SIZE);
    }
    out.fill(items)
}

/// A process by the PID that NVML lists, and the ids of the instances that it uses.
type Listed<'a> = (u32, &'a User, [u32; 2]);

impl From<Listed<'_>> for ProcessV1 {
    fn from((pid, user, _): Listed<'_>) -> Self {
        Self {
            pid,
            memory: user.listed,
        }
    }
}

impl From<Listed<'_>> for ProcessV2 {
    fn from((pid, user, [gpu_instance, compute_instance]): Listed<'_>) -> Self {
        Self {
            pid,
            memory: user.listed,
            gpu_instance,
            compute_instance,
        }
    }
}

fn processes<T: Copy + for<'a> From<Listed<'a>>>(gpu: u64, count: Out<u32>, out: Out<T>) -> Res {
    let (state, parts) = parts(gpu)?;
    let mut processes: Vec<T> = Vec::new();
    for part in parts {
        let (picture, ids) = (state.look(part), instance_ids(state, part));
        let listed = visible(gpu, &picture)?.into_iter();
        processes.extend(listed.map(|(pid, user)| T::from((pid, user, ids))));
    }
    list(count, out, &processes)
}

fn none(gpu: u64, count: Out<u32>) -> Res {
    device(gpu)?;
    count.set(0)
}

/// Returns a GPU or an instance of whose memory NVML has a figure.
fn with_figure(gpu: u64) -> Result<(&'static State, usize), Code> {
    let (state, index) = either(gpu)?;
    match state.profile().is_unified(index) {
        true => Err(NOT_SUPPORTED),
        false => Ok((state, index)),
    }
}

/// What the driver keeps. The size of an instance is what clients can allocate.
fn reserved(state: &State, device: usize) -> u64 {
    match state.instance(device) {
        Some(_) => 0,
        None => state.profile().reserved,
    }
}

soft_gpu::api! {
    fn nvmlDeviceGetMemoryInfo(gpu: u64, out: Out<Memory>) {
        let (state, index) = with_figure(gpu)?;
        let reserved = reserved(state, index);
        let used = used(gpu)? + reserved; // the first version counts what is reserved as used
        let total = state.memory_of(index) + reserved;
        out.set([total, total.saturating_sub(used), used])
    }

    fn nvmlDeviceGetMemoryInfo_v2(gpu: u64, out: Out<MemoryV2>) {
        let (state, index) = with_figure(gpu)?;
        let (memory, reserved) = (state.memory_of(index), reserved(state, index));
        let version = out.get()?.version;
        if version != 2 << 24 | size_of::<MemoryV2>() as u32 {
            return Err(VERSION_MISMATCH);
        }
        let used = used(gpu)?;
        let (total, free) = (memory + reserved, memory.saturating_sub(used));
        // The first version of this function does not know limits of cgroups.
        let Told { total, free, used } = state.cut_to_limit(index, Told { total, free, used });
        out.set(MemoryV2 {
            version,
            total,
            reserved,
            free,
            used,
        })
    }

    /// There is no confidential computing, so no memory is protected.
    fn nvmlDeviceGetConfComputeMemSizeInfo(gpu: u64, out: Out<[u64; 2]>) {
        let profile = device(gpu)?.0.profile();
        out.set([0, (profile.memory + profile.reserved) >> 10])
    }

    fn nvmlDeviceGetConfComputeProtectedMemoryUsage(gpu: u64, out: Out<Memory>) {
        constant(gpu, out, [0; 3])
    }

    /// Works only for running processes. Their peak is not recorded, so the current figure is returned.
    fn nvmlDeviceGetAccountingStats(gpu: u64, pid: u32, out: Out<Accounting>) {
        let picture = picture(gpu)?;
        let (_, user) = visible(gpu, &picture)?.into_iter().find(|(known, _)| *known == pid).ok_or(NOT_FOUND)?;
        out.set(Accounting {
            busy: user.busy,
            memory_busy: user.busy / 2,
            most: user.listed,
            time: 0,
            started: 0,
            running: 1,
            reserved: [0; 5],
        })
    }

    fn nvmlDeviceGetBAR1MemoryInfo(gpu: u64, out: Out<Memory>) {
        let (total, used) = (128 << 30, 1 << 20);
        either(gpu)?;
        out.set([total, total - used, used])
    }

    fn nvmlDeviceGetUtilizationRates(gpu: u64, out: Out<[u32; 2]>) {
        let busy = measured(gpu)?.busy;
        out.set([busy, busy / 2])
    }

    fn nvmlDeviceGetComputeRunningProcesses(gpu: u64, count: Out<u32>, out: Out<ProcessV1>) { processes(gpu, count, out) }
    fn nvmlDeviceGetComputeRunningProcesses_v2(gpu: u64, count: Out<u32>, out: Out<ProcessV2>) { processes(gpu, count, out) }
    fn nvmlDeviceGetComputeRunningProcesses_v3(gpu: u64, count: Out<u32>, out: Out<ProcessV2>) { processes(gpu, count, out) }
    fn nvmlDeviceGetGraphicsRunningProcesses(gpu: u64, count: Out<u32>, _out: Out<ProcessV1>) { none(gpu, count) }
    fn nvmlDeviceGetGraphicsRunningProcesses_v2(gpu: u64, count: Out<u32>, _out: Out<ProcessV2>) { none(gpu, count) }
    fn nvmlDeviceGetGraphicsRunningProcesses_v3(gpu: u64, count: Out<u32>, _out: Out<ProcessV2>) { none(gpu, count) }
    fn nvmlDeviceGetMPSComputeRunningProcesses(gpu: u64, count: Out<u32>, _out: Out<ProcessV1>) { none(gpu, count) }
    fn nvmlDeviceGetMPSComputeRunningProcesses_v2(gpu: u64, count: Out<u32>, _out: Out<ProcessV2>) { none(gpu, count) }
    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(gpu: u64, count: Out<u32>, _out: Out<ProcessV2>) { none(gpu, count) }

    fn nvmlDeviceGetProcessUtilization(gpu: u64, out: Out<Sample>, count: Out<u32>, since: u64) {
        let picture = measured(gpu)?;
        let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let time = time.map_or(0, |time| time.as_micros() as u64);
        let busy = |(pid, user): (u32, &User)| {
            let memory = user.busy / 2;
            (user.busy > 0).then_some(Sample { pid, time, sm: user.busy, memory, encoder: 0, decoder: 0 })
        };
        let samples: Vec<Sample> = visible(gpu, &picture)?.into_iter().filter_map(busy).collect();
        if samples.is_empty() || since > time {
            count.set(0)?;
            return Err(NOT_FOUND);
        }
        list(count, out, &samples)
    }
}
