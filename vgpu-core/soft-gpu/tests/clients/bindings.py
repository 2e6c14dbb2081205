"""cuda-bindings on the software GPU: memory in all its kinds, copies, streams, events, a launch, a graph."""
from cuda.bindings import driver as cuda

MIB = 1 << 20


def check(result):
    assert int(result[0]) == 0, result
    return result[1] if len(result) == 2 else result[1:]


def free():
    return check(cuda.cuMemGetInfo())[0]


check(cuda.cuInit(0))
device = check(cuda.cuDeviceGet(0))
context = check(cuda.cuDevicePrimaryCtxRetain(device))
check(cuda.cuCtxSetCurrent(context))
whole = free()
assert whole == check(cuda.cuDeviceTotalMem(device)) == 80 << 30

# Out of memory exactly where it ends.
everything = check(cuda.cuMemAlloc(whole))
assert int(cuda.cuMemAlloc(1)[0]) == 2
check(cuda.cuMemFree(everything))
assert free() == whole

# Contents: written, copied within the device, set, read; what nobody wrote is zero.
data = bytes(range(256)) * 16
one, two = check(cuda.cuMemAlloc(len(data))), check(cuda.cuMemAlloc(len(data)))
check(cuda.cuMemcpyHtoD(one, data, len(data)))
check(cuda.cuMemcpyDtoD(int(two) + 16, one, len(data) - 16))
check(cuda.cuMemsetD32(two, 0x01020304, 2))
back = bytearray(len(data))
check(cuda.cuMemcpyDtoH(back, two, len(data)))
assert bytes(back) == bytes([4, 3, 2, 1] * 2) + bytes(8) + data[:-16]
assert int(cuda.cuMemcpyDtoH(back, int(two) + len(data) - 1, 2)[0]) == 1, "past the end"
check(cuda.cuMemFree(one))
check(cuda.cuMemFree(two))
assert int(cuda.cuMemFree(two)[0]) == 1, "freed twice"

# Pitch, managed memory, arrays are charged and given back.
before = free()
pitched, pitch = check(cuda.cuMemAllocPitch(1000, 4096, 4))
assert pitch % 512 == 0 and before - free() == 4 * MIB
managed = check(cuda.cuMemAllocManaged(8 * MIB, cuda.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL))
assert before - free() == 12 * MIB
shape = cuda.CUDA_ARRAY_DESCRIPTOR()
shape.Width, shape.Height, shape.NumChannels = 1024, 512, 4
shape.Format = cuda.CUarray_format.CU_AD_FORMAT_FLOAT
array = check(cuda.cuArrayCreate(shape))
assert before - free() == 20 * MIB
check(cuda.cuArrayDestroy(array))
check(cuda.cuMemFree(managed))
check(cuda.cuMemFree(pitched))
assert free() == before

# Virtual memory management: memory lives while a handle or a mapping holds it.
wanted = cuda.CUmemAllocationProp()
wanted.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
wanted.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
wanted.location.id = 0
grain = check(cuda.cuMemGetAllocationGranularity(wanted, 0))
assert grain == 2 * MIB
assert int(cuda.cuMemCreate(grain + 1, wanted, 0)[0]) == 1
handle = check(cuda.cuMemCreate(4 * grain, wanted, 0))
place = check(cuda.cuMemAddressReserve(8 * grain, 0, 0, 0))
check(cuda.cuMemMap(place, 4 * grain, 0, handle, 0))
access = cuda.CUmemAccessDesc()
access.location = wanted.location
access.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
assert int(cuda.cuMemsetD8(place, 7, 16)[0]) == 1, "no access yet"
check(cuda.cuMemSetAccess(place, 4 * grain, [access], 1))
check(cuda.cuMemsetD8(place, 7, 4 * grain))
small = bytearray(4)
check(cuda.cuMemcpyDtoH(small, int(place) + 4 * grain - 4, 4))
assert small == b"\7\7\7\7"
check(cuda.cuMemRelease(handle))
assert before - free() == 4 * grain, "the mapping holds it"
assert int(cuda.cuMemAddressFree(place, 8 * grain)[0]) == 1, "still mapped"
check(cuda.cuMemUnmap(place, 4 * grain))
check(cuda.cuMemAddressFree(place, 8 * grain))
assert free() == before

