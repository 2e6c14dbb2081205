"""What several probes share; the canary and the truth from outside the shares."""

import ctypes
import time

from vgpu_check.probes import talk
from vgpu_check.probes.cuda import Cuda
from vgpu_check.probes.nvml import Nvml


def timed(call):
    """(ms, result)"""
    start = time.perf_counter()
    result = call()
    return (time.perf_counter() - start) * 1e3, result


def started():
    """A Cuda with a context, and the ms of cuInit and of the first context."""
    init, cuda = timed(lambda: Cuda(context=False))
    context, _ = timed(cuda.primary)
    return cuda, {"init_ms": init, "context_ms": context}


def alloc(cuda, size):
    """(code, address)"""
    pointer = ctypes.c_uint64(0)
    return cuda.code("cuMemAlloc_v2", ctypes.byref(pointer), size), pointer.value


def canary():
    """Does the GPU answer?"""
    cuda, times = started()
    talk.figures(code=alloc(cuda, 2 << 20)[0], **times)


def watch(index):
    """Keeps NVML open; each step has the GPU's memory, that of each process, and the us of that list."""
    nvml = Nvml()
    device = nvml.device(int(index))
    while True:
        memory, reserved = nvml.memory_v2(device) or nvml.memory(device), nvml.reserved(device)
        ms, listed = timed(lambda: nvml.processes(device))
        held = {str(pid): used for pid, used in listed.items() if used is not None}
        talk.step("truth", used=memory[2], total=memory[0], reserved=reserved, held=held, us=ms * 1e3)
