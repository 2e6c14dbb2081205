//! Contexts for OpenGL and VDPAU, and the GPUs on which these run: OpenGL on all, VDPAU's device N on GPU N. Neither
//! exists here, so nothing can be shared with them.

use crate::code::INVALID_VALUE;
use crate::context;
use crate::driver;
use crate::ffi::Out;

soft_gpu::api! {
    fn cuGLCtxCreate_v2(out: Out<u64>, flags: u32, device: i32) {
        context::create(out, flags, device)
    }

    fn cuGLGetDevices_v2(count: Out<u32>, list: Out<i32>, room: u32, which: u32) {
        let driver = driver::get()?;
        if !(1..=3).contains(&which) {
            return Err(INVALID_VALUE);
        }
        let all: Vec<i32> = (0..driver.gpus.len() as i32).collect();
        list.fill(&all[..all.len().min(room as usize)])?;
        count.set(all.len() as u32)
    }

    fn cuVDPAUCtxCreate_v2(out: Out<u64>, flags: u32, device: i32, _vdpau: u32, _functions: u64) {
        context::create(out, flags, device)
    }

    fn cuVDPAUGetDevice(out: Out<i32>, vdpau: u32, _functions: u64) {
        let device = vdpau as i32;
        driver::get()?.gpu(device)?;
        out.set(device)
    }
}
