"""Samples NVML's utilisation of one GPU, outside the shares, until a line on stdin; then prints all samples."""

import ctypes
import select
import sys
import time

from .nvml import Nvml
from .talk import say

INTERVAL = 0.05


def main(index):
    nvml = Nvml()
    device = nvml.device(int(index))
    samples, figures = [], (ctypes.c_uint * 2)()
    say("watching")
    while not select.select([sys.stdin], [], [], INTERVAL)[0]:
        if nvml.code("nvmlDeviceGetUtilizationRates", device, figures) == 0:
            samples.append((time.monotonic_ns(), figures[0]))
    say("samples", samples=samples)
