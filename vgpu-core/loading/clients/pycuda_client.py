"""pycuda: allocations of its driver module, in a context that it creates."""
import sys

import pycuda.driver as cuda

limit = int(sys.argv[1])
cuda.init()
context = cuda.Device(0).make_context()
kept = cuda.mem_alloc(limit // 2)
try:
    cuda.mem_alloc(limit // 2 + 1)
    error = "none"
except cuda.MemoryError as raised:
    error = f"MemoryError {raised}"
free, total = cuda.mem_get_info()
print("answer", total, error, total - free, flush=True)
sys.stdin.read()
kept.free()
context.pop()
