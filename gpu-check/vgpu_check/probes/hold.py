"""Allocates memory without a share, so that the check finds out how NVML reports a process here."""

from . import talk
from .cuda import Cuda

SIZE = 256 << 20


def main():
    cuda = Cuda()
    cuda.alloc(SIZE)
    talk.step("held", size=SIZE)
