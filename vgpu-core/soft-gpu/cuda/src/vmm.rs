//! Virtual memory management: reserved address ranges, physical memory, and the mappings between them. Physical memory
//! is charged when it is created and released when no handle and no mapping keeps it.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use soft_gpu::lock;

use soft_gpu::vram::{AddressMap, RESERVED_LANE};

use crate::code::{Code, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, Res};
use crate::driver::{self, Driver};
use crate::ffi::{In, Out, map_host, unmap_host};
use crate::handed_out::Watch;
use crate::memory::Range;

/// Set once memory was exported; until then no call need check for closed descriptors.
static HANDED_OUT: AtomicBool = AtomicBool::new(false);

/// CUmemAllocationProp, as far as it matters: type, handle types, location type, location; the rest is opaque.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Properties {
    kind: i32,
    handles: i32,
    location: i32,
    device: i32,
    rest: [u64; 2],
}

struct Physical {
    gpu: usize,
    /// It is host memory, charged to no GPU.
    host: bool,
    /// It is memory of another process, which is charged for it.
    imported: bool,
    size: u64,
    handles: u32,
    mappings: u32,
    /// It was exported in a way whose end cannot be seen, so it stays until the process ends.
    stays: bool,
    /// Descriptors through which other processes may hold it.
    handed_out: Vec<Watch>,
    /// The descriptor by which it was imported, which keeps it.
    imported_by: Option<OwnedFd>,
    backing: u64,
    properties: Properties,
}

#[derive(Clone, Copy)]
struct Mapping {
    size: u64,
    physical: u64,
    offset: u64,
    access: i32,
}

/// Memory in the part of an array, or of a multicast object, that the caller names.
struct Tile {
    array: u64,
    part: [u64; 5],
    physical: u64,
}

struct Tables {
    tiles: Vec<Tile>,
    reserved: AddressMap<u64>,
    physical: HashMap<u64, Physical>,
    mappings: BTreeMap<u64, Mapping>,
}

pub(crate) struct Vmm(Mutex<Tables>);

impl Physical {
    fn new(gpu: usize, host: bool, size: u64, properties: Properties) -> Self {
        Self {
            gpu,
            host,
            imported: false,
            size,
            handles: 1,
            mappings: 0,
            stays: false,
            handed_out: Vec::new(),
            imported_by: None,
            backing: 0,
            properties,
        }
    }

    /// Adds another process's memory to NVML's figure when it is imported (`sign` 1), and removes it when it is gone
    /// (-1).
    fn list(&self, driver: &Driver, sign: i64) {
        if self.imported_by.is_some() && !self.host {
            let units = driver.memory.units(self.size) as i64;
            driver.member().imported(self.gpu, sign * units);
        }
    }

    /// Returns true if another process may hold it through a descriptor.
    fn is_handed_out(&self) -> bool {
        self.stays || !self.handed_out.iter().all(Watch::is_closed)
    }
}

impl Tables {
    fn around(&self, address: u64) -> Option<(u64, Mapping)> {
        let (start, mapping) = self.mappings.range(..=address).next_back()?;
        (address - start < mapping.size).then_some((*start, *mapping))
    }

    /// Frees physical memory that nothing refers to.
    fn settle(&mut self, driver: &Driver, handle: u64) {
        let Some(physical) = self.physical.get(&handle) else {
            return;
        };
        if physical.handles == 0 && physical.mappings == 0 && !physical.is_handed_out() {
            if physical.backing != 0 {
                unmap_host(physical.backing, physical.size);
            }
            if !physical.imported && !physical.host {
                driver.member().shrink(physical.gpu, driver.memory.units(physical.size));
            }
            physical.list(driver, -1);
            self.physical.remove(&handle);
            // If it was a multicast object, releases the memory that was bound to it.
            self.take_tiles(driver, |tile| tile.array == handle);
        }
    }

    fn take_tiles(&mut self, driver: &Driver, pick: impl Fn(&Tile) -> bool) {
        let (gone, left): (Vec<Tile>, Vec<Tile>) = std::mem::take(&mut self.tiles).into_iter().partition(pick);
        self.tiles = left;
        for tile in gone {
            if let Some(physical) = self.physical.get_mut(&tile.physical) {
                physical.mappings -= 1;
            }
            self.settle(driver, tile.physical);
        }
    }

