//! The memory of this process: device ranges by lane, host ranges, and the charges of both.
//!
//! A range gets host memory for its contents once something nonzero is written to it. So 80 GiB cost nothing, and
//! memory that was never written reads as zeros.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use soft_gpu::lock;

use soft_gpu::account::Full;
use soft_gpu::memory_limits::Told;
use soft_gpu::vram::{AddressMap, GRAPH_LANE, LANES, POOL_LANE, RESERVED_LANE, lane_of};

use crate::code::{Code, INVALID_VALUE, OUT_OF_MEMORY, Res};
use crate::context::{self, Context};
use crate::driver::{self, Driver};
use crate::external::Externals;
use crate::ffi::{Out, map_host, unmap_host};
use crate::graph_memory::Graphs;
use crate::pool::Pools;
use crate::sharing::Sharing;
use crate::vmm::Vmm;

/// A device range.
pub(crate) struct Block {
    /// None: it belongs to a pool.
    pub(crate) context: Option<&'static Context>,
    pub(crate) pool: u64,
    /// Address of the host memory with the contents; 0: there is none.
    backing: u64,
    pub(crate) kept: Kept,
}

impl Block {
    fn new(context: Option<&'static Context>, pool: u64) -> Self {
        Self {
            context,
            pool,
            backing: 0,
            kept: Kept::No,
        }
    }
}

/// Whether other processes may keep a range alive through a descriptor.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Kept {
    #[default]
    No,
    Yes,
    /// Other processes may keep it, and it was freed here: its memory stays charged, but its address is no longer
    /// valid.
    Freed,
}

/// Set once a range was exported; until then frees need not search for one.
static HANDED_OUT: AtomicBool = AtomicBool::new(false);

/// A host range that the driver knows.
pub(crate) struct HostRange {
    pub(crate) size: u64,
    pub(crate) flags: u32,
    pub(crate) kind: HostKind,
}

#[derive(Clone, Copy)]
pub(crate) enum HostKind {
    Allocated,
    Registered,
    /// Managed memory is charged whole to its GPU, as if it had all migrated there. It is not charged if it was
    /// attached to the host: it stays there, because nothing here touches it.
    Managed {
        context: &'static Context,
        units: u64,
    },
}

pub(crate) struct Memory {
    granularity: u64,
    lanes: Vec<Mutex<AddressMap<Block>>>,
    hosts: Mutex<BTreeMap<u64, HostRange>>,
    pub(crate) pools: Pools,
    pub(crate) vmm: Vmm,
    pub(crate) graphs: Graphs,
    pub(crate) externals: Externals,
    pub(crate) sharing: Sharing,
}

/// The largest range that gets memory for a fill with a nonzero pattern. The contents of larger ones stay zeros, so that a
/// test that fills a GPU does not fill the machine.
const LARGEST_FILL: u64 = 256 << 20;

impl Memory {
    pub(crate) fn new(granularity: u64) -> Self {
        Self {
            granularity,
            lanes: (0..LANES)
                .map(|lane| Mutex::new(AddressMap::new(lane, granularity)))
                .collect(),
            hosts: Mutex::default(),
            pools: Pools::default(),
            vmm: Vmm::new(granularity),
            graphs: Graphs::default(),
            externals: Externals::default(),
            sharing: Sharing::default(),
        }
    }

    pub(crate) fn units(&self, size: u64) -> u64 {
        size.div_ceil(self.granularity)
    }

