//! The location of memory, and the advised location of managed memory: the last advice, for a whole allocation. Nothing
//! migrates; managed memory is charged to its GPU whatever the advice is.

use std::collections::HashMap;
use std::sync::Mutex;

use soft_gpu::lock;

use crate::code::{Code, INVALID_VALUE, Res};
use crate::context;
use crate::driver::{self, Driver};
use crate::ffi::{In, Out};
use crate::stream;

/// CUmemLocation: kind and id.
type Location = [i32; 2];
const NOWHERE: Location = [0, NO_DEVICE];
const DEVICE: i32 = 1;
const HOST: i32 = 2;
/// CU_DEVICE_CPU and CU_DEVICE_INVALID.
const CPU: i32 = -1;
const NO_DEVICE: i32 = -2;

/// The GPU of a location: a device, or a part of one. A software GPU has one part, with the number 0.
pub(crate) fn gpu(driver: &Driver, [kind, id]: Location) -> Result<usize, Code> {
    match kind {
        DEVICE => driver.gpu(id),
        6 if id >> 8 & 0xff == 0 => driver.gpu(id & 0xff),
        _ => Err(INVALID_VALUE),
    }
}

/// The program's advice and prefetches for one allocation.
struct Wishes {
    preferred: Location,
    prefetched: Location,
    accessed_by: Vec<i32>,
}

static WISHES: Mutex<Option<HashMap<u64, Wishes>>> = Mutex::new(None);

/// Calls `act` with the wishes for the managed memory at an address. None: there is no managed memory.
fn with<T>(driver: &Driver, address: u64, act: impl FnOnce(&mut Wishes) -> T) -> Option<T> {
    let range = driver.memory.range(address).filter(|range| range.managed)?;
    let mut all = lock(&WISHES);
    let none = || Wishes {
        preferred: NOWHERE,
        prefetched: NOWHERE,
        accessed_by: Vec::new(),
    };
    Some(act(all.get_or_insert_default().entry(range.start).or_insert_with(none)))
}

/// Forgets managed memory that was freed.
pub(crate) fn forget(start: u64) {
    let mut all = lock(&WISHES);
    all.get_or_insert_default().remove(&start);
}

/// A location as it is passed by value.
fn unpacked(word: u64) -> Location {
    [word as i32, (word >> 32) as i32]
}

fn of_device(device: i32) -> Location {
    if device == CPU { [HOST, 0] } else { [DEVICE, device] }
}

fn known(driver: &Driver, location: Location) -> Res {
    if location[0] == DEVICE {
        gpu(driver, location)?;
    }
    Ok(())
}

fn prefetch(address: u64, location: Location, stream: u64) -> Res {
    let driver = driver::get()?;
    stream::gpu_of(driver, stream)?;
    known(driver, location)?;
    with(driver, address, |wishes| wishes.prefetched = location);
    Ok(())
}

fn prefetch_all(
    addresses: In<u64>,
    count: u64,
    locations: In<Location>,
    starts: In<u64>,
    places: u64,
    stream: u64,
) -> Res {
    if places == 0 || places > count || starts.get()? != 0 {
        return Err(INVALID_VALUE);
    }
    let mut place = 0;
    for index in 0..count as usize {
        if place + 1 < places as usize && starts.at(place + 1)? == index as u64 {
            place += 1;
        }
        prefetch(addresses.at(index)?, locations.at(place)?, stream)?;
    }
    Ok(())
}

fn advise(address: u64, advice: u32, location: Location) -> Res {
    context::current()?;
    let driver = driver::get()?;
    known(driver, location)?;
    with(driver, address, |wishes| match advice {
        3 => wishes.preferred = location,
        4 => wishes.preferred = NOWHERE,
        5 | 6 => {
            wishes.accessed_by.retain(|device| *device != location[1]);
            if advice == 5 && location[0] == DEVICE {
                wishes.accessed_by.push(location[1]);
            }
        }
        _ => {}
    });
    Ok(())
}

/// Returns a location in the form of the older attributes: a device, the CPU, or neither.
fn as_device([kind, id]: Location) -> i32 {
    match kind {
        DEVICE => id,
        HOST => CPU,
        _ => NO_DEVICE,
    }
}

fn attribute(data: Out<i32>, size: u64, attribute: u32, address: u64) -> Res {
    let room = (size / 4) as usize;
    if room == 0 || !size.is_multiple_of(4) {
        return Err(INVALID_VALUE);
    }
    let told = with(driver::get()?, address, |wishes| {
        Ok(match attribute {
            1 => vec![0],
            2 => vec![as_device(wishes.preferred)],
            3 => {
                let mut devices = wishes.accessed_by.clone();
                devices.resize(room, NO_DEVICE);
                devices
            }
            4 => vec![as_device(wishes.prefetched)],
            5 | 6 => vec![wishes.preferred[attribute as usize - 5]],
            7 | 8 => vec![wishes.prefetched[attribute as usize - 7]],
            _ => return Err(INVALID_VALUE),
        })
    });
    data.fill(&told.ok_or(INVALID_VALUE)??)
}

soft_gpu::api! {
    fn cuMemPrefetchAsync_v2(address: u64, _size: u64, location: u64, _flags: u32, stream: u64) {
        prefetch(address, unpacked(location), stream)
    }

    fn cuMemPrefetchAsync(address: u64, _size: u64, device: i32, stream: u64) {
        prefetch(address, of_device(device), stream)
    }

    fn cuMemPrefetchBatchAsync(
        addresses: In<u64>, _sizes: In<u64>, count: u64, locations: In<Location>, starts: In<u64>, places: u64,
        _flags: u64, stream: u64,
    ) {
        prefetch_all(addresses, count, locations, starts, places, stream)
    }

    fn cuMemDiscardAndPrefetchBatchAsync(
        addresses: In<u64>, _sizes: In<u64>, count: u64, locations: In<Location>, starts: In<u64>, places: u64,
        _flags: u64, stream: u64,
    ) {
        prefetch_all(addresses, count, locations, starts, places, stream)
    }

    fn cuMemAdvise(address: u64, _size: u64, advice: u32, device: i32) {
        advise(address, advice, of_device(device))
    }

    fn cuMemAdvise_v2(address: u64, _size: u64, advice: u32, location: u64) {
        advise(address, advice, unpacked(location))
    }

    fn cuMemRangeGetAttribute(data: Out<i32>, size: u64, kind: u32, address: u64, _count: u64) {
        attribute(data, size, kind, address)
    }

    fn cuMemRangeGetAttributes(
        data: In<Out<i32>>, sizes: In<u64>, kinds: In<u32>, count: u64, address: u64, _bytes: u64,
    ) {
        crate::driver::get()?;
        for index in 0..count as usize {
            attribute(data.at(index)?, sizes.at(index)?, kinds.at(index)?, address)?;
        }
        Ok(())
    }

    fn cuMemGetLocationInfo(address: u64, size: u64, part: u64, _sample: u64, out: Out<Location>) {
        if part == 0 || part > size {
            return Err(INVALID_VALUE);
        }
        let lies = with(driver::get()?, address, |wishes| wishes.prefetched).ok_or(INVALID_VALUE)?;
        out.fill(&vec![lies; size.div_ceil(part) as usize])
    }
}
