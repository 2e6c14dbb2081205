"""Several processes of one share: two that together ask for too much, fork, managed memory beside modules."""

import os

from vgpu_check.probes import ptx, talk
from vgpu_check.probes.cuda import Cuda

from .basics import alloc, timed

MIB = 1 << 20


def hold(mib):
    """Allocates, waits, and allocates again."""
    cuda = Cuda()
    talk.figures(code=alloc(cuda, int(mib) * MIB)[0])
    talk.step("held", charged=cuda.charged())
    talk.figures(again=alloc(cuda, int(mib) * MIB)[0])


def fork():
    """A child that uses the GPU before its parent does, and one that is only forked and ends."""

    def child(work):
        pid = os.fork()
        if pid == 0:
            os._exit(work())
        return os.waitpid(pid, 0)[1]

    first = child(lambda: alloc(Cuda(), 64 * MIB)[0])
    cuda = Cuda()
    own, before = alloc(cuda, 64 * MIB)[0], cuda.charged()
    talk.figures(child=first, parent=own, only_forked=child(lambda: 0), lost=before - cuda.charged())


def managed():
    """Small: managed memory of a shared machine should not be pushed out."""
    cuda = Cuda()

    def load():
        return round(timed(lambda: cuda.module(ptx.many(cuda, 200)))[0], 2)

    first = load()
    talk.step("before", charged=cuda.charged())
    cuda.managed(128 * MIB)
    talk.step("128 MiB managed", charged=cuda.charged())
    talk.figures(load_ms=first, loads_beside_managed_ms=[load() for _ in range(3)])
    talk.step("3 modules", charged=cuda.charged())
