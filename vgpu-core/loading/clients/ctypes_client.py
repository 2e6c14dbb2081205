"""c/client.c's questions by ctypes: ORDER LIMIT CUDA NVML REAL COMPAT."""
import ctypes
import sys

GRANULE = 2 << 20
order, limit, names, real, compat = sys.argv[1], int(sys.argv[2]), sys.argv[3:5], sys.argv[5], sys.argv[6]
says = {"cuda": [-1] * 5, "nvml": [-1] * 3}


def allocate(cuda, size):
    return cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(size))


def use_cuda():
    cuda = ctypes.CDLL(names[0])
    context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    init = cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    init = init or cuda.cuCtxSetCurrent(context) or cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    sizes = [limit + GRANULE, limit // 2, limit // 2 + GRANULE]
    says["cuda"] = [init, total.value, *(allocate(cuda, size) if not init else -1 for size in sizes)]


def use_nvml():
    nvml = ctypes.CDLL(names[1])
    device, memory = ctypes.c_void_p(), (ctypes.c_uint64 * 3)()
    init = nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
    init = init or nvml.nvmlDeviceGetMemoryInfo(device, memory)
    says["nvml"] = [init, memory[0], memory[2]]


if order in ("path", "compat"):
    ctypes.CDLL(real if order == "path" else compat)
if order == "nvml":
    use_nvml()
use_cuda()
use_nvml()
print("cuda", *says["cuda"], "nvml", *says["nvml"], flush=True)
sys.stdin.read()