    /// Returns the mappings that make up exactly [address, address + size).
    fn exactly(&self, address: u64, size: u64) -> Result<Vec<u64>, Code> {
        let end = address.checked_add(size).ok_or(INVALID_VALUE)?;
        let mut next = address;
        let mut starts = Vec::new();
        for (start, mapping) in self.mappings.range(address..end) {
            if *start != next {
                return Err(INVALID_VALUE);
            }
            starts.push(*start);
            next = start + mapping.size;
        }
        if next == end && size > 0 {
            Ok(starts)
        } else {
            Err(INVALID_VALUE)
        }
    }
}

impl Vmm {
    pub(crate) fn new(granularity: u64) -> Self {
        let reserved = AddressMap::new(RESERVED_LANE, granularity);
        Self(Mutex::new(Tables {
            tiles: Vec::new(),
            reserved,
            physical: HashMap::new(),
            mappings: BTreeMap::new(),
        }))
    }

    /// Maps memory into a part of an array, or unmaps the part.
    pub(crate) fn map_array(&self, driver: &Driver, array: u64, part: [u64; 5], memory: Option<u64>) -> Res {
        let mut tables = lock(&self.0);
        if let Some(physical) = memory {
            let known = tables
                .physical
                .get_mut(&physical)
                .filter(|p| p.handles > 0)
                .ok_or(INVALID_VALUE)?;
            known.mappings += 1;
        }
        tables.take_tiles(driver, |tile| tile.array == array && tile.part == part);
        tables
            .tiles
            .extend(memory.map(|physical| Tile { array, part, physical }));
        Ok(())
    }

    /// An object without memory of its own, to which memory can be bound.
    pub(crate) fn object(&self, driver: &Driver, size: u64) -> u64 {
        self.import(driver, driver.gpus[0], size, false, None)
    }

    /// The physical memory at an address.
    pub(crate) fn at(&self, address: u64) -> Option<u64> {
        lock(&self.0).around(address).map(|(_, mapping)| mapping.physical)
    }

    /// Unbinds a range of an object on a device.
    pub(crate) fn unbind(&self, driver: &Driver, object: u64, device: u64, offset: u64, size: u64) {
        lock(&self.0).take_tiles(driver, |tile| {
            let [on, start, length, ..] = tile.part;
            tile.array == object && on == device && start >= offset && start + length <= offset.saturating_add(size)
        });
    }

    /// Returns the GPU of physical memory. An error for host memory.
    pub(crate) fn gpu_of(&self, handle: u64) -> Result<usize, Code> {
        lock(&self.0)
            .physical
            .get(&handle)
            .filter(|physical| !physical.host)
            .map(|physical| physical.gpu)
            .ok_or(INVALID_VALUE)
    }

    /// Keeps physical memory from now on, as long as anybody has the watched descriptor.
    pub(crate) fn hand_out(&self, handle: u64, watch: Option<Watch>) {
        if let Some(physical) = lock(&self.0).physical.get_mut(&handle) {
            physical.stays |= watch.is_none();
            physical.handed_out.extend(watch);
            HANDED_OUT.store(true, Ordering::Relaxed);
        }
    }

    /// Frees memory whose last descriptor was closed. The kernel notifies a real driver of that. Here, each call checks
    /// for it that allocates, exports, releases or unmaps memory, or asks for sizes.
    pub(crate) fn collect(&self, driver: &Driver) {
        if !HANDED_OUT.load(Ordering::Relaxed) {
            return;
        }
        let mut tables = lock(&self.0);
        let left: Vec<u64> = tables
            .physical
            .iter()
            .filter(|(_, one)| one.handles == 0 && one.mappings == 0 && !one.handed_out.is_empty())
            .map(|(handle, _)| *handle)
            .collect();
        for handle in left {
            tables.settle(driver, handle);
        }
    }

    /// Returns GPU and size of physical memory that is being exported, and whether it is host memory.
    pub(crate) fn extent(&self, handle: u64) -> Result<(usize, u64, bool), Code> {
        let tables = lock(&self.0);
        let shared = |p: &&Physical| p.handles > 0 && p.properties.handles & 1 != 0;
        let physical = tables.physical.get(&handle).filter(shared).ok_or(INVALID_VALUE)?;
        Ok((physical.gpu, physical.size, physical.host))
    }