# Pools keep what they reserved until a synchronisation, or until somebody needs it.
stream = check(cuda.cuStreamCreate(0))
pool = check(cuda.cuDeviceGetDefaultMemPool(device))
attribute = cuda.CUmemPool_attribute


def pool_value(which):
    return int(check(cuda.cuMemPoolGetAttribute(pool, which)))


pooled = check(cuda.cuMemAllocAsync(3 * MIB, stream))
assert before - free() == 4 * MIB == pool_value(attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
assert pool_value(attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 3 * MIB
check(cuda.cuMemFreeAsync(pooled, stream))
assert before - free() == 4 * MIB
check(cuda.cuStreamSynchronize(stream))
assert free() == before
check(cuda.cuMemPoolSetAttribute(pool, attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, cuda.cuuint64_t(1 << 40)))
check(cuda.cuMemFreeAsync(check(cuda.cuMemAllocAsync(1 << 30, stream)), stream))
check(cuda.cuStreamSynchronize(stream))
assert before - free() == 1 << 30, "kept by the threshold"
check(cuda.cuMemFree(check(cuda.cuMemAlloc(before))))
check(cuda.cuMemPoolTrimTo(pool, 0))
assert free() == before

# A launch takes modelled time, in stream order: 200 waves of 5 us.
module = check(cuda.cuModuleLoadData(b".version 8.0\n.target sm_90\n.entry k() { ret; }\n\0"))
kernel = check(cuda.cuModuleGetFunction(module, b"k"))
assert int(cuda.cuModuleGetFunction(module, b"nothing")[0]) == 500
start, end = check(cuda.cuEventCreate(0)), check(cuda.cuEventCreate(0))
check(cuda.cuEventRecord(start, stream))
check(cuda.cuLaunchKernel(kernel, 132 * 2 * 20000, 1, 1, 1024, 1, 1, 0, stream, 0, 0))
check(cuda.cuEventRecord(end, stream))
assert int(cuda.cuEventQuery(end)[0]) == 600
check(cuda.cuEventSynchronize(end))
elapsed = check(cuda.cuEventElapsedTime(start, end))
assert 100 <= elapsed < 120, elapsed
assert int(cuda.cuLaunchKernel(kernel, 1, 1, 1, 2048, 1, 1, 0, stream, 0, 0)[0]) == 1

# A captured stream becomes a graph that takes the same time.
check(cuda.cuStreamBeginCapture(stream, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
check(cuda.cuLaunchKernel(kernel, 132 * 2 * 2000, 1, 1, 1024, 1, 1, 0, stream, 0, 0))
graph = check(cuda.cuStreamEndCapture(stream))
executable = check(cuda.cuGraphInstantiate(graph, 0))
check(cuda.cuEventRecord(start, stream))
check(cuda.cuGraphLaunch(executable, stream))
check(cuda.cuEventRecord(end, stream))
check(cuda.cuEventSynchronize(end))
assert 10 <= check(cuda.cuEventElapsedTime(start, end)) < 30

# What a context still had goes with it.
check(cuda.cuMemAlloc(1 << 30))
other = check(cuda.cuCtxCreate(None, 0, device))
check(cuda.cuMemAlloc(1 << 30))
assert before - free() == 2 << 30
check(cuda.cuCtxDestroy(other))
check(cuda.cuCtxSetCurrent(context))
assert before - free() == 1 << 30
check(cuda.cuDevicePrimaryCtxRelease(device))
assert int(cuda.cuMemAlloc(1)[0]) == 709
print("ok")
