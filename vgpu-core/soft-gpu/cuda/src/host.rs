//! Page-locked host memory, and the attributes of any pointer.

use crate::code::{
    Code, HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, Res,
};
use crate::context::here;
use crate::driver;
use crate::ffi::{In, Out, map_host, unmap_host};
use crate::memory::{HostKind, HostRange};

fn allocate(out: Out<u64>, size: u64, flags: u32) -> Res {
    let (driver, _) = here()?;
    if !out.given() || size == 0 || flags & !7 != 0 {
        return Err(INVALID_VALUE);
    }
    let address = map_host(size).ok_or(OUT_OF_MEMORY)?;
    driver.memory.hosts().insert(
        address,
        HostRange {
            size,
            flags,
            kind: HostKind::Allocated,
        },
    );
    out.set(address)
}

/// Attribute numbers of pointers.
mod attribute {
    pub(super) const CONTEXT: u32 = 1;
    pub(super) const MEMORY_TYPE: u32 = 2;
    pub(super) const DEVICE_POINTER: u32 = 3;
    pub(super) const HOST_POINTER: u32 = 4;
    pub(super) const SYNC_MEMOPS: u32 = 6;
    pub(super) const BUFFER_ID: u32 = 7;
    pub(super) const IS_MANAGED: u32 = 8;
    pub(super) const DEVICE_ORDINAL: u32 = 9;
    pub(super) const IPC_CAPABLE: u32 = 10;
    pub(super) const START: u32 = 11;
    pub(super) const SIZE: u32 = 12;
    pub(super) const MAPPED: u32 = 13;
    pub(super) const HANDLE_TYPES: u32 = 14;
    pub(super) const RDMA_CAPABLE: u32 = 15;
    pub(super) const ACCESS: u32 = 16;
    pub(super) const POOL: u32 = 17;
}

/// An attribute's value. Its number determines whether it is a word or an int.
enum Value {
    Word(u64),
    Int(i32),
}

fn known(attribute: u32, address: u64) -> Result<Value, Code> {
    let driver = driver::get()?;
    let range = driver.memory.range(address).ok_or(INVALID_VALUE)?;
    let device = range.gpu.is_some();
    Ok(match attribute {
        attribute::CONTEXT => Value::Word(range.context.map_or(0, |context| context.handle())),
        attribute::MEMORY_TYPE => Value::Int(if device { 2 } else { 1 }),
        attribute::DEVICE_POINTER => Value::Word(address),
        attribute::HOST_POINTER if !device || range.managed => Value::Word(address),
        attribute::SYNC_MEMOPS | attribute::IPC_CAPABLE | attribute::RDMA_CAPABLE => Value::Int(0),
        attribute::BUFFER_ID => Value::Word(range.start >> 9),
        attribute::IS_MANAGED => Value::Int(i32::from(range.managed)),
        attribute::DEVICE_ORDINAL => Value::Int(driver.ordinal(range.gpu.unwrap_or(driver.gpus[0]))),
        attribute::START => Value::Word(range.start),
        attribute::SIZE => Value::Word(range.size),
        attribute::MAPPED => Value::Int(1),
        attribute::HANDLE_TYPES => Value::Word(0),
        attribute::ACCESS => Value::Int(3),
        attribute::POOL => Value::Word(range.pool),
        _ => return Err(INVALID_VALUE),
    })
}

fn store(out: Out<u64>, value: Value) -> Res {
    match value {
        Value::Word(word) => out.set(word),
        Value::Int(int) => out.narrow().set(int),
    }
}

soft_gpu::api! {
    fn cuMemHostAlloc(out: Out<u64>, size: u64, flags: u32) {
        allocate(out, size, flags)
    }

    fn cuMemAllocHost_v2(out: Out<u64>, size: u64) {
        allocate(out, size, 0)
    }

    fn cuMemFreeHost(address: u64) {
        let driver = driver::get()?;
        let mut hosts = driver.memory.hosts();
        let range = hosts.get(&address).filter(|range| matches!(range.kind, HostKind::Allocated)).ok_or(INVALID_VALUE)?;
        unmap_host(address, range.size);
        hosts.remove(&address);
        Ok(())
    }

    fn cuMemHostRegister_v2(address: u64, size: u64, flags: u32) {
        let (driver, _) = here()?;
        if address == 0 || size == 0 {
            return Err(INVALID_VALUE);
        }
        if driver.memory.range(address).is_some() {
            return Err(HOST_MEMORY_ALREADY_REGISTERED);
        }
        driver.memory.hosts().insert(address, HostRange { size, flags, kind: HostKind::Registered });
        Ok(())
    }

    fn cuMemHostUnregister(address: u64) {
        let mut hosts = driver::get()?.memory.hosts();
        hosts.get(&address).filter(|range| matches!(range.kind, HostKind::Registered)).ok_or(HOST_MEMORY_NOT_REGISTERED)?;
        hosts.remove(&address);
        Ok(())
    }

    fn cuMemHostGetDevicePointer_v2(out: Out<u64>, address: u64, _flags: u32) {
        let (driver, _) = here()?;
        driver.memory.range(address).filter(|range| range.gpu.is_none()).ok_or(INVALID_VALUE)?;
        out.set(address)
    }

    fn cuMemHostGetFlags(out: Out<u32>, address: u64) {
        let hosts = driver::get()?.memory.hosts();
        out.set(hosts.get(&address).ok_or(INVALID_VALUE)?.flags)
    }

    fn cuPointerGetAttribute(out: Out<u64>, attribute: u32, address: u64) {
        store(out, known(attribute, address)?)
    }

    fn cuPointerGetAttributes(count: u32, attributes: In<u32>, values: In<Out<u64>>, address: u64) {
        driver::get()?;
        for index in 0..count as usize {
            // For memory that CUDA does not know every attribute reads zero; the call succeeds.
            let attribute = attributes.at(index)?;
            let value = known(attribute, address).unwrap_or(match attribute {
                2 | 6 | 8 | 10 | 13 | 15 | 16 => Value::Int(0),
                9 => Value::Int(-2),
                _ => Value::Word(0),
            });
            store(values.at(index)?, value)?;
        }
        Ok(())
    }

    fn cuPointerSetAttribute(_value: In<u32>, attribute: u32, _address: u64) {
        driver::get()?;
        if attribute == attribute::SYNC_MEMOPS { Ok(()) } else { Err(NOT_SUPPORTED) }
    }
}