    /// Adds memory of another process. `by`: the descriptor by which it was imported.
    pub(crate) fn import(&self, driver: &Driver, gpu: usize, size: u64, host: bool, by: Option<OwnedFd>) -> u64 {
        let handle = driver.handle();
        let (location, device) = if host { (HOST_NUMA, 0) } else { (1, driver.ordinal(gpu)) };
        let properties = Properties {
            kind: 1,
            handles: 1,
            location,
            device,
            rest: [0; 2],
        };
        let physical = Physical {
            imported: true,
            imported_by: by,
            ..Physical::new(gpu, host, size, properties)
        };
        physical.list(driver, 1);
        lock(&self.0).physical.insert(handle, physical);
        handle
    }

    pub(crate) fn unmap_array(&self, driver: &Driver, array: u64) {
        lock(&self.0).take_tiles(driver, |tile| tile.array == array);
    }

    pub(crate) fn mapping(&self, address: u64) -> Option<Range> {
        let tables = lock(&self.0);
        let (start, mapping) = tables.around(address)?;
        let physical = tables.physical.get(&mapping.physical)?;
        Some(Range {
            start,
            size: mapping.size,
            gpu: (!physical.host).then_some(physical.gpu),
            context: None,
            pool: 0,
            managed: false,
        })
    }

    pub(crate) fn contents(&self, address: u64, size: u64, write: bool) -> Result<(Option<u64>, u64), Code> {
        let mut tables = lock(&self.0);
        let (start, mapping) = tables
            .around(address)
            .filter(|(_, m)| m.access != 0)
            .ok_or(INVALID_VALUE)?;
        let physical = tables.physical.get_mut(&mapping.physical).ok_or(INVALID_VALUE)?;
        if write && physical.backing == 0 {
            physical.backing = map_host(physical.size).ok_or(OUT_OF_MEMORY)?;
        }
        let inside = address - start;
        let place = (physical.backing != 0).then_some(physical.backing + mapping.offset + inside);
        Ok((place, size.min(mapping.size - inside)))
    }
}

/// A host location. The only NUMA node here is 0.
const HOST_NUMA: i32 = 3;

/// Checks the properties. Returns them, and the GPU of such memory; None: the host.
fn checked(properties: In<Properties>) -> Result<(Properties, Option<usize>), Code> {
    let asked = properties.get()?;
    if asked.kind != 1 {
        return Err(INVALID_VALUE);
    }
    let gpu = match [asked.location, asked.device] {
        [HOST_NUMA, 0] => None,
        location => Some(crate::location::gpu(driver::get()?, location)?),
    };
    // Only descriptors are supported.
    if asked.handles & !1 != 0 {
        return Err(NOT_SUPPORTED);
    }
    Ok((asked, gpu))
}

