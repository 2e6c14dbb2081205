//! Names that matter where GPU time is limited: launches, waits, captures and streams that end. The graph launches are in the table of the
//! driver API, because they may take memory.

use crate::hooks::compute::{launches, streams, waits};
use core::ffi::{c_int, c_uint, c_void};

limited_launches! {
    limited cuLaunchKernel: (function: usize, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: usize, parameters: *mut *mut c_void, extra: *mut *mut c_void) => launches::kernel::<false>;
    limited cuLaunchKernel_ptsz: (function: usize, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: usize, parameters: *mut *mut c_void, extra: *mut *mut c_void) => launches::kernel::<true>;
    limited cuLaunchKernelEx: (config: *const launches::Config, function: usize, parameters: *mut *mut c_void, extra: *mut *mut c_void) => launches::ex::<false>;
    limited cuLaunchKernelEx_ptsz: (config: *const launches::Config, function: usize, parameters: *mut *mut c_void, extra: *mut *mut c_void) => launches::ex::<true>;
    limited cuLaunchCooperativeKernel: (function: usize, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: usize, parameters: *mut *mut c_void) => launches::cooperative::<false>;
    limited cuLaunchCooperativeKernel_ptsz: (function: usize, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: usize, parameters: *mut *mut c_void) => launches::cooperative::<true>;
    limited cuLaunchCooperativeKernelMultiDevice: (list: *mut launches::OnDevice, count: c_uint, flags: c_uint) => launches::on_devices;
    limited cuLaunch: (function: usize) => launches::single;
    limited cuLaunchGrid: (function: usize, width: c_int, height: c_int) => launches::grid;
    limited cuLaunchGridAsync: (function: usize, width: c_int, height: c_int, stream: usize) => launches::grid_async;

    limited cuStreamSynchronize: (stream: usize) => waits::stream::<false>;
    limited cuStreamSynchronize_ptsz: (stream: usize) => waits::stream::<true>;
    limited cuStreamQuery: (stream: usize) => waits::query_stream::<false>;
    limited cuStreamQuery_ptsz: (stream: usize) => waits::query_stream::<true>;
    limited cuCtxSynchronize: () => waits::context;
    limited cuCtxSynchronize_v2: (context: usize) => waits::that_context;
    limited cuEventSynchronize: (event: usize) => waits::event;
    limited cuEventQuery: (event: usize) => waits::query_event;
    limited cuMemcpy, cuMemcpy_ptds, cuMemcpyAtoA_v2, cuMemcpyAtoA_v2_ptds, cuMemcpyAtoA, cuMemcpyAtoD, cuMemcpyAtoD_v2, cuMemcpyAtoD_v2_ptds, cuMemcpyAtoH, cuMemcpyAtoH_v2, cuMemcpyAtoH_v2_ptds, cuMemcpyDtoA, cuMemcpyDtoA_v2, cuMemcpyDtoA_v2_ptds, cuMemcpyDtoD, cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds, cuMemcpyDtoH, cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds, cuMemcpyHtoA, cuMemcpyHtoA_v2, cuMemcpyHtoA_v2_ptds, cuMemcpyHtoD, cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds, cuMemcpy2D, cuMemcpy2D_v2, cuMemcpy2D_v2_ptds, cuMemcpy2DUnaligned, cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds, cuMemcpy3D, cuMemcpy3D_v2, cuMemcpy3D_v2_ptds, cuMemcpy3DPeer, cuMemcpy3DPeer_ptds, cuMemcpyPeer, cuMemcpyPeer_ptds: registers => waits::copy;

    limited cuStreamBeginCapture, cuStreamBeginCaptureToCig, cuStreamBeginCaptureToCig_ptsz, cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph_ptsz, cuStreamBeginCapture_ptsz, cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz, cuStreamBeginRecaptureToGraph, cuStreamBeginRecaptureToGraph_ptsz: registers => streams::begin_capture;
    limited cuStreamDestroy, cuStreamDestroy_v2: registers => streams::destroy;
}
