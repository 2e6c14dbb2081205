"""Contexts of one process, and what each adds to its charge."""

from vgpu_check.probes import talk

from .basics import started


def main(*counts):
    cuda, times = started()
    talk.figures(**times)
    for before, count in zip((1, *map(int, counts)), map(int, counts)):
        for _ in range(count - before):
            cuda.value("cuCtxCreate_v2", 0, cuda.device)
        talk.step("{} contexts".format(count), charged=cuda.charged())
