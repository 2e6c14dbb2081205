"""The driver as a program finds it."""

import ctypes

from vgpu_check.probes import talk

from .basics import started

ATTRIBUTES = {
    "major": 75, "minor": 76, "processors": 16, "pageable_memory_access": 88, "concurrent_managed": 89,
    "host_page_tables": 100, "compute_preemption": 90, "pools": 115, "posix_handles": 103,
}


def driver():
    cuda, times = started()
    name = ctypes.create_string_buffer(100)
    cuda.call("cuDeviceGetName", name, 100, cuda.device)
    numbers = {one: cuda.attribute(number) for one, number in ATTRIBUTES.items()}
    with open("/proc/self/maps") as maps:
        files = sorted({line.split(None, 5)[-1].strip() for line in maps if "/libcuda.so" in line})
    version = cuda.value("cuDriverGetVersion", kind=ctypes.c_int)
    talk.figures(name=name.value.decode(), version=version, memory=cuda.memory(), files=files, attributes=numbers, **times)
