"""Reads a program's view of its GPU through the driver API and NVML."""

import ctypes

from . import talk
from .cuda import Cuda
from .nvml import Nvml


def main():
    cuda = Cuda()
    talk.say("seen", name="cuMemGetInfo", total=cuda.memory()[1])
    talk.say("seen", name="cuDeviceTotalMem", total=cuda.value("cuDeviceTotalMem_v2", cuda.device))
    talk.say("seen", name="cuDeviceGetCount", count=cuda.value("cuDeviceGetCount", kind=ctypes.c_int))
    nvml = Nvml()
    talk.say("seen", name="nvmlDeviceGetCount", count=nvml.count())
    device = nvml.device(0)
    talk.say("seen", name="nvmlDeviceGetMemoryInfo", total=nvml.memory(device)[0])
    second = nvml.memory_v2(device)
    if second:
        talk.say("seen", name="nvmlDeviceGetMemoryInfo_v2", total=second[0])
