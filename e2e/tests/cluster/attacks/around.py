# Allocates memory through a CUDA library, a GiB each time, prints how much, and keeps it.
import ctypes
import sys
import time

lib = ctypes.CDLL(sys.argv[1])


def call(name, *arguments):
    answer = getattr(lib, name)(*arguments)
    if answer != 0:
        sys.exit(f"{name}: {answer}")


device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
for _ in range(int(sys.argv[2])):
    call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(1 << 30))
print("taken", flush=True)
while True:
    time.sleep(1)
