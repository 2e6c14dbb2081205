//! Green contexts: a part of a GPU's multiprocessors with a context of its own, which needs as much memory as a
//! context.

use std::collections::HashMap;
use std::sync::Mutex;

use soft_gpu::lock;

use crate::code::{INVALID_HANDLE, INVALID_VALUE};
use crate::context::Context;
use crate::driver;
use crate::ffi::{In, Out};

/// CUdevResource: 144 bytes, the first word of which is its type; multiprocessors are type 1.
type Resource = [u32; 36];
const SM: u32 = 1;

static GREEN: Mutex<Option<HashMap<u64, &'static Context>>> = Mutex::new(None);

fn with<T>(act: impl FnOnce(&mut HashMap<u64, &'static Context>) -> T) -> T {
    act(lock(&GREEN).get_or_insert_default())
}

soft_gpu::api! {
    fn cuDeviceGetDevResource(device: i32, out: Out<Resource>, kind: u32) {
        let (driver, gpu) = driver::device(device)?;
        if kind != SM {
            return Err(INVALID_VALUE);
        }
        // The count is stored after the type and its padding (96 bytes).
        let mut resource = [0; 36];
        resource[0] = SM;
        resource[24] = driver.state().sms_of(gpu);
        out.set(resource)
    }

    fn cuDevResourceGenerateDesc(out: Out<u64>, resources: In<Resource>, count: u32) {
        resources.get()?;
        if count == 0 { Err(INVALID_VALUE) } else { out.set(driver::get()?.handle()) }
    }

    fn cuGreenCtxCreate(out: Out<u64>, resources: u64, device: i32, _flags: u32) {
        let (driver, gpu) = driver::device(device)?;
        if !out.given() || resources == 0 {
            return Err(INVALID_VALUE);
        }
        let context = Context::open(driver, gpu, 0, false)?;
        let handle = driver.handle();
        with(|green| green.insert(handle, context));
        out.set(handle)
    }

    fn cuGreenCtxDestroy(handle: u64) {
        let driver = driver::get()?;
        with(|green| green.remove(&handle)).ok_or(INVALID_HANDLE)?.close(driver);
        Ok(())
    }

    fn cuCtxFromGreenCtx(out: Out<u64>, handle: u64) {
        driver::get()?;
        let context = with(|green| green.get(&handle).copied()).ok_or(INVALID_HANDLE)?;
        out.set(context.handle())
    }
}
