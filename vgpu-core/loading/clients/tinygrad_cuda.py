"""tinygrad with DEV=CUDA: buffers of its allocator."""
import ctypes
import sys

from tinygrad import Device, dtypes
from tinygrad.device import Buffer
from tinygrad.runtime.autogen import cuda

limit = int(sys.argv[1])
device = Device["CUDA"]
kept = Buffer("CUDA", limit // 2, dtypes.uint8).allocate()
try:
    Buffer("CUDA", limit // 2 + 1, dtypes.uint8).allocate()
    error = "none"
except MemoryError as raised:
    error = f"MemoryError {raised}".replace("\n", " ")
free, total = ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
print("answer", total.value, error, total.value - free.value, flush=True)
sys.stdin.read()
