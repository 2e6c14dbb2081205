//! Memory of one process that another one uses: by IPC handles, by descriptors, by pointers of imported pools. It is
//! charged to the exporter, as by a real driver. Contents are not shared. As NVIDIA documents it, memory of cuMemCreate
//! that was exported by a descriptor is freed when its handles, its mappings and all descriptors are gone, in all
//! processes ([`handed_out`](crate::handed_out)). Memory with a dma-buf stays until the exporter ends, as if the
//! dma-buf stayed open until then. Unlike with a real driver, all of it is gone when the exporter ends, even if another
//! process has it mapped.

use std::collections::HashMap;
use std::sync::Mutex;

use soft_gpu::lock;

use crate::code::{INVALID_HANDLE, INVALID_VALUE, OUT_OF_MEMORY};
use crate::context::here;
use crate::driver;
use crate::ffi::{In, Out, note, read_note};
use crate::handed_out::{self, Watch};

/// CUipcMemHandle and CUmemPoolPtrExportData, in words: a mark, the GPU, the size, the creator, and the address.
pub(crate) type Handle = [u64; 8];
/// The handle as it is passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ByValue(Handle);

const MEMORY: u64 = 0x5067_6970_636d_656d;
const POOLED: u64 = 0x5067_6970_6370_7472;
const PHYSICAL: u64 = 0x5067_6970_6366_6400;
const POOL: u64 = 0x5067_6970_6370_6f6f;
const DMA_BUF: u64 = 0x5067_646d_6162_7566;

struct Opened {
    address: u64,
    count: u32,
}

#[derive(Default)]
pub(crate) struct Sharing(Mutex<HashMap<Handle, Opened>>);

impl Sharing {
    /// Frees a pointer of an imported pool. Returns false if the address is not such a pointer.
    pub(crate) fn freed(&self, address: u64) -> bool {
        let mut opened = lock(&self.0);
        let before = opened.len();
        opened.retain(|handle, one| {
            let stays = handle[0] != POOLED || one.address != address;
            if !stays {
                list(handle, -1);
            }
            stays
        });
        opened.len() != before
    }
}

fn describe(mark: u64, address: u64, whole: bool) -> Result<Handle, crate::code::Code> {
    let driver = driver::get()?;
    let range = driver
        .memory
        .range(address)
        .filter(|range| !range.managed)
        .ok_or(INVALID_VALUE)?;
    let gpu = range.gpu.ok_or(INVALID_VALUE)?;
    if whole && range.start != address {
        return Err(INVALID_VALUE);
    }
    Ok([
        mark,
        gpu as u64,
        range.size,
        u64::from(std::process::id()),
        range.start,
        0,
        0,
        0,
    ])
}

/// Adds memory that was opened (`sign` 1) to NVML's figure, or removes memory that was closed (-1).
fn list(handle: &Handle, sign: i64) {
    if let Ok(driver) = driver::get() {
        let [_, gpu, size, ..] = *handle;
        driver
            .member()
            .imported(gpu as usize, sign * driver.memory.units(size) as i64);
    }
}

fn open(out: Out<u64>, handle: Handle, mark: u64) -> crate::code::Res {
    let (driver, _) = here()?;
    let [found, gpu, size, _, _, ..] = handle;
    if found != mark || gpu >= driver.state().devices() as u64 || !out.given() {
        return Err(INVALID_HANDLE);
    }
    let mut opened = lock(&driver.memory.sharing.0);
    if let Some(one) = opened.get_mut(&handle) {
        one.count += 1;
        return out.set(one.address);
    }
    let address = driver.memory.place_foreign(gpu as usize, size)?;
    opened.insert(handle, Opened { address, count: 1 });
    list(&handle, 1);
    out.set(address)
}

