"""Allocates in steps; at each step the check compares the charge with the driver's truth.

A step with `base` starts a comparison; the next ones are relative to it. `fixed`: memory that a program has
without requesting any; the largest difference of these steps is the tolerance.
"""

import ctypes

from . import ptx, talk
from .cuda import ABSENT, Cuda, CudaError

KIB, MIB = 1 << 10, 1 << 20
COPIES = 64


def step(cuda, name, base=False, fixed=False, **more):
    talk.step(name, charged=cuda.charged(), base=base, fixed=fixed, **more)


def undo_all(cuda, undo):
    while undo:
        undo.pop()()
    cuda.call("cuCtxSynchronize")


def contexts(_limit):
    cuda = Cuda(context=False)
    talk.step("cuInit alone", charged=0, base=True)
    cuda.primary()
    step(cuda, "the first context of a process", fixed=True)
    step(cuda, "", base=True)
    second = cuda.value("cuCtxCreate_v2", 0, cuda.device)
    step(cuda, "a second context", grows=True)
    cuda.call("cuCtxDestroy_v2", second)
    cuda.primary()
    step(cuda, "", base=True)
    undo = []
    for _ in range(COPIES):
        stream = cuda.value("cuStreamCreate", 1)
        event = cuda.value("cuEventCreate", 0)
        undo.append(lambda stream=stream: cuda.call("cuStreamDestroy_v2", stream))
        undo.append(lambda event=event: cuda.call("cuEventDestroy_v2", event))
    step(cuda, "{} streams and events".format(COPIES), fixed=True)
    undo_all(cuda, undo)


def green(_limit):
    cuda = Cuda()
    step(cuda, "", base=True)
    # CUdevResource: 144 bytes in 12.4, more later.
    resource, description, context = ctypes.create_string_buffer(1024), ctypes.c_uint64(0), ctypes.c_uint64(0)
    multiprocessors = 1
    for name, arguments in (
        ("cuDeviceGetDevResource", (cuda.device, resource, multiprocessors)),
        ("cuDevResourceGenerateDesc", (ctypes.byref(description), resource, 1)),
        ("cuGreenCtxCreate", (ctypes.byref(context), description, cuda.device, 1)),
    ):
        code = cuda.code(name, *arguments)
        if code in ABSENT:
            raise talk.Skip("{} answers {}".format(name, code))
        if code:
            raise CudaError(name, code)
    step(cuda, "a green context", grows=True)


def small(_limit):
    """Many allocations of one size: does the driver pack them, and how much is charged?"""
    cuda = Cuda()
    for size, name in (
        (1, "1 B"),
        (64 * KIB, "64 KiB"),
        (512 * KIB, "512 KiB"),
        (MIB, "1 MiB"),
        (MIB + 1, "1 MiB and a byte"),
        (2 * MIB, "2 MiB"),
        (2 * MIB + 1, "2 MiB and a byte"),
        (5 * MIB, "5 MiB"),
    ):
        step(cuda, "", base=True)
        copies = COPIES if size <= 2 * MIB else COPIES // 4
        undo = [cuda.alloc(size) for _ in range(copies)]
        step(cuda, "cuMemAlloc, {} x {}".format(copies, name), asked=copies * size)
        undo_all(cuda, undo)


