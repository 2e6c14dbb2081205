# Requests 4 GiB from a CUDA library, in a share of 1 GiB: "held" and the driver's answer, or "lifted".
import ctypes
import sys

lib = ctypes.CDLL(sys.argv[1])


def call(name, *arguments):
    answer = getattr(lib, name)(*arguments)
    if answer == 0:
        return
    # CUDA_ERROR_OUT_OF_MEMORY is the limit, CUDA_ERROR_NOT_PERMITTED a refused process. Any other answer proves
    # nothing.
    print("held" if answer in (2, 800) else "broken", name, answer)
    sys.exit(0)


device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(4 << 30))
print("lifted")
