//! Functions of which only the device argument has to be translated: the virtual ordinal at the given positions is
//! replaced by the real device.
//!
//! All of their arguments are integers or pointers, so each takes one register. The first six registers are passed on,
//! however many arguments a function has.

use crate::hooks::devices;
use core::ffi::c_int;

macro_rules! devices {
    ($($class:ident $($name:ident),+: $places:tt;)*) => {
        $($(devices!(@one $class, $name, $places);)+)*
    };
    (@one $class:ident, $name:ident, $places:tt) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_int {
            // SAFETY: see the module: registers are passed on as they came.
            let again = || unsafe { $name(a, b, c, d, e, f) };
            $crate::table::detour!(cuda, $class, $name, again, |ready, address| {
                #[cfg(feature = "dissect")]
                if $crate::dissect::is_off("devices") {
                    // SAFETY: see the module: registers are passed on as they came.
                    return unsafe { devices::list::translate(ready, address, [a, b, c, d, e, f], &[]) };
                }
                // SAFETY: see the module: registers are passed on as they came.
                unsafe { devices::list::translate(ready, address, [a, b, c, d, e, f], &$places) }
            })
        }
    };
}

devices! {
    virtualised cuDeviceGetName: [2];
    virtualised cuDeviceGetUuid, cuDeviceGetUuid_v2: [1];
    virtualised cuDeviceGetLuid: [2];
    virtualised cuDeviceGetAttribute: [2];
    virtualised cuDeviceGetTexture1DLinearMaxWidth: [3];
    virtualised cuDeviceGetNvSciSyncAttributes: [1];
    virtualised cuDeviceSetMemPool: [0];
    virtualised cuDeviceGetMemPool, cuDeviceGetDefaultMemPool: [1];
    virtualised cuDeviceGetExecAffinitySupport: [2];
    virtualised cuDeviceGetProperties: [1];
    virtualised cuDeviceComputeCapability: [2];
    virtualised cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags_v2: [0];
    virtualised cuDevicePrimaryCtxGetState: [0];
    virtualised cuDeviceGetPCIBusId: [2];
    virtualised cuDeviceCanAccessPeer: [1, 2];
    virtualised cuDeviceGetP2PAttribute: [2, 3];
    virtualised cuDeviceRegisterAsyncNotification, cuDeviceUnregisterAsyncNotification: [0];
    virtualised cuDeviceGetGraphMemAttribute, cuDeviceSetGraphMemAttribute: [0];
    virtualised cuDeviceGetDevResource: [0];
    virtualised cuDeviceGetHostAtomicCapabilities: [3];
    virtualised cuDeviceGetP2PAtomicCapabilities: [3, 4];
    virtualised cuDeviceGetFabricClusterUuid, cuDeviceGetCliqueCount: [1];
    virtualised cuDeviceGetCliqueInfo: [2];
    virtualised cuArrayGetMemoryRequirements, cuMipmappedArrayGetMemoryRequirements: [2];
    virtualised cuMulticastAddDevice, cuLogicalEndpointAddDevice: [1];
    virtualised cuKernelGetAttribute, cuKernelSetAttribute: [3];
    virtualised cuKernelSetCacheConfig: [2];
    virtualised cuMemPrefetchAsync, cuMemPrefetchAsync_ptsz: [2];
    virtualised cuMemAdvise: [3];
}
