"""Kernels of known length, which count their work.

Their length is a time, or a number of rounds of work with the same length while nobody else uses the GPU: like real
kernels, the latter take longer beside another process.

Time is by %globaltimer, which does not depend on the GPU's clock rate. Where it advances in too large steps (up to 1 ms,
on some GPUs), and on the software GPU, whose kernels read nothing, it is by clock64, calibrated against the host's clock.
The software GPU also has kernels with these names, which take the time in the name.
"""

import ctypes
import struct
import time

from . import ptx, talk
from .cuda import DEVICE_UNAVAILABLE, Cuda, CudaError

READINGS = 4096
# Kernels of a few us can still be distinguished from the next length.
COARSEST = 1500
CALIBRATION = 100_000_000  # ticks


def gpu():
    """The GPU for probes that share it with another process."""
    try:
        return Cuda()
    except CudaError as error:
        if error.code == DEVICE_UNAVAILABLE:
            raise talk.Skip("the GPU is in the compute mode Exclusive Process")
        raise


def memory(cuda, size):
    """An address of `size` bytes of zeros."""
    pointer = cuda.value("cuMemAlloc_v2", size)
    cuda.call("cuMemsetD8_v2", pointer, 0, size)
    cuda.call("cuCtxSynchronize")
    return pointer


def words(cuda, pointer, count):
    """Reads `count` words of 64 bits."""
    buffer = ctypes.create_string_buffer(8 * count)
    cuda.call("cuMemcpyDtoH_v2", buffer, pointer, 8 * count)
    return struct.unpack("<{}Q".format(count), buffer.raw)


def step_of_timer(cuda):
    """ns by which %globaltimer advances at a time; None if it was not seen to advance."""
    pointer = memory(cuda, 8 * READINGS)
    cuda.launch(cuda.function(cuda.module(ptx.readings(cuda, READINGS)), "readings"), [pointer])
    read = words(cuda, pointer, READINGS)
    cuda.call("cuMemFree_v2", pointer)
    steps = [after - before for before, after in zip(read, read[1:]) if after > before]
    return min(steps) if steps else None


class Ruler:
    """How kernels end: after `per_us` ticks of a clock per microsecond, or after rounds."""

    def __init__(self, clock, until, per_us):
        self.clock, self.until, self.per_us = clock, until, float(per_us)

    def text(self):
        return "{}:{}:{}".format(self.clock, self.until, self.per_us)


def ruler_of(text):
    return Ruler(*text.split(":"))


def find_ruler(cuda):
    """Returns (ruler, the timer's step). Nothing else may use the GPU."""
    step = step_of_timer(cuda)
    if step and step <= COARSEST:
        return Ruler("globaltimer", "time", 1000), step
    pointer = memory(cuda, 16)
    function = cuda.function(cuda.module(ptx.spin(cuda, "clock64", "time", {1: CALIBRATION})), "time_1us")
    cuda.launch(function, [pointer])  # clocks rise with the load
    start = time.perf_counter_ns()
    cuda.launch(function, [pointer])
    taken = time.perf_counter_ns() - start
    cuda.call("cuMemFree_v2", pointer)
    return Ruler("clock64", "time", CALIBRATION * 1000 / taken), step


class Kernels:
    """Kernels of some lengths (us), on all multiprocessors: so large that two of them cannot run at the same time."""

    def __init__(self, cuda, ruler, lengths):
        self.cuda = cuda
        numbers = {us: max(1, int(us * ruler.per_us)) for us in lengths}
        module = cuda.module(ptx.spin(cuda, ruler.clock, ruler.until, numbers))
        self.functions = {us: cuda.function(module, "time_{}us".format(us)) for us in lengths}
        self.counter = memory(cuda, 16)
        self.value = ctypes.c_uint64(self.counter)
        self.parameters = (ctypes.c_void_p * 1)(ctypes.addressof(self.value))
        threads, processors = cuda.attribute(39), cuda.attribute(16)
        self.blocks = processors * max(1, threads // 1024)

    def launcher(self, us, stream=0):
        """A function that launches one, with prepared arguments."""
        word, number = ctypes.c_uint64, ctypes.c_uint
        function = self.cuda.library.cuLaunchKernel
        numbers = [number(at) for at in (self.blocks, 1, 1, 1024, 1, 1, 0)]
        arguments = (word(self.functions[us]), *numbers, word(stream), self.parameters, None)

        def launch():
            code = function(*arguments)
            if code:
                raise CudaError("cuLaunchKernel", code)

        return launch

    def rounds(self):
        """The rounds of all kernels so far; 0 on the software GPU, whose kernels do not compute."""
        return words(self.cuda, self.counter, 1)[0]
