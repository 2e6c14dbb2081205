"""cuda-core: its default memory resource is a pool, and NVML is its system module."""
import sys

from cuda.bindings import driver
from cuda.core import Device, system

limit = int(sys.argv[1])
device = Device(0)
device.set_current()
stream = device.create_stream()
kept = device.allocate(limit // 2, stream=stream)
stream.sync()
try:
    device.allocate(limit // 2 + (2 << 20), stream=stream)
    error = "none"
except Exception as raised:
    error = f"{type(raised).__name__} {str(raised).split(':')[0]}"
_, free, total = driver.cuMemGetInfo()
memory = system.Device(index=0).memory_info
assert (memory.total, memory.used) == (total, total - free), (memory.total, memory.used, total, free)
print("answer", total, error, total - free, flush=True)
sys.stdin.read()
