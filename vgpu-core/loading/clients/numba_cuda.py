"""numba-cuda: arrays on the device."""
import sys

import numpy
from numba import cuda

limit = int(sys.argv[1])
context = cuda.current_context()
kept = cuda.device_array(limit // 2, dtype=numpy.uint8)
try:
    cuda.device_array(limit // 2 + 1, dtype=numpy.uint8)
    error = "none"
except Exception as raised:
    error = f"{type(raised).__name__} {raised}".replace("\n", " ")
free, total = context.get_memory_info()
print("answer", total, error, total - free, flush=True)
sys.stdin.read()