def pieces(limit):
    """The driver's own tables grow with the memory in use."""
    cuda = Cuda()
    step(cuda, "", base=True)
    most = int(limit) - cuda.charged() - 64 * MIB
    undo = [cuda.alloc(2 * MIB) for _ in range(most // (2 * MIB))]
    step(cuda, "nearly the whole share in pieces of 2 MiB", fixed=True)
    undo_all(cuda, undo)


def shapes(_limit):
    cuda = Cuda()
    pitched = [("100 bytes x 10,000 rows, pitched", lambda: cuda.pitched(100, 10000))]
    arrays = [
        ("array, 1,000 float4", lambda: cuda.array(1000, 0)),
        ("array, 1,000 x 1,000 float4", lambda: cuda.array(1000, 1000)),
        ("array, 1,000 x 1,000 float", lambda: cuda.array(1000, 1000, channels=1)),
        ("array, 100 x 100 x 100 float4", lambda: cuda.array(100, 100, 100)),
        ("array, 5 layers of 500 x 500 float4", lambda: cuda.array(500, 500, 5, flags=1)),
        ("mipmapped array, 512 x 512 float4, 10 levels", lambda: cuda.array(512, 512, levels=10)),
    ]
    for name, make in pitched + arrays:
        step(cuda, "", base=True)
        undo = []
        try:
            undo = [make() for _ in range(16)]
            step(cuda, "16 x " + name)
        except (talk.Skip, CudaError) as error:
            talk.say("absent", name="16 x " + name, reason=str(error))
        undo_all(cuda, undo)


def host(_limit):
    cuda = Cuda()
    step(cuda, "", base=True)
    pinned = cuda.value("cuMemHostAlloc", 64 * MIB, 2)
    step(cuda, "64 MiB of pinned host memory, mapped")
    cuda.call("cuMemFreeHost", pinned)
    step(cuda, "", base=True)
    pointer = cuda.value("cuMemAllocManaged", 64 * MIB, 1)
    step(cuda, "64 MiB managed, untouched")
    cuda.call("cuMemsetD8_v2", pointer, 0, 64 * MIB)
    cuda.call("cuCtxSynchronize")
    step(cuda, "64 MiB managed, touched by the GPU")


def virtual(_limit):
    cuda = Cuda()
    least, recommended = cuda.granularity(), cuda.granularity(recommended=True)
    text = "{} KiB, recommended {} KiB".format(least // KIB, recommended // KIB)
    talk.say("figure", name="granularity of cuMemCreate", text=text)
    step(cuda, "", base=True)
    size = 32 * least
    handle = cuda.create(size)
    step(cuda, "cuMemCreate, {} MiB".format(size // MIB))
    address = cuda.map(handle, size)
    cuda.call("cuMemRelease", handle)
    step(cuda, "the same, mapped and its handle released")
    cuda.unmap(address, size)
    step(cuda, "the same, unmapped")


def pools(_limit):
    cuda = Cuda()
    step(cuda, "", base=True)
    pool = cuda.pool()
    keep = ctypes.c_uint64((1 << 64) - 1)
    cuda.call("cuMemPoolSetAttribute", pool, 4, ctypes.byref(keep))
    undo = [cuda.pool_alloc(3 * MIB, pool) for _ in range(16)]

    def told():
        reserved, used = cuda.pool_attribute(pool, 5), cuda.pool_attribute(pool, 7)
        return "reserved {} MiB, used {} MiB".format(reserved // MIB, used // MIB)

    step(cuda, "pool, 16 x 3 MiB", note=told())
    undo_all(cuda, undo)
    step(cuda, "pool, all of it freed and kept reserved", note=told())
    cuda.call("cuMemPoolTrimTo", pool, 0)
    step(cuda, "pool, trimmed", note=told())


def graphs(_limit):
    cuda = Cuda()
    step(cuda, "", base=True)
    undo = cuda.graph_alloc(64 * MIB)
    step(cuda, "graph that allocates 64 MiB, launched")
    undo()
    step(cuda, "graph, freed and trimmed")


def modules(_limit):
    cuda = Cuda()
    step(cuda, "", base=True)
    loaded = cuda.module(ptx.empty(cuda))
    cuda.launch(cuda.function(loaded, ptx.LAUNCHABLE))
    step(cuda, "module with one empty kernel, launched", fixed=True)
    step(cuda, "", base=True)
    pointer = cuda.value("cuMemAlloc_v2", 2 * MIB)
    cuda.call("cuMemsetD8_v2", pointer, 0, 2 * MIB)
    cuda.call("cuCtxSynchronize")
    step(cuda, "2 MiB, set to zero (the driver's own kernels)", fixed=True)
    step(cuda, "", base=True)
    cuda.module(ptx.many(cuda, 200))
    step(cuda, "module with 200 kernels", fixed=True)
    step(cuda, "", base=True)
    cuda.module(ptx.variable(cuda, 32 * MIB))
    step(cuda, "module with a variable of 32 MiB", grows=True)


def hidden(_limit):
    """Memory that the driver allocates for kernels."""
    cuda = Cuda()
    out = cuda.value("cuMemAlloc_v2", 8)
    cuda.call("cuMemsetD8_v2", out, 0, 8)
    step(cuda, "", base=True)
    loaded = cuda.module(ptx.local_memory(cuda, 1024))
    cuda.launch(cuda.function(loaded, "spill"), [out])
    step(cuda, "kernel with 1 KiB of local memory a thread, launched", grows=True)
    step(cuda, "", base=True)
    cuda.call("cuCtxSetLimit", 2, 64 * MIB)
    loaded = cuda.module(ptx.device_heap(cuda))
    cuda.launch(cuda.function(loaded, "heap"), [out])
    step(cuda, "device heap of 64 MiB", grows=True)


PROBES = {
    probe.__name__: probe
    for probe in (contexts, green, small, pieces, shapes, host, virtual, pools, graphs, modules, hidden)
}


def main(name, limit):
    PROBES[name](limit)

