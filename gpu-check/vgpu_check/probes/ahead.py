"""Calls with implicit memory: contexts, and the memory reserved by a context's limits. The library must charge it before
it asks the driver, also for several processes that NVML begins to list at the same time.

    limit       one process asks again and again for a heap beyond the share
    newcomers   processes that create their contexts at once each ask for a heap of more than half of the share

    ahead ── go, heap BYTES, end ──► ahead_newcomer (its children)
"""

import os
import subprocess
import sys

from . import talk
from .cuda import ABSENT, DEVICE_UNAVAILABLE, OUT_OF_MEMORY, Cuda

MALLOC_HEAP_SIZE = 2
ROUNDS = 20
NEWCOMERS = 4
PROBE = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "probe.py")


def worst(codes):
    """The first code other than out of memory, else out of memory."""
    return next((code for code in codes if code != OUT_OF_MEMORY), OUT_OF_MEMORY)


def limit(share):
    cuda = Cuda()
    talk.step("ready", charged=cuda.charged())
    codes = [cuda.code("cuCtxSetLimit", MALLOC_HEAP_SIZE, share + (256 << 20)) for _ in range(ROUNDS)]
    if worst(codes) in ABSENT:
        raise talk.Skip("cuCtxSetLimit answers {}".format(worst(codes)))
    talk.step("asked", charged=cuda.charged(), code=worst(codes), granted=codes.count(0), most=0)


class Newcomer:
    def __init__(self):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen([sys.executable, PROBE, "ahead_newcomer"], universal_newlines=True, **pipes)
        self.answer()

    def tell(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def answer(self):
        """The code of the requested call; the check's own time-out ends the probe if it hangs."""
        for line in self.process.stdout:
            if line.startswith("ahead "):
                return int(line.split()[1])
        raise RuntimeError("a newcomer ended")


def all_at_once(newcomers, text):
    for newcomer in newcomers:
        newcomer.tell(text)
    return [newcomer.answer() for newcomer in newcomers]


def newcomers(share):
    talk.step("ready", charged=0)
    started = [Newcomer() for _ in range(NEWCOMERS)]
    contexts = all_at_once(started, "go")
    if any(code in ABSENT or code == DEVICE_UNAVAILABLE for code in contexts):
        raise talk.Skip("contexts at once answer {}".format(contexts))
    # A context that does not fit is also refused.
    begun = [newcomer for newcomer, code in zip(started, contexts) if code == 0]
    heaps = all_at_once(begun, "heap {}".format(share // 100 * 60))
    refused = [code for code in contexts + heaps if code not in (0, OUT_OF_MEMORY)]
    pids = [os.getpid()] + [newcomer.process.pid for newcomer in started]
    code = refused[0] if refused else OUT_OF_MEMORY
    talk.step("asked", charged=None, code=code, granted=heaps.count(0), most=1, pids=pids)
    for newcomer in started:
        newcomer.process.stdin.close()
        newcomer.process.wait()


def main(what, share):
    {"limit": limit, "newcomers": newcomers}[what](int(share))