soft_gpu::api! {
    fn cuMemGetAllocationGranularity(out: Out<u64>, properties: In<Properties>, _option: u32) {
        checked(properties)?;
        out.set(driver::get()?.state().profile().granularity)
    }

    fn cuMemAddressReserve(out: Out<u64>, size: u64, alignment: u64, _wish: u64, flags: u64) {
        let driver = driver::get()?;
        let granularity = driver.state().profile().granularity;
        let aligned = alignment == 0 || alignment.is_power_of_two();
        if size == 0 || !size.is_multiple_of(granularity) || !aligned || flags != 0 || !out.given() {
            return Err(INVALID_VALUE);
        }
        let place = size.max(alignment);
        let taken = lock(&driver.memory.vmm.0).reserved.take(place, size, OUT_OF_MEMORY, |_| Ok(()));
        out.set(taken?)
    }

    fn cuMemAddressFree(address: u64, size: u64) {
        let mut tables = lock(&driver::get()?.memory.vmm.0);
        let good = tables.reserved.find(address).is_some_and(|entry| entry.base == address && entry.value == size);
        if !good || tables.mappings.range(address..address + size).next().is_some() {
            return Err(INVALID_VALUE);
        }
        tables.reserved.give(address);
        Ok(())
    }

    fn cuMemCreate(out: Out<u64>, size: u64, properties: In<Properties>, flags: u64) {
        let driver = driver::get()?;
        let (properties, gpu) = checked(properties)?;
        let granularity = driver.state().profile().granularity;
        if size == 0 || !size.is_multiple_of(granularity) || flags != 0 || !out.given() {
            return Err(INVALID_VALUE);
        }
        if let Some(gpu) = gpu {
            driver.memory.charge(driver, gpu, driver.memory.units(size))?;
        }
        let handle = driver.handle();
        let (gpu, host) = (gpu.unwrap_or(driver.gpus[0]), gpu.is_none());
        let physical = Physical::new(gpu, host, size, properties);
        lock(&driver.memory.vmm.0).physical.insert(handle, physical);
        out.set(handle)
    }

    fn cuMemRelease(handle: u64) {
        let driver = driver::get()?;
        let mut tables = lock(&driver.memory.vmm.0);
        let physical = tables.physical.get_mut(&handle).filter(|p| p.handles > 0).ok_or(INVALID_VALUE)?;
        physical.handles -= 1;
        tables.settle(driver, handle);
        drop(tables);
        driver.memory.vmm.collect(driver);
        Ok(())
    }

    fn cuMemMap(address: u64, size: u64, offset: u64, handle: u64, flags: u64) {
        let driver = driver::get()?;
        let granularity = driver.state().profile().granularity;
        let mut tables = lock(&driver.memory.vmm.0);
        let end = address.checked_add(size).ok_or(INVALID_VALUE)?;
        let room = tables.reserved.find(address).map(|entry| entry.base + entry.value).ok_or(INVALID_VALUE)?;
        let steps = [address, size, offset].iter().all(|value| value.is_multiple_of(granularity));
        if size == 0 || flags != 0 || !steps || end > room {
            return Err(INVALID_VALUE);
        }
        if tables.around(address).is_some() || tables.mappings.range(address..end).next().is_some() {
            return Err(INVALID_VALUE);
        }
        let physical = tables.physical.get_mut(&handle).filter(|p| p.handles > 0).ok_or(INVALID_VALUE)?;
        if offset.checked_add(size).is_none_or(|last| last > physical.size) {
            return Err(INVALID_VALUE);
        }
        physical.mappings += 1;
        tables.mappings.insert(address, Mapping { size, physical: handle, offset, access: 0 });
        Ok(())
    }

    fn cuMemUnmap(address: u64, size: u64) {
        let driver = driver::get()?;
        let mut tables = lock(&driver.memory.vmm.0);
        for start in tables.exactly(address, size)? {
            let Some(mapping) = tables.mappings.remove(&start) else { continue };
            if let Some(physical) = tables.physical.get_mut(&mapping.physical) {
                physical.mappings -= 1;
            }
            tables.settle(driver, mapping.physical);
        }
        drop(tables);
        driver.memory.vmm.collect(driver);
        Ok(())
    }

    fn cuMemSetAccess(address: u64, size: u64, descriptions: In<[i32; 3]>, count: u64) {
        let driver = driver::get()?;
        let mut tables = lock(&driver.memory.vmm.0);
        let starts = tables.exactly(address, size)?;
        for index in 0..count as usize {
            // Location type, location, flags.
            let [kind, device, flags] = descriptions.at(index)?;
            if kind != 1 || ![0, 1, 3].contains(&flags) {
                return Err(INVALID_VALUE);
            }
            driver.gpu(device)?;
            for start in &starts {
                if let Some(mapping) = tables.mappings.get_mut(start) {
                    mapping.access = flags;
                }
            }
        }
        Ok(())
    }

    fn cuMemGetAccess(flags: Out<u64>, location: In<[i32; 2]>, address: u64) {
        let driver = driver::get()?;
        let [_, device] = location.get()?;
        driver.gpu(device)?;
        let tables = lock(&driver.memory.vmm.0);
        let (_, mapping) = tables.around(address).ok_or(INVALID_VALUE)?;
        flags.set(mapping.access as u64)
    }

    fn cuMemRetainAllocationHandle(out: Out<u64>, address: u64) {
        let mut tables = lock(&driver::get()?.memory.vmm.0);
        let (_, mapping) = tables.around(address).ok_or(INVALID_VALUE)?;
        tables.physical.get_mut(&mapping.physical).ok_or(INVALID_VALUE)?.handles += 1;
        out.set(mapping.physical)
    }

    fn cuMemGetAllocationPropertiesFromHandle(out: Out<Properties>, handle: u64) {
        let tables = lock(&driver::get()?.memory.vmm.0);
        out.set(tables.physical.get(&handle).ok_or(INVALID_VALUE)?.properties)
    }
}

/// The layout that cuda.h gives CUmemAllocationProp.
const _: () = assert!(std::mem::size_of::<Properties>() == 32);
