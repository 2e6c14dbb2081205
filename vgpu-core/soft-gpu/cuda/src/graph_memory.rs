//! Memory of graphs: the addresses of nodes never change; executable graphs get memory when they are uploaded or
//! launched. An executable graph keeps its memory until it is destroyed or trimmed, or until another one uses it while
//! it does not run.
//!
//! ```text
//! reserved (charged) = lent to executable graphs + cached
//! launch: own, else cached, else that of graphs that do not run, else new
//! ```

use std::collections::HashMap;
use std::sync::Mutex;

use soft_gpu::lock;

use soft_gpu::profile::MAX_GPUS;
use soft_gpu::timeline::words::Ticket;

use crate::code::{Code, INVALID_VALUE, Res};
use crate::driver::Driver;

/// The memory that a node allocates.
#[derive(Clone, Copy)]
pub(crate) struct Range {
    pub(crate) gpu: usize,
    pub(crate) address: u64,
    pub(crate) size: u64,
}

/// The memory that an executable graph allocates and frees.
pub(crate) struct Plan {
    allocates: Vec<Range>,
    frees: Vec<u64>,
    auto_free: bool,
}

struct Exec {
    plan: Plan,
    /// Granules of each GPU that its allocations need.
    units: [u64; MAX_GPUS],
    mapped: bool,
    /// Its last launch.
    busy_until: Option<Ticket>,
    /// Allocations of its last launch that were not freed.
    live: Vec<u64>,
    destroyed: bool,
}

#[derive(Default, Clone, Copy)]
struct Level {
    reserved: u64,
    high: [u64; 2],
}

#[derive(Default)]
struct Tables {
    execs: HashMap<u64, Exec>,
    levels: [Level; MAX_GPUS],
}

#[derive(Default)]
pub(crate) struct Graphs(Mutex<Tables>);

impl Plan {
    pub(crate) fn new(auto_free: bool) -> Self {
        Self {
            allocates: Vec::new(),
            frees: Vec::new(),
            auto_free,
        }
    }

    pub(crate) fn alloc(&mut self, range: Range) {
        self.allocates.push(range);
    }

    pub(crate) fn free(&mut self, address: u64) {
        self.frees.push(address);
    }
}

impl Exec {
    fn idle(&self, driver: &Driver) -> bool {
        self.live.is_empty() && self.busy_until.is_none_or(|last| driver.member().is_done(last))
    }
}

impl Tables {
    fn lent(&self, gpu: usize) -> u64 {
        let mapped = self.execs.values().filter(|exec| exec.mapped);
        mapped.map(|exec| exec.units[gpu]).sum()
    }

    /// Takes memory from all graphs that do not run, except `not`.
    fn unmap_idle(&mut self, driver: &Driver, not: u64) {
        for (handle, exec) in &mut self.execs {
            if *handle != not && exec.idle(driver) {
                exec.mapped = false;
            }
        }
    }

    /// Makes sure that `units` of a GPU are reserved but not lent, by unmapping idle graphs and then by reserving more.
    fn ensure(&mut self, driver: &Driver, gpu: usize, units: u64, not: u64) -> Res {
        if self.levels[gpu].reserved - self.lent(gpu) < units {
            self.unmap_idle(driver, not);
        }
        let more = units.saturating_sub(self.levels[gpu].reserved - self.lent(gpu));
        if more > 0 {
            driver.memory.charge(driver, gpu, more)?;
            self.levels[gpu].reserved += more;
        }
        Ok(())
    }

    fn map(&mut self, driver: &Driver, handle: u64) -> Res {
        let Some(exec) = self.execs.get(&handle).filter(|exec| !exec.mapped) else {
            return Ok(());
        };
        for (gpu, units) in exec.units.into_iter().enumerate().filter(|(_, units)| *units > 0) {
            self.ensure(driver, gpu, units, handle)?;
        }
        if let Some(exec) = self.execs.get_mut(&handle) {
            exec.mapped = true;
        }
        for gpu in 0..MAX_GPUS {
            let lent = self.lent(gpu);
            let level = &mut self.levels[gpu];
            level.high = [level.high[0].max(lent), level.high[1].max(level.reserved)];
        }
        Ok(())
    }

    fn freed(&mut self, address: u64) -> bool {
        let mut any = false;
        self.execs.retain(|_, exec| {
            let before = exec.live.len();
            exec.live.retain(|one| *one != address);
            any |= exec.live.len() != before;
            !(exec.destroyed && exec.live.is_empty())
        });
        any
    }

