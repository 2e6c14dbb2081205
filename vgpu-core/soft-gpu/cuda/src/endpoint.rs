//! Logical endpoints: numbers that a program reserves, and the memory that it binds to them. The memory stays until it
//! is unbound or the endpoint is destroyed. There is no fabric behind them, and memory of pools cannot be bound.

use std::collections::{BTreeSet, HashMap};
use std::sync::Mutex;

use soft_gpu::lock;

use crate::code::{Code, INVALID_VALUE, Res};
use crate::driver::{self, Driver};
use crate::ffi::{In, Out};

/// CUlogicalEndpointProp: its kind and the device (or how many) in one word, size, handle types and flags.
type Properties = [u64; 3];
const OF_ONE_GPU: u32 = 1;
const OF_SEVERAL: u32 = 2;

struct Endpoint {
    /// The GPUs that memory can be bound on.
    gpus: Vec<usize>,
    wanted: usize,
    size: u64,
}

#[derive(Default)]
struct Tables {
    next: u32,
    reserved: BTreeSet<u32>,
    made: HashMap<u32, Endpoint>,
}

static TABLES: Mutex<Option<Tables>> = Mutex::new(None);

fn with<T>(act: impl FnOnce(&mut Tables) -> T) -> T {
    act(lock(&TABLES).get_or_insert_default())
}

/// The key of an endpoint in the table of bound memory. It is never a handle.
fn object(endpoint: u32) -> u64 {
    0x4c45_0000_0000 | u64::from(endpoint)
}

fn checked(driver: &Driver, properties: In<Properties>) -> Result<Endpoint, Code> {
    let [kind, size, _] = properties.get()?;
    let (kind, what) = (kind as u32, (kind >> 32) as i32);
    if size == 0 || !size.is_multiple_of(driver.state().profile().granularity) {
        return Err(INVALID_VALUE);
    }
    let (gpus, wanted) = match kind {
        OF_ONE_GPU => (vec![driver.gpu(what)?], 1),
        OF_SEVERAL if what > 0 => (Vec::new(), what as usize),
        _ => return Err(INVALID_VALUE),
    };
    Ok(Endpoint { gpus, wanted, size })
}

fn bind(endpoint: u32, device: i32, offset: u64, memory: u64, size: u64) -> Res {
    let (driver, gpu) = driver::device(device)?;
    let fits = |one: &Endpoint| {
        let inside = offset.checked_add(size).is_some_and(|end| end <= one.size);
        one.gpus.contains(&gpu) && one.gpus.len() == one.wanted && size > 0 && inside
    };
    if !with(|tables| tables.made.get(&endpoint).is_some_and(fits)) || driver.memory.vmm.gpu_of(memory)? != gpu {
        return Err(INVALID_VALUE);
    }
    let part = [gpu as u64, offset, size, 0, 0];
    driver
        .memory
        .vmm
        .map_array(driver, object(endpoint), part, Some(memory))
}

soft_gpu::api! {
    fn cuLogicalEndpointIdReserve(out: Out<u32>, count: u32) {
        driver::get()?;
        if count == 0 || !out.given() {
            return Err(INVALID_VALUE);
        }
        out.set(with(|tables| {
            let first = tables.next;
            tables.next += count;
            tables.reserved.extend(first..tables.next);
            first
        }))
    }

    fn cuLogicalEndpointIdRelease(first: u32, count: u32) {
        driver::get()?;
        with(|tables| {
            let mut all = first..first.saturating_add(count);
            let free = |id: u32| tables.reserved.contains(&id) && !tables.made.contains_key(&id);
            if !all.clone().all(free) {
                return Err(INVALID_VALUE);
            }
            all.all(|id| tables.reserved.remove(&id));
            Ok(())
        })
    }

    fn cuLogicalEndpointCreate(endpoint: u32, properties: In<Properties>) {
        let new = checked(driver::get()?, properties)?;
        with(|tables| {
            if !tables.reserved.contains(&endpoint) || tables.made.contains_key(&endpoint) {
                return Err(INVALID_VALUE);
            }
            tables.made.insert(endpoint, new);
            Ok(())
        })
    }

    fn cuLogicalEndpointAddDevice(endpoint: u32, device: i32) {
        let gpu = driver::get()?.gpu(device)?;
        with(|tables| {
            let one = tables.made.get_mut(&endpoint).ok_or(INVALID_VALUE)?;
            if one.gpus.len() >= one.wanted || one.gpus.contains(&gpu) {
                return Err(INVALID_VALUE);
            }
            one.gpus.push(gpu);
            Ok(())
        })
    }

    fn cuLogicalEndpointDestroy(endpoint: u32) {
        let driver = driver::get()?;
        with(|tables| tables.made.remove(&endpoint)).ok_or(INVALID_VALUE)?;
        driver.memory.vmm.unmap_array(driver, object(endpoint));
        Ok(())
    }

    fn cuLogicalEndpointBindMem(
        endpoint: u32, device: i32, offset: u64, memory: u64, _from: u64, size: u64, _flags: u64,
    ) {
        bind(endpoint, device, offset, memory, size)
    }

    fn cuLogicalEndpointBindAddr(endpoint: u32, device: i32, offset: u64, address: u64, size: u64, _flags: u64) {
        let memory = driver::get()?.memory.vmm.at(address).ok_or(INVALID_VALUE)?;
        bind(endpoint, device, offset, memory, size)
    }

    fn cuLogicalEndpointUnbind(endpoint: u32, device: i32, offset: u64, size: u64) {
        let (driver, gpu) = driver::device(device)?;
        if !with(|tables| tables.made.contains_key(&endpoint)) {
            return Err(INVALID_VALUE);
        }
        driver.memory.vmm.unbind(driver, object(endpoint), gpu as u64, offset, size);
        Ok(())
    }

    fn cuLogicalEndpointGetLimits(alignment: Out<u64>, largest: Out<u64>, properties: In<Properties>) {
        let driver = driver::get()?;
        checked(driver, properties)?;
        let profile = driver.state().profile();
        alignment.set(profile.granularity)?;
        largest.set(profile.memory)
    }

    fn cuLogicalEndpointQuery(first: u32, count: u32, ready: Out<i32>) {
        driver::get()?;
        let complete = |one: &Endpoint| one.gpus.len() == one.wanted;
        let all = with(|tables| {
            (first..first.saturating_add(count)).all(|id| tables.made.get(&id).is_some_and(complete))
        });
        ready.set(i32::from(all))
    }
}
