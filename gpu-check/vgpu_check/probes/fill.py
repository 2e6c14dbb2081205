"""Allocates by one path of the driver API until it is refused, frees all, and allocates again.

    "ready" ─► large chunks until refused ─► small ones ─► "full" ─► all freed, one again ─► "freed"

A path that exceeds the limit is stopped soon after, because others may use the GPU.
"""

from . import ptx, talk
from .cuda import ABSENT, Cuda, CudaError

SMALL = 2 << 20


class Filling:
    """The memory allocated so far, and how to free each piece."""

    def __init__(self, limit):
        self.limit, self.got, self.undo, self.code = limit, 0, [], 0

    def chunks(self, take, size):
        """Allocates until refused, or until it is clear that there is no limit."""
        while self.got <= self.limit:
            try:
                self.undo.append(take(size))
            except CudaError as error:
                if not self.undo and error.code in ABSENT:
                    raise talk.Skip(str(error))
                self.code = error.code
                return
            self.got += size


def takers(cuda):
    """Returns {path: function that allocates a size and returns a function that frees it}."""
    def from_pool(size):
        return cuda.pool_alloc(size, cuda.pools[0] if cuda.pools else cuda.pool())

    def created(size):
        handle = cuda.create(size)
        return lambda: cuda.call("cuMemRelease", handle)

    def module(size):
        loaded = cuda.module(ptx.variable(cuda, size))
        return lambda: cuda.call("cuModuleUnload", loaded)

    row = 32 << 10  # bytes; of 2048 elements of four floats
    return {
        "cuMemAlloc": cuda.alloc,
        "cuMemAllocPitch": lambda size: cuda.pitched(row, size // row),
        "cuMemAllocManaged": cuda.managed,
        "cuMemAllocAsync": cuda.pool_alloc,
        "cuMemAllocFromPoolAsync": from_pool,
        "cuMemCreate": created,
        "cuArrayCreate": lambda size: cuda.array(2048, size // row),
        "cuMipmappedArrayCreate": lambda size: cuda.array(2048, size // row, levels=1),
        "cuGraphAddMemAllocNode": cuda.graph_alloc,
        "cuModuleLoadData": module,
    }


def main(path, limit):
    cuda, limit = Cuda(), int(limit)
    take = takers(cuda)[path]
    before = cuda.charged()
    talk.step("ready", charged=before)
    filling = Filling(limit)
    large = max(SMALL, limit // 16 // SMALL * SMALL)
    filling.chunks(take, large)
    refused = filling.code
    # Each piece compiles a module, so use fewer pieces.
    filling.chunks(take, SMALL if path != "cuModuleLoadData" else max(SMALL, large // 8))
    talk.step("full", charged=cuda.charged(), got=filling.got, code=filling.code or refused, before=before)
    for undo in filling.undo:
        undo()
    cuda.call("cuCtxSynchronize")
    if "Async" in path:
        cuda.trim()
    freed = cuda.charged()
    again = 0
    try:
        take(large)()
    except CudaError as error:
        again = error.code
    talk.step("freed", charged=freed, before=before, again=again)