soft_gpu::api! {
    fn cuIpcGetMemHandle(out: Out<Handle>, address: u64) {
        out.set(describe(MEMORY, address, true)?)
    }

    fn cuIpcOpenMemHandle_v2(out: Out<u64>, handle: ByValue, _flags: u32) {
        open(out, handle.0, MEMORY)
    }

    fn cuIpcCloseMemHandle(address: u64) {
        let driver = driver::get()?;
        let mut opened = lock(&driver.memory.sharing.0);
        let found = opened.iter().find(|(handle, one)| handle[0] == MEMORY && one.address == address);
        let handle = *found.ok_or(INVALID_VALUE)?.0;
        if let Some(one) = opened.get_mut(&handle) {
            one.count -= 1;
            if one.count == 0 {
                opened.remove(&handle);
                list(&handle, -1);
            }
        }
        Ok(())
    }

    fn cuMemPoolExportPointer(out: Out<Handle>, address: u64) {
        out.set(describe(POOLED, address, false)?)
    }

    fn cuMemPoolImportPointer(out: Out<u64>, _pool: u64, data: In<Handle>) {
        open(out, data.get()?, POOLED)
    }

    fn cuMemExportToShareableHandle(out: Out<i32>, handle: u64, kind: i32, _flags: u64) {
        let (gpu, size, host) = driver::get()?.memory.vmm.extent(handle)?;
        if kind != 1 {
            return Err(INVALID_VALUE);
        }
        let driver = driver::get()?;
        driver.memory.vmm.collect(driver);
        let descriptor = note([PHYSICAL, gpu as u64, size, u64::from(host)]).ok_or(OUT_OF_MEMORY)?;
        driver.memory.vmm.hand_out(handle, Watch::new(descriptor));
        out.set(descriptor)
    }

    fn cuMemGetHandleForAddressRange(out: Out<i32>, address: u64, size: u64, kind: i32, _flags: u64) {
        let driver = driver::get()?;
        let whole_pages = size > 0 && address.is_multiple_of(4096) && size.is_multiple_of(4096);
        let inside = |range: &crate::memory::Range| size <= range.size - (address - range.start);
        let range = driver.memory.range(address).filter(inside).ok_or(INVALID_VALUE)?;
        let gpu = range.gpu.filter(|_| kind == 1 && whole_pages && !range.managed).ok_or(INVALID_VALUE)?;
        let descriptor = note([DMA_BUF, gpu as u64, size, 0]).ok_or(OUT_OF_MEMORY)?;
        match driver.memory.vmm.at(address) {
            Some(physical) => driver.memory.vmm.hand_out(physical, None),
            None => driver.memory.hand_out(range.start)?,
        }
        out.set(descriptor)
    }

    fn cuMemImportFromShareableHandle(out: Out<u64>, descriptor: u64, kind: i32) {
        let driver = driver::get()?;
        let [mark, gpu, size, host] = read_note(descriptor as i32).filter(|_| kind == 1).ok_or(INVALID_VALUE)?;
        if mark != PHYSICAL || gpu >= driver.state().devices() as u64 || !out.given() {
            return Err(INVALID_VALUE);
        }
        let by = handed_out::keep(descriptor as i32);
        out.set(driver.memory.vmm.import(driver, gpu as usize, size, host != 0, by))
    }

    fn cuMemPoolExportToShareableHandle(out: Out<i32>, pool: u64, kind: i32, _flags: u64) {
        let gpu = driver::get()?.memory.pools.gpu_of(pool)?;
        if kind != 1 {
            return Err(INVALID_VALUE);
        }
        out.set(note([POOL, gpu as u64, 0, 0]).ok_or(OUT_OF_MEMORY)?)
    }

    fn cuMemPoolImportFromShareableHandle(out: Out<u64>, descriptor: u64, kind: i32, _flags: u64) {
        let driver = driver::get()?;
        let [mark, gpu, ..] = read_note(descriptor as i32).filter(|_| kind == 1).ok_or(INVALID_VALUE)?;
        if mark != POOL || gpu >= driver.state().devices() as u64 || !out.given() {
            return Err(INVALID_VALUE);
        }
        out.set(driver.memory.pools.import(driver, gpu as usize))
    }
}
