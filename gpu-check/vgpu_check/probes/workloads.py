"""Typical uses of GPU time, as patterns of kernels of known length.

A workload is made of units, which it launches one after the other; only `launch and wait` waits for each. A unit's GPU
time is its length when units follow each other without a pause, bare and alone.
"""

import ctypes
import time

from .kernels import Kernels

MS = 1_000_000
CALIBRATED = 50 * MS


class Workload:
    def __init__(self, cuda, kernels, unit, us, longest=None, waits=False):
        self.cuda, self.kernels, self.unit, self.us, self.waits = cuda, kernels, unit, us, waits
        self.longest = longest or us  # of a kernel, or of a graph

    def synchronize(self):
        self.cuda.call("cuCtxSynchronize")

    def length(self):
        """ns of a unit: the least of several rounds, because other work on the CPU only makes them longer."""
        count, found = max(20, CALIBRATED // (self.us * 1000)), []
        for _ in range(5):
            start = time.perf_counter_ns()
            for _ in range(count):
                self.unit()
            self.synchronize()
            found.append((time.perf_counter_ns() - start) / count)
        return min(found)

    def run(self, seconds):
        """Runs for this time and until the GPU has finished; returns the work done."""
        before, units = self.kernels.rounds(), 0
        begin = time.monotonic_ns()
        end = begin + int(seconds * 1000 * MS)
        while time.monotonic_ns() < end:
            self.unit()
            units += 1
            if self.waits:
                self.synchronize()
        self.synchronize()
        taken = time.monotonic_ns()
        work = self.kernels.rounds() - before or units * self.us
        return {"units": units, "begin": begin, "end": taken, "work": work, "longest": self.longest * 1000}


def matmul(cuda, ruler):
    kernels = Kernels(cuda, ruler, [500])
    return Workload(cuda, kernels, kernels.launcher(500), 500)


def attention(cuda, ruler):
    """On each of four streams a long kernel and a short one."""
    kernels = Kernels(cuda, ruler, [200, 10])
    streams = [cuda.value("cuStreamCreate", 1) for _ in range(4)]
    launches = [kernels.launcher(us, stream) for stream in streams for us in (200, 10)]

    def unit():
        for launch in launches:
            launch()

    return Workload(cuda, kernels, unit, 840, longest=200)


def tiny(cuda, ruler):
    kernels = Kernels(cuda, ruler, [8])
    return Workload(cuda, kernels, kernels.launcher(8), 8)


def graph(cuda, ruler):
    """20 kernels, captured."""
    kernels = Kernels(cuda, ruler, [25])
    stream = cuda.value("cuStreamCreate", 1)
    cuda.call("cuStreamBeginCapture_v2", stream, 0)
    launch = kernels.launcher(25, stream)
    for _ in range(20):
        launch()
    captured = ctypes.c_uint64(0)
    cuda.call("cuStreamEndCapture", stream, ctypes.byref(captured))
    ready = cuda.value("cuGraphInstantiateWithFlags", captured.value, 0)
    return Workload(cuda, kernels, lambda: cuda.call("cuGraphLaunch", ready, stream), 500)


def wait(cuda, ruler):
    kernels = Kernels(cuda, ruler, [200])
    return Workload(cuda, kernels, kernels.launcher(200), 200, waits=True)


WORKLOADS = {make.__name__: make for make in (matmul, attention, tiny, graph, wait)}
