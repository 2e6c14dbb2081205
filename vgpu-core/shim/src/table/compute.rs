//! Names that are hooked if GPU time is limited: launches, waits, captures and streams that end. The graph launches are
//! in the table of the driver API, because they may take memory.

use crate::hooks::compute::{launches, streams, waits};
use core::convert::identity;
use core::ffi::{c_int, c_uint, c_void};
use vgpu_core::arbiter::{Scope, per_thread};

limited_launches! {
    limited cuLaunchKernel: (function: usize, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: usize, parameters: *mut *mut c_void, extra: *mut *mut c_void) => launches::launch(stream);
    limited cuLaunchKernel_ptsz: (function: usize, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: usize, parameters: *mut *mut c_void, extra: *mut *mut c_void) => launches::launch(per_thread(stream));
    limited cuLaunchKernelEx: (config: *const launches::Config, function: usize, parameters: *mut *mut c_void, extra: *mut *mut c_void) => launches::ex(config, identity);
    limited cuLaunchKernelEx_ptsz: (config: *const launches::Config, function: usize, parameters: *mut *mut c_void, extra: *mut *mut c_void) => launches::ex(config, per_thread);
    limited cuLaunchCooperativeKernel: (function: usize, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: usize, parameters: *mut *mut c_void) => launches::launch(stream);
    limited cuLaunchCooperativeKernel_ptsz: (function: usize, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: usize, parameters: *mut *mut c_void) => launches::launch(per_thread(stream));
    limited cuLaunchCooperativeKernelMultiDevice: (list: *mut launches::OnDevice, count: c_uint, flags: c_uint) => launches::on_devices(list, count);
    limited cuLaunch: (function: usize) => launches::launch(0);
    limited cuLaunchGrid: (function: usize, width: c_int, height: c_int) => launches::launch(0);
    limited cuLaunchGridAsync: (function: usize, width: c_int, height: c_int, stream: usize) => launches::launch(stream);

    limited cuStreamSynchronize: (stream: usize) => waits::wait(Scope::Stream(stream));
    limited cuStreamSynchronize_ptsz: (stream: usize) => waits::wait(Scope::Stream(per_thread(stream)));
    limited cuStreamQuery: (stream: usize) => waits::ask(Scope::Stream(stream));
    limited cuStreamQuery_ptsz: (stream: usize) => waits::ask(Scope::Stream(per_thread(stream)));
    limited cuCtxSynchronize: () => waits::wait(Scope::Context(None));
    limited cuCtxSynchronize_v2: (context: usize) => waits::wait(Scope::Context(Some(context)));
    limited cuEventSynchronize: (event: usize) => waits::wait(Scope::Some);
    limited cuEventQuery: (event: usize) => waits::ask(Scope::Some);
    limited cuMemcpy, cuMemcpy_ptds, cuMemcpyAtoA_v2, cuMemcpyAtoA_v2_ptds, cuMemcpyAtoA, cuMemcpyAtoD, cuMemcpyAtoD_v2, cuMemcpyAtoD_v2_ptds, cuMemcpyAtoH, cuMemcpyAtoH_v2, cuMemcpyAtoH_v2_ptds, cuMemcpyDtoA, cuMemcpyDtoA_v2, cuMemcpyDtoA_v2_ptds, cuMemcpyDtoD, cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds, cuMemcpyDtoH, cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds, cuMemcpyHtoA, cuMemcpyHtoA_v2, cuMemcpyHtoA_v2_ptds, cuMemcpyHtoD, cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds, cuMemcpy2D, cuMemcpy2D_v2, cuMemcpy2D_v2_ptds, cuMemcpy2DUnaligned, cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds, cuMemcpy3D, cuMemcpy3D_v2, cuMemcpy3D_v2_ptds, cuMemcpy3DPeer, cuMemcpy3DPeer_ptds, cuMemcpyPeer, cuMemcpyPeer_ptds: (..) => waits::wait(Scope::Some);

    limited cuStreamBeginCapture, cuStreamBeginCaptureToCig, cuStreamBeginCaptureToCig_ptsz, cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph_ptsz, cuStreamBeginCapture_ptsz, cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz, cuStreamBeginRecaptureToGraph, cuStreamBeginRecaptureToGraph_ptsz: (stream: usize, ..) => streams::begin_capture(stream);
    limited cuStreamDestroy, cuStreamDestroy_v2: (stream: usize, ..) => streams::destroy(stream);
}