    fn trim(&mut self, driver: &Driver, gpu: usize) {
        self.unmap_idle(driver, 0);
        let surplus = self.levels[gpu].reserved - self.lent(gpu);
        if surplus > 0 {
            driver.member().shrink(gpu, surplus);
            self.levels[gpu].reserved -= surplus;
        }
    }
}

impl Graphs {
    /// Reserves an address for memory that a node will allocate.
    pub(crate) fn reserve(&self, driver: &Driver, gpu: usize, size: u64) -> Result<Range, Code> {
        let address = driver.memory.place_foreign(gpu, size)?;
        Ok(Range { gpu, address, size })
    }

    pub(crate) fn add(&self, handle: u64, plan: Plan) {
        if plan.allocates.is_empty() && plan.frees.is_empty() {
            return;
        }
        let mut tables = lock(&self.0);
        let exec = Exec {
            plan,
            units: [0; MAX_GPUS],
            mapped: false,
            busy_until: None,
            live: Vec::new(),
            destroyed: false,
        };
        tables.execs.insert(handle, exec);
    }

    fn size(driver: &Driver, exec: &mut Exec) {
        exec.units = [0; MAX_GPUS];
        for range in &exec.plan.allocates {
            exec.units[range.gpu] += driver.memory.units(range.size);
        }
    }

    pub(crate) fn upload(&self, driver: &Driver, handle: u64) -> Res {
        let mut tables = lock(&self.0);
        if let Some(exec) = tables.execs.get_mut(&handle) {
            Self::size(driver, exec);
        }
        tables.map(driver, handle)
    }

    pub(crate) fn launch(&self, driver: &Driver, handle: u64) -> Res {
        let mut tables = lock(&self.0);
        let Some(exec) = tables.execs.get_mut(&handle) else {
            return Ok(());
        };
        if !exec.live.is_empty() && !exec.plan.auto_free {
            return Err(INVALID_VALUE);
        }
        exec.live.clear();
        Self::size(driver, exec);
        tables.map(driver, handle)?;
        let Some(exec) = tables.execs.get_mut(&handle) else {
            return Ok(());
        };
        let frees = exec.plan.frees.clone();
        let allocates = exec.plan.allocates.iter().map(|range| range.address);
        exec.live = allocates.filter(|address| !frees.contains(address)).collect();
        // Addresses that the graph did not allocate itself belong to another graph.
        for address in frees {
            tables.freed(address);
        }
        Ok(())
    }

    pub(crate) fn busy_until(&self, handle: u64, last: Option<Ticket>) {
        if let Some(exec) = lock(&self.0).execs.get_mut(&handle) {
            exec.busy_until = last;
        }
    }

    pub(crate) fn remove(&self, _driver: &Driver, handle: u64) {
        let mut tables = lock(&self.0);
        if let Some(exec) = tables.execs.get_mut(&handle) {
            exec.destroyed = true;
            if exec.live.is_empty() {
                tables.execs.remove(&handle);
            }
        }
    }

    /// Frees a pointer that a launch has allocated. Returns false if there is none.
    pub(crate) fn freed(&self, address: u64) -> bool {
        lock(&self.0).freed(address)
    }

    pub(crate) fn trim(&self, driver: &Driver, gpu: usize) {
        lock(&self.0).trim(driver, gpu);
    }

    /// Frees the graphs' memory of a GPU whose last context is gone.
    pub(crate) fn close(&self, driver: &Driver, gpu: usize) {
        let mut tables = lock(&self.0);
        for exec in tables.execs.values_mut().filter(|exec| exec.units[gpu] > 0) {
            exec.mapped = false;
            exec.live.clear();
        }
        tables.execs.retain(|_, exec| !exec.destroyed || !exec.live.is_empty());
        let all = std::mem::take(&mut tables.levels[gpu].reserved);
        driver.member().shrink(gpu, all);
    }

    /// Returns an attribute in units: used by graphs and reserved (charged), each with its high-water mark.
    pub(crate) fn attribute(&self, gpu: usize, attribute: u32) -> Result<u64, Code> {
        let tables = lock(&self.0);
        let level = &tables.levels[gpu];
        match attribute {
            0 => Ok(tables.lent(gpu)),
            1 => Ok(level.high[0]),
            2 => Ok(level.reserved),
            3 => Ok(level.high[1]),
            _ => Err(INVALID_VALUE),
        }
    }

    pub(crate) fn reset(&self, gpu: usize, attribute: u32) -> Res {
        let mut tables = lock(&self.0);
        let lent = tables.lent(gpu);
        let level = &mut tables.levels[gpu];
        match attribute {
            1 => level.high[0] = lent,
            3 => level.high[1] = level.reserved,
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    }
}
