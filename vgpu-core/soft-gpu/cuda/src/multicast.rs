//! Multicast objects: memory of several devices at one address. They have no memory of their own; bound memory stays
//! until it is unbound or the object is gone.

use crate::code::{INVALID_VALUE, Res};
use crate::driver;
use crate::ffi::{In, Out};

/// CUmulticastObjectProp: number of devices, size, handle types, flags.
type Properties = [u64; 4];

fn bind(object: u64, offset: u64, memory: u64, size: u64) -> Res {
    let driver = driver::get()?;
    let device = driver.memory.vmm.gpu_of(memory)? as u64;
    driver
        .memory
        .vmm
        .map_array(driver, object, [device, offset, size, 0, 0], Some(memory))
}

fn bind_at(object: u64, offset: u64, address: u64, size: u64) -> Res {
    let memory = driver::get()?.memory.vmm.at(address).ok_or(INVALID_VALUE)?;
    bind(object, offset, memory, size)
}

soft_gpu::api! {
    fn cuMulticastGetGranularity(out: Out<u64>, properties: In<Properties>, _option: u32) {
        properties.get()?;
        out.set(driver::get()?.state().profile().granularity)
    }

    fn cuMulticastCreate(out: Out<u64>, properties: In<Properties>) {
        let driver = driver::get()?;
        let [_, size, ..] = properties.get()?;
        if size == 0 || !out.given() {
            return Err(INVALID_VALUE);
        }
        out.set(driver.memory.vmm.object(driver, size))
    }

    fn cuMulticastAddDevice(object: u64, device: i32) {
        let (driver, _) = driver::device(device)?;
        driver.memory.vmm.gpu_of(object).map(|_| ())
    }

    fn cuMulticastBindMem(object: u64, offset: u64, memory: u64, _from: u64, size: u64, _flags: u64) {
        bind(object, offset, memory, size)
    }

    fn cuMulticastBindMem_v2(
        object: u64, _device: i32, offset: u64, memory: u64, _from: u64, size: u64, _flags: u64,
    ) {
        bind(object, offset, memory, size)
    }

    fn cuMulticastBindAddr(object: u64, offset: u64, address: u64, size: u64, _flags: u64) {
        bind_at(object, offset, address, size)
    }

    fn cuMulticastBindAddr_v2(object: u64, _device: i32, offset: u64, address: u64, size: u64, _flags: u64) {
        bind_at(object, offset, address, size)
    }

    fn cuMulticastUnbind(object: u64, device: i32, offset: u64, size: u64) {
        let (driver, gpu) = driver::device(device)?;
        driver.memory.vmm.unbind(driver, object, gpu as u64, offset, size);
        Ok(())
    }
}
