"""Measures when a process that always has work runs on the GPU: the lengths of its runs and absences.

    events   many short kernels with an event after each; a late event shows an absence
    timer    one long kernel that reads %globaltimer
"""

import ctypes

from .. import spans
from . import ptx, talk
from .kernels import COARSEST, Kernels, gpu, memory, ruler_of, step_of_timer, words

KERNEL = 20  # us
LEAST = 100_000  # ns: less than a slice of the other process, more than the delay of an event
MOST = 8000


def main(way, ruler, ms):
    cuda = gpu()
    watch = {"events": by_events, "timer": by_timer}[way](cuda, ruler_of(ruler), int(ms))
    talk.step("ready")
    begin, gaps, end = watch()
    runs, absences = spans.split(begin, gaps, end)
    talk.say("spans", runs=runs, absences=absences)


def by_events(cuda, ruler, ms):
    count = ms * 1000 // KERNEL
    launch = Kernels(cuda, ruler, [KERNEL]).launcher(KERNEL)
    events = [ctypes.c_uint64(cuda.value("cuEventCreate", 0)) for _ in range(count)]
    record, elapsed = cuda.library.cuEventRecord, cuda.library.cuEventElapsedTime
    stream = ctypes.c_uint64(0)

    def watch():
        for event in events:
            launch()
            record(event, stream)
        cuda.call("cuCtxSynchronize")
        stamps, taken = [], ctypes.c_float(0)
        for event in events:
            code = elapsed(ctypes.byref(taken), events[0], event)
            if code:
                raise RuntimeError("cuEventElapsedTime answers {}".format(code))
            stamps.append(int(taken.value * 1_000_000))
        return spans.of_stamps(stamps, LEAST)

    return watch


def by_timer(cuda, _ruler, ms):
    step = step_of_timer(cuda)
    if step is None or step > COARSEST:
        steps = "{} ns".format(step) if step else "more than was read"
        raise talk.Skip("the GPU's timer advances in steps of " + steps)
    pointer = memory(cuda, 8 * (3 + 2 * MOST))
    function = cuda.function(cuda.module(ptx.absences(cuda, ms * 1_000_000, LEAST, MOST)), "absences")
    blocks = cuda.attribute(16) * max(1, cuda.attribute(39) // 1024)

    def watch():
        value = ctypes.c_uint64(pointer)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(value))
        cuda.call("cuLaunchKernel", function, blocks, 1, 1, 1024, 1, 1, 0, 0, parameters, None)
        cuda.call("cuCtxSynchronize")
        count, begin, end = words(cuda, pointer, 3)
        found = words(cuda, pointer + 24, 2 * count) if count else ()
        return begin, list(zip(found[::2], found[1::2])), end

    return watch
