//! Functions whose only change is a translated device argument: the virtual ordinal at the given positions is
//! replaced by the real device.
//!
//! All of their arguments are integers or pointers, so each takes one register. The first six registers are passed on,
//! however many arguments a function has.

use crate::hooks::devices;

macro_rules! devices {
    ($($class:ident $($name:ident),+: $places:tt;)*) => {
        hooks! { cuda; $(
            $class $($name),+: (a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) =>
                |a, b, c, d, e, f| devices::list::translate([a, b, c, d, e, f], &$places);
        )* }
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
