"""The part of the CUDA driver API that the probes need, through ctypes.

Every integer is passed as 64 bits: where the function takes 32, both calling conventions (x86-64,
AArch64) read the low half. Structures are built by `struct` and passed as bytes.
"""

import ctypes
import struct

from .talk import Skip

OUT_OF_MEMORY = 2
# Codes by which a GPU, driver or machine reports that it lacks a feature.
ABSENT = (800, 801, 500)  # NOT_PERMITTED, NOT_SUPPORTED, NOT_FOUND
DEVICE_UNAVAILABLE = 46  # compute mode Exclusive Process, and another process uses the GPU


class CudaError(Exception):
    def __init__(self, function, code):
        super().__init__("{} answers {}".format(function, code))
        self.function, self.code = function, code


class Cuda:
    """libcuda.so.1 with a context on the one GPU that this process sees."""

    def __init__(self, context=True):
        self.library, self.pools = ctypes.CDLL("libcuda.so.1"), []
        self.call("cuInit", 0)
        self.device = self.value("cuDeviceGet", 0, kind=ctypes.c_int)
        if context:
            self.primary()

    def has(self, name):
        return hasattr(self.library, name)

    def code(self, name, *arguments):
        """Calls a function and returns its code."""
        if not self.has(name):
            raise Skip("this driver has no {}".format(name))
        function = getattr(self.library, name)
        return function(*[ctypes.c_uint64(a & (1 << 64) - 1) if isinstance(a, int) else a for a in arguments])

    def call(self, name, *arguments):
        code = self.code(name, *arguments)
        if code:
            raise CudaError(name, code)

    def value(self, name, *arguments, kind=ctypes.c_uint64):
        """Calls a function whose first argument is a pointer to the result."""
        answer = kind(0)
        self.call(name, ctypes.byref(answer), *arguments)
        return answer.value

    def optional(self, name, *arguments, kind=ctypes.c_uint64):
        """The same; skips the probe if the feature is absent here."""
        try:
            return self.value(name, *arguments, kind=kind)
        except CudaError as error:
            if error.code in ABSENT:
                raise Skip(str(error))
            raise

    # Contexts and their queries.

    def primary(self):
        context = self.value("cuDevicePrimaryCtxRetain", self.device)
        self.call("cuCtxSetCurrent", context)

    def memory(self):
        """Free and total bytes."""
        free, total = ctypes.c_size_t(0), ctypes.c_size_t(0)
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def charged(self):
        """The share's charge. Correct while the GPU has more free memory than the share."""
        free, total = self.memory()
        return total - free

    def attribute(self, number):
        return self.value("cuDeviceGetAttribute", number, self.device, kind=ctypes.c_int)

    # Memory, by every path. Each returns a function that frees it.

    def alloc(self, size):
        pointer = self.value("cuMemAlloc_v2", size)
        return lambda: self.call("cuMemFree_v2", pointer)

    def managed(self, size):
        """Managed memory, touched so that it is on the GPU."""
        pointer = self.value("cuMemAllocManaged", size, 1)
        self.call("cuMemsetD8_v2", pointer, 0, size)
        self.call("cuCtxSynchronize")
        return lambda: self.call("cuMemFree_v2", pointer)

    def pitched(self, width, height):
        pitch = ctypes.c_size_t(0)
        pointer = self.value("cuMemAllocPitch_v2", ctypes.byref(pitch), width, height, 4)
        return lambda: self.call("cuMemFree_v2", pointer)

    def pool_alloc(self, size, pool=None):
        if pool is None:
            pointer = self.optional("cuMemAllocAsync", size, 0)
        else:
            pointer = self.optional("cuMemAllocFromPoolAsync", size, pool, 0)
        self.call("cuStreamSynchronize", 0)
        return lambda: self.call("cuMemFreeAsync", pointer, 0)

    def pool(self):
        # CUmemPoolProps: pinned, no export, on device 0.
        pool = self.optional("cuMemPoolCreate", struct.pack("<iiii72x", 1, 0, 1, self.device))
        self.pools.append(pool)
        return pool

    def trim(self):
        """Releases memory that pools keep for reuse."""
        self.call("cuCtxSynchronize")
        for pool in self.pools + [self.optional("cuDeviceGetDefaultMemPool", self.device)]:
            self.call("cuMemPoolTrimTo", pool, 0)

    def pool_attribute(self, pool, attribute):
        value = ctypes.c_uint64(0)
        self.call("cuMemPoolGetAttribute", pool, attribute, ctypes.byref(value))
        return value.value

    def properties(self, exported=False):
        # CUmemAllocationProp: pinned, a file descriptor for others if exported, on device 0.
        return struct.pack("<iiii16x", 1, 1 if exported else 0, 1, self.device)

    def granularity(self, recommended=False):
        return self.optional("cuMemGetAllocationGranularity", self.properties(), 1 if recommended else 0)

    def create(self, size, exported=False):
        return self.optional("cuMemCreate", size, self.properties(exported), 0)

    def map(self, handle, size):
        """Reserves addresses, maps a handle there, and returns the address."""
        address = self.value("cuMemAddressReserve", size, 0, 0, 0)
        self.call("cuMemMap", address, size, 0, handle, 0)
        self.call("cuMemSetAccess", address, size, struct.pack("<iii", 1, self.device, 3), 1)
        return address

    def unmap(self, address, size):
        self.call("cuMemUnmap", address, size)
        self.call("cuMemAddressFree", address, size)

    def array(self, width, height, depth=0, channels=4, flags=0, levels=0):
        """An array of floats; with `levels` a mipmapped one."""
        shape = struct.pack("<QQQIII4x", width, height, depth, 0x20, channels, flags)
        if levels:
            array = self.optional("cuMipmappedArrayCreate", shape, levels)
            return lambda: self.call("cuMipmappedArrayDestroy", array)
        array = self.optional("cuArray3DCreate_v2", shape)
        return lambda: self.call("cuArrayDestroy", array)

    def graph_alloc(self, size):
        """Launches a graph whose only node allocates. The memory stays until it is freed."""
        graph = self.value("cuGraphCreate", 0)
        node = ctypes.c_uint64(0)
        # CUDA_MEM_ALLOC_NODE_PARAMS: CUmemPoolProps, access descriptions, size, and the returned pointer.
        parameters = ctypes.create_string_buffer(struct.pack("<iiii72xQQQQ", 1, 0, 1, self.device, 0, 0, size, 0))
        try:
            self.call("cuGraphAddMemAllocNode", ctypes.byref(node), graph, None, 0, parameters)
        except CudaError as error:
            if error.code in ABSENT:
                raise Skip(str(error))
            raise
        pointer = struct.unpack_from("<Q", parameters, 112)[0]
        ready = self.value("cuGraphInstantiateWithFlags", graph, 0)
        try:
            self.call("cuGraphLaunch", ready, 0)
            self.call("cuStreamSynchronize", 0)
        except CudaError:
            self.call("cuGraphExecDestroy", ready)
            self.call("cuGraphDestroy", graph)
            raise

        def undo():
            self.call("cuMemFreeAsync", pointer, 0)
            self.call("cuStreamSynchronize", 0)
            self.call("cuGraphExecDestroy", ready)
            self.call("cuGraphDestroy", graph)
            self.call("cuDeviceGraphMemTrim", self.device)

        return undo

    # Code.

    def module(self, ptx):
        module = self.value("cuModuleLoadData", ptx.encode() + b"\0")
        return module

    def function(self, module, name):
        return self.value("cuModuleGetFunction", module, name.encode() + b"\0")

    def launch(self, function, pointers=()):
        """One thread; its parameters are pointers."""
        values = [ctypes.c_uint64(pointer) for pointer in pointers]
        parameters = (ctypes.c_void_p * max(1, len(values)))(*[ctypes.addressof(value) for value in values])
        self.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, 0, parameters, None)
        self.call("cuCtxSynchronize")