    pub(crate) fn hosts(&self) -> MutexGuard<'_, BTreeMap<u64, HostRange>> {
        lock(&self.hosts)
    }

    pub(crate) fn lane(&self, lane: usize) -> MutexGuard<'_, AddressMap<Block>> {
        lock(&self.lanes[lane])
    }

    /// Allocates a range on a context's GPU. If the GPU is full, pools release unused memory before this fails.
    pub(crate) fn allocate(&self, driver: &Driver, context: &'static Context, size: u64) -> Result<u64, Code> {
        if size == 0 {
            return Err(INVALID_VALUE);
        }
        let gpu = context.gpu;
        self.vmm.collect(driver);
        let take = || {
            let block = Block::new(Some(context), 0);
            let charge = |units| driver.member().grow(gpu, units).map_err(|_| OUT_OF_MEMORY);
            self.lane(gpu).take(size, block, OUT_OF_MEMORY, charge)
        };
        take().or_else(|error| {
            if self.make_room(driver, gpu) {
                take()
            } else {
                Err(error)
            }
        })
    }

    /// Makes pools release unused memory. Returns true if any was released.
    fn make_room(&self, driver: &Driver, gpu: usize) -> bool {
        self.pools.trim(driver, gpu, 0)
    }

    /// Charges units of memory without a range of its own, such as physical memory.
    pub(crate) fn charge(&self, driver: &Driver, gpu: usize, units: u64) -> Res {
        self.charge_by(driver, gpu, || driver.member().grow(gpu, units))
    }

    fn charge_by(&self, driver: &Driver, gpu: usize, grow: impl Fn() -> Result<(), Full>) -> Res {
        self.vmm.collect(driver);
        let grow = || grow().map_err(|Full| OUT_OF_MEMORY);
        grow().or_else(|error| {
            if self.make_room(driver, gpu) {
                grow()
            } else {
                Err(error)
            }
        })
    }

    /// Frees the memory that begins at an address, of whatever kind it is.
    pub(crate) fn free(&self, driver: &Driver, address: u64) -> Res {
        match lane_of(address) {
            Some(RESERVED_LANE) => Err(INVALID_VALUE),
            // The address stays reserved for its graph node.
            Some(lane) if lane >= GRAPH_LANE => {
                if self.externals.is_buffer(address) {
                    self.externals.let_go(driver, address)
                } else if self.graphs.freed(address) || self.sharing.freed(address) {
                    Ok(())
                } else {
                    Err(INVALID_VALUE)
                }
            }
            Some(_) if HANDED_OUT.load(Ordering::Relaxed) && self.freed_here(address)? => Ok(()),
            Some(lane) => {
                let (entry, units) = self.lane(lane).give(address).ok_or(INVALID_VALUE)?;
                if entry.value.backing != 0 {
                    unmap_host(entry.value.backing, entry.size);
                }
                if lane >= POOL_LANE {
                    self.pools.freed(driver, entry.value.pool, entry.size);
                } else if units > 0 {
                    driver.member().shrink(lane, units);
                }
                Ok(())
            }
            None => {
                let mut hosts = self.hosts();
                let range = hosts.get(&address).ok_or(INVALID_VALUE)?;
                let HostKind::Managed { context, units } = range.kind else {
                    return Err(INVALID_VALUE);
                };
                unmap_host(address, range.size);
                hosts.remove(&address);
                crate::location::forget(address);
                driver.member().shrink_managed(context.gpu, units);
                Ok(())
            }
        }
    }

    /// Keeps a range's memory charged from now on, even after it is freed here. Only for ranges of cuMemAlloc.
    pub(crate) fn hand_out(&self, start: u64) -> Res {
        let lane = lane_of(start).filter(|lane| *lane < POOL_LANE).ok_or(INVALID_VALUE)?;
        HANDED_OUT.store(true, Ordering::Relaxed);
        self.lane(lane).find(start).ok_or(INVALID_VALUE)?.value.kept = Kept::Yes;
        Ok(())
    }

    /// Frees the range at an address but keeps its memory, if other processes may keep it. Returns false if it was not
    /// exported.
    fn freed_here(&self, address: u64) -> Result<bool, Code> {
        let lane = lane_of(address).ok_or(INVALID_VALUE)?;
        let mut map = self.lane(lane);
        match map.find(address).filter(|entry| entry.base == address) {
            Some(entry) if entry.value.kept == Kept::Yes => {
                entry.value.kept = Kept::Freed;
                Ok(true)
            }
            Some(entry) if entry.value.kept == Kept::Freed => Err(INVALID_VALUE),
            _ => Ok(false),
        }
    }

    /// Frees all memory that a context being destroyed still has.
    pub(crate) fn free_context(&self, driver: &Driver, dying: &'static Context) {
        let own = |block: &Block| block.context.is_some_and(|context| std::ptr::eq(context, dying));
        let ranges = self.lane(dying.gpu).select(own);
        let managed: Vec<u64> = self
            .hosts()
            .iter()
            .filter(
                |(_, range)| matches!(range.kind, HostKind::Managed { context, .. } if std::ptr::eq(context, dying)),
            )
            .map(|(address, _)| *address)
            .collect();
        for address in ranges.into_iter().chain(managed) {
            let _ = self.free(driver, address);
        }
        crate::array::forget(driver, dying);
        if !context::any_other(dying) {
            self.graphs.close(driver, dying.gpu);
        }
    }

    /// After a synchronisation: makes pools release unused memory above their thresholds.
    pub(crate) fn trim_pools(&self, driver: &Driver, gpu: usize) {
        self.pools.trim(driver, gpu, u64::MAX);
    }

    /// Reserves an address range for a pool, whose memory is already charged.
    pub(crate) fn place_pooled(&self, gpu: usize, pool: u64, size: u64) -> Result<u64, Code> {
        self.lane(POOL_LANE + gpu)
            .take(size, Block::new(None, pool), OUT_OF_MEMORY, |_| Ok(()))
    }

    /// Reserves an address for memory that is charged elsewhere: by a graph, or as another interface's memory.
    pub(crate) fn place_foreign(&self, gpu: usize, size: u64) -> Result<u64, Code> {
        self.lane(GRAPH_LANE + gpu)
            .take(size, Block::new(None, 0), OUT_OF_MEMORY, |_| Ok(()))
    }

    /// Start, size, context and pool of the range around a device address, or of managed memory.
    pub(crate) fn range(&self, address: u64) -> Option<Range> {
        match lane_of(address) {
            Some(RESERVED_LANE) => self.vmm.mapping(address),
            Some(lane) => {
                let mut map = self.lane(lane);
                let entry = map.find(address).filter(|entry| entry.value.kept != Kept::Freed)?;
                let gpu = match lane {
                    GRAPH_LANE.. => lane - GRAPH_LANE,
                    POOL_LANE.. => lane - POOL_LANE,
                    _ => lane,
                };
                let Block { context, pool, .. } = entry.value;
                Some(Range {
                    start: entry.base,
                    size: entry.size,
                    gpu: Some(gpu),
                    context,
                    pool,
                    managed: false,
                })
            }
            None => {
                let hosts = self.hosts();
                let (start, range) = hosts.range(..=address).next_back()?;
                let (context, managed) = match range.kind {
                    HostKind::Managed { context, .. } => (Some(context), true),
                    _ => (None, false),
                };
                let gpu = context.map(|context| context.gpu);
                let found = Range {
                    start: *start,
                    size: range.size,
                    gpu,
                    context,
                    pool: 0,
                    managed,
                };
                (address - start < range.size.max(1)).then_some(found)
            }
        }
    }

    /// Returns where the contents of [address, address + size) are: their host address (None: zeros), and how many
    /// bytes are contiguous there. With `write` there is always an address.
    pub(crate) fn contents(&self, address: u64, size: u64, write: bool) -> Result<(Option<u64>, u64), Code> {
        let Some(lane) = lane_of(address) else {
            return Ok((Some(address), size));
        };
        if lane == RESERVED_LANE {
            return self.vmm.contents(address, size, write);
        }
        let mut map = self.lane(lane);
        let entry = map.find(address).ok_or(INVALID_VALUE)?;
        let offset = address - entry.base;
        if size > entry.size - offset {
            return Err(INVALID_VALUE);
        }
        if write && entry.value.backing == 0 {
            entry.value.backing = map_host(entry.size).ok_or(OUT_OF_MEMORY)?;
        }
        Ok(((entry.value.backing != 0).then_some(entry.value.backing + offset), size))
    }

    /// Like `contents`, for a fill with `pattern`: does not allocate host memory for zeros or for fills above
    /// [`LARGEST_FILL`].
    pub(crate) fn fillable(&self, address: u64, size: u64, pattern: &[u8]) -> Result<(Option<u64>, u64), Code> {
        let now = self.contents(address, size, false)?;
        let zeros = pattern.iter().all(|byte| *byte == 0);
        if now.0.is_some() || zeros || size > LARGEST_FILL {
            Ok(now)
        } else {
            self.contents(address, size, true)
        }
    }
}

