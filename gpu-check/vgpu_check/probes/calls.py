"""Times calls of the driver API, in ns.

Python's part of a call (about half a microsecond) is the same on both sides, so the difference is the
library's. With a C compiler, `bench/run.sh library --real-gpu` times the calls without it.
"""

import ctypes
import statistics
import time

from . import ptx, talk
from .cuda import Cuda

BATCH = 50
SIZE = 1 << 20


def median(call, samples, after=None):
    """Median ns of a call. `after` runs after each batch and is not timed (a full queue makes calls wait)."""
    found = []
    for sample in range(-5, samples):
        start = time.perf_counter_ns()
        for _ in range(BATCH):
            call()
        taken = time.perf_counter_ns() - start
        if after:
            after()
        if sample >= 0:
            found.append(taken / BATCH)
    return statistics.median(found)


class Calls:
    """Calls with prepared arguments, so that little more than the function is timed."""

    def __init__(self, cuda):
        self.cuda, self.pointer = cuda, ctypes.c_uint64(0)

    def prepared(self, name, *kinds):
        function = getattr(self.cuda.library, name)
        function.argtypes = kinds

        def checked(*arguments):
            code = function(*arguments)
            if code:
                raise RuntimeError("{} answers {}".format(name, code))

        return checked

    def pair(self, take, give, size, *stream):
        """An allocation and its release."""
        word, wide = ctypes.c_uint64, ctypes.c_size_t
        take = self.prepared(take, ctypes.c_void_p, wide, *[word for _ in stream])
        give = self.prepared(give, word, *[word for _ in stream])
        at = ctypes.addressof(self.pointer)

        def both():
            take(at, size, *stream)
            give(self.pointer.value, *stream)

        return both

    def info(self):
        call = self.prepared("cuMemGetInfo_v2", ctypes.c_void_p, ctypes.c_void_p)
        free, total = ctypes.c_size_t(0), ctypes.c_size_t(0)
        return lambda: call(ctypes.byref(free), ctypes.byref(total))

    def launch(self, function, stream=0):
        word, number = ctypes.c_uint64, ctypes.c_uint
        call = self.prepared("cuLaunchKernel", word, *[number] * 7, word, word, word)
        return lambda: call(function, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0)

    def graph(self, function, kernels):
        """The replay of a captured graph."""
        cuda = self.cuda
        stream = cuda.optional("cuStreamCreate", 1)
        cuda.call("cuStreamBeginCapture_v2", stream, 0)
        launch = self.launch(function, stream)
        for _ in range(kernels):
            launch()
        graph = ctypes.c_uint64(0)
        cuda.call("cuStreamEndCapture", stream, ctypes.byref(graph))
        ready = cuda.value("cuGraphInstantiateWithFlags", graph.value, 0)
        call = self.prepared("cuGraphLaunch", ctypes.c_uint64, ctypes.c_uint64)
        return lambda: call(ready, stream)


def main(samples):
    samples = int(samples)
    start = time.perf_counter_ns()
    cuda = Cuda(context=False)
    talk.say("time", name="load libcuda and cuInit", ns=time.perf_counter_ns() - start)
    start = time.perf_counter_ns()
    cuda.primary()
    talk.say("time", name="first context", ns=time.perf_counter_ns() - start)
    function = cuda.function(cuda.module(ptx.empty(cuda)), ptx.LAUNCHABLE)
    calls = Calls(cuda)

    def synchronize():
        cuda.call("cuCtxSynchronize")

    def timed(name, make, after=None):
        try:
            talk.say("time", name=name, ns=median(make(), samples, after))
        except (talk.Skip, RuntimeError) as reason:
            talk.say("absent", name=name, reason=str(reason))

    timed("cuMemAlloc + cuMemFree of 1 MiB", lambda: calls.pair("cuMemAlloc_v2", "cuMemFree_v2", SIZE))
    timed("cuMemAllocAsync + cuMemFreeAsync of 1 MiB", lambda: kept(calls), synchronize)
    timed("cuMemGetInfo", calls.info)
    timed("cuLaunchKernel of an empty kernel", lambda: calls.launch(function), synchronize)
    timed("cuGraphLaunch of 20 empty kernels", lambda: calls.graph(function, 20), synchronize)


def kept(calls):
    """From the default pool, which keeps freed memory."""
    cuda = calls.cuda
    pool = cuda.optional("cuDeviceGetDefaultMemPool", cuda.device)
    keep = ctypes.c_uint64((1 << 64) - 1)
    cuda.call("cuMemPoolSetAttribute", pool, 4, ctypes.byref(keep))
    return calls.pair("cuMemAllocAsync", "cuMemFreeAsync", SIZE, 0)
