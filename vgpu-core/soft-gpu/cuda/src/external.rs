//! Memory of other interfaces. There are none here, so an import is charged the size that its caller passes, until the
//! handle and all its mappings are gone.

use std::collections::HashMap;
use std::sync::Mutex;

use soft_gpu::lock;

use crate::array::{self, Solid};
use crate::code::{Code, INVALID_HANDLE, INVALID_VALUE, Res};
use crate::context::here;
use crate::driver::{self, Driver};
use crate::ffi::{In, Out};

struct External {
    gpu: usize,
    size: u64,
    /// One for the handle, plus one for each mapping.
    holders: u32,
}

#[derive(Default)]
struct Tables {
    memory: HashMap<u64, External>,
    /// The external memory of each mapped buffer and array.
    mapped: HashMap<u64, u64>,
}

#[derive(Default)]
pub(crate) struct Externals(Mutex<Tables>);

impl Tables {
    fn drop_holder(&mut self, driver: &Driver, memory: u64) {
        let Some(known) = self.memory.get_mut(&memory) else {
            return;
        };
        known.holders -= 1;
        if known.holders == 0 {
            driver.member().shrink(known.gpu, driver.memory.units(known.size));
            self.memory.remove(&memory);
        }
    }

    fn hold(&mut self, memory: u64, end: u64) -> Result<usize, Code> {
        let known = self.memory.get_mut(&memory).ok_or(INVALID_HANDLE)?;
        if end > known.size {
            return Err(INVALID_VALUE);
        }
        known.holders += 1;
        Ok(known.gpu)
    }
}

impl Externals {
    /// Removes a buffer or an array that is gone. Does nothing if it was not mapped from external memory.
    pub(crate) fn let_go(&self, driver: &Driver, mapped: u64) -> Res {
        let mut tables = lock(&self.0);
        if let Some(memory) = tables.mapped.remove(&mapped) {
            tables.drop_holder(driver, memory);
        }
        Ok(())
    }

    pub(crate) fn is_buffer(&self, address: u64) -> bool {
        lock(&self.0).mapped.contains_key(&address)
    }
}

/// CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC, without its levels.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Part {
    offset: u64,
    shape: Solid,
}

soft_gpu::api! {
    fn cuImportExternalMemory(out: Out<u64>, descriptor: In<[u64; 4]>) {
        // Kind, handle (two words), size.
        let [kind, _, _, size] = descriptor.get()?;
        let (driver, context) = here()?;
        if !out.given() || size == 0 || !(1..=9).contains(&(kind as u32)) {
            return Err(INVALID_VALUE);
        }
        driver.memory.charge(driver, context.gpu, driver.memory.units(size))?;
        let handle = driver.handle();
        let external = External { gpu: context.gpu, size, holders: 1 };
        lock(&driver.memory.externals.0).memory.insert(handle, external);
        out.set(handle)
    }

    fn cuExternalMemoryGetMappedBuffer(out: Out<u64>, memory: u64, descriptor: In<[u64; 2]>) {
        let [offset, size] = descriptor.get()?;
        let driver = driver::get()?;
        let mut tables = lock(&driver.memory.externals.0);
        let gpu = tables.hold(memory, offset.checked_add(size).ok_or(INVALID_VALUE)?)?;
        let address = driver.memory.place_foreign(gpu, size)?;
        tables.mapped.insert(address, memory);
        out.set(address)
    }

    fn cuExternalMemoryGetMappedMipmappedArray(out: Out<u64>, memory: u64, descriptor: In<Part>) {
        let Part { offset, shape } = descriptor.get()?;
        let driver = driver::get()?;
        let mut tables = lock(&driver.memory.externals.0);
        tables.hold(memory, offset)?;
        let handle = array::foreign(0, shape)?;
        tables.mapped.insert(handle, memory);
        out.set(handle)
    }

    fn cuDestroyExternalMemory(memory: u64) {
        let driver = driver::get()?;
        let mut tables = lock(&driver.memory.externals.0);
        if !tables.memory.contains_key(&memory) {
            return Err(INVALID_HANDLE);
        }
        tables.drop_holder(driver, memory);
        Ok(())
    }
}
