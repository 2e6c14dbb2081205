"""Memory that the driver allocates without an explicit request: a kernel's local memory, the device's heap.

Requests more than the share. The truth shows whether this exceeded the limit, not the call's result.
"""

from . import ptx, talk
from .cuda import Cuda, CudaError

MALLOC_HEAP_SIZE = 2
MOST_LOCAL = 512 << 10


def local_memory(cuda, limit):
    """The driver allocates for all threads that can run on the GPU at the same time."""
    threads = cuda.attribute(16) * cuda.attribute(39)
    size = (limit // threads + 255) // 256 * 256 + 1024
    if size >= MOST_LOCAL:
        raise talk.Skip("{} bytes a thread are more than a kernel may have".format(size))
    out = cuda.value("cuMemAlloc_v2", 8)
    cuda.call("cuMemsetD8_v2", out, 0, 8)
    module = cuda.module(ptx.local_memory(cuda, size))
    cuda.launch(cuda.function(module, "spill"), [out])


def device_heap(cuda, limit):
    cuda.call("cuCtxSetLimit", MALLOC_HEAP_SIZE, limit + (256 << 20))
    out = cuda.value("cuMemAlloc_v2", 8)
    module = cuda.module(ptx.device_heap(cuda))
    cuda.launch(cuda.function(module, "heap"), [out])


def main(what, limit):
    cuda = Cuda()
    talk.step("ready", charged=cuda.charged())
    code = 0
    try:
        {"local memory": local_memory, "device heap": device_heap}[what](cuda, int(limit))
    except CudaError as error:
        code = error.code
    talk.step("asked", charged=None if code not in (0, 2) else cuda.charged(), code=code)
