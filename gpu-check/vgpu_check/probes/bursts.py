"""A burst of 2 ms every 20 ms, as in inference: the time from its first launch to its end."""

import time

from . import talk
from .kernels import Kernels, gpu, ruler_of
from .work import PAUSE

PERIOD = 0.020
KERNELS = 4


def main(ruler, seconds):
    cuda = gpu()
    launch = Kernels(cuda, ruler_of(ruler), [500]).launcher(500)
    talk.step("ready")
    time.sleep(PAUSE)  # like the neighbour
    taken, start = [], time.monotonic()
    for number in range(int(float(seconds) / PERIOD)):
        time.sleep(max(0.0, start + number * PERIOD - time.monotonic()))
        begin = time.perf_counter_ns()
        for _ in range(KERNELS):
            launch()
        cuda.call("cuCtxSynchronize")
        taken.append(time.perf_counter_ns() - begin)
    talk.say("bursts", taken=taken)