/// The properties of a range.
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) size: u64,
    pub(crate) gpu: Option<usize>,
    pub(crate) context: Option<&'static Context>,
    pub(crate) pool: u64,
    pub(crate) managed: bool,
}

soft_gpu::api! {
    fn cuMemAlloc_v2(out: Out<u64>, size: u64) {
        let (driver, context) = context::here()?;
        if !out.given() {
            return Err(INVALID_VALUE);
        }
        out.set(driver.memory.allocate(driver, context, size)?)
    }

    fn cuMemAllocPitch_v2(out: Out<u64>, pitch: Out<u64>, width: u64, height: u64, element: u32) {
        let (driver, context) = context::here()?;
        if !out.given() || !pitch.given() || width == 0 || height == 0 || ![4, 8, 16].contains(&element) {
            return Err(INVALID_VALUE);
        }
        let row = width.checked_next_multiple_of(512).ok_or(INVALID_VALUE)?;
        let size = row.checked_mul(height).ok_or(OUT_OF_MEMORY)?;
        pitch.set(row)?;
        out.set(driver.memory.allocate(driver, context, size)?)
    }

    fn cuMemAllocManaged(out: Out<u64>, size: u64, flags: u32) {
        let (driver, context) = context::here()?;
        if !out.given() || size == 0 || !(1..=2).contains(&flags) {
            return Err(INVALID_VALUE);
        }
        const ATTACH_HOST: u32 = 2;
        let units = if flags == ATTACH_HOST { 0 } else { driver.memory.units(size) };
        driver.memory.charge_by(driver, context.gpu, || driver.member().grow_managed(context.gpu, units))?;
        let Some(address) = map_host(size) else {
            driver.member().shrink_managed(context.gpu, units);
            return Err(OUT_OF_MEMORY);
        };
        driver.memory.hosts().insert(address, HostRange { size, flags, kind: HostKind::Managed { context, units } });
        out.set(address)
    }

    fn cuMemFree_v2(address: u64) {
        let driver = driver::get()?;
        if address == 0 { Ok(()) } else { driver.memory.free(driver, address) }
    }

    fn cuMemGetInfo_v2(free: Out<u64>, total: Out<u64>) {
        let (driver, context) = context::here()?;
        driver.memory.vmm.collect(driver);
        let state = driver.state();
        let (memory, left) = (state.memory_of(context.gpu), driver.member().free(context.gpu));
        let told = Told { total: memory, free: left, used: memory - left };
        let told = state.cut_to_limit(context.gpu, told);
        free.set(told.free)?;
        total.set(told.total)
    }

    fn cuMemGetAddressRange_v2(start: Out<u64>, size: Out<u64>, address: u64) {
        let (driver, _) = context::here()?;
        let range = driver.memory.range(address).ok_or(crate::code::NOT_FOUND)?;
        start.offer(range.start);
        size.offer(range.size);
        Ok(())
    }
}
