"""Loads PyTorch and every library of NVIDIA's wheels beside it, and prints what each says. No GPU is needed: what it says
without one has to be the same under a share. See docs/loading.md."""

import ctypes
import re
import sys
from pathlib import Path

import torch
import torch.profiler

print("torch", torch.__version__, "for CUDA", torch.version.cuda)
print("is_available", torch.cuda.is_available(), "device_count", torch.cuda.device_count())
print("cuDNN", torch.backends.cudnn.version(), "NCCL", torch.cuda.nccl.version())
try:
    torch.zeros(1, device="cuda")
except Exception as error:
    print("a tensor:", type(error).__name__, str(error).splitlines()[0])
with torch.profiler.profile() as profile:
    torch.ones(8).sum()
print("profiler", len(profile.key_averages()) > 0)
try:
    import triton

    print("triton", triton.__version__, triton.runtime.driver.active)
except Exception as error:
    print("triton:", type(error).__name__, str(error).splitlines()[0])
try:
    from cuda.bindings import driver

    print("cuda-bindings", driver.cuInit(0), driver.cuDriverGetVersion())
except Exception as error:
    print("cuda-bindings:", type(error).__name__, str(error).splitlines()[0])

wheels = Path(torch.__file__).parent.parent / "nvidia"
loaded = {}
waiting = sorted(path for path in wheels.rglob("*.so*") if re.search(r"\.so(\.\d+)*$", path.name))
errors = {}
while waiting:  # One may need another one that comes later.
    left = []
    for path in waiting:
        try:
            loaded[path.name] = ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
        except OSError as error:
            errors[path.name] = str(error).split(": ", 1)[-1]
            left.append(path)
    if len(left) == len(waiting):
        break
    waiting = left
for name in sorted([*loaded, *(path.name for path in waiting)]):
    print("loaded" if name in loaded else f"not loaded ({errors[name]})", name)


def call(library, function, *arguments):
    """The code that a function of the library returns."""
    for name, handle in loaded.items():
        if name.startswith(library + ".so"):
            print(function, getattr(handle, function)(*arguments))
            return
    print(function, "no library", library)


number, handle = ctypes.c_int(-1), ctypes.c_void_p()
call("libcudart", "cudaGetDeviceCount", ctypes.byref(number))
call("libcudart", "cudaMalloc", ctypes.byref(handle), ctypes.c_size_t(1 << 20))
call("libcublas", "cublasCreate_v2", ctypes.byref(handle))
call("libcublasLt", "cublasLtCreate", ctypes.byref(handle))
call("libcudnn", "cudnnCreate", ctypes.byref(handle))
call("libcusolver", "cusolverDnCreate", ctypes.byref(handle))
call("libcusparse", "cusparseCreate", ctypes.byref(handle))
call("libcufft", "cufftCreate", ctypes.byref(number))
call("libcupti", "cuptiSubscribe", ctypes.byref(handle), None, None)
call("libnccl", "ncclGetVersion", ctypes.byref(number))
call("libnccl", "ncclCommInitAll", ctypes.byref(handle), 1, None)
sys.stdout.flush()
