"""nvidia-ml-py: total, used, and each process with its bytes."""
import pynvml

pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
memory = pynvml.nvmlDeviceGetMemoryInfo(gpu)
second = pynvml.nvmlDeviceGetMemoryInfo(gpu, version=pynvml.nvmlMemory_v2)
assert (memory.total, memory.used, memory.free) == (second.total, second.used, second.free), (memory, second)
assert memory.used + memory.free == memory.total
processes = pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)
print(pynvml.nvmlDeviceGetCount(), memory.total, memory.used, *(f"{p.pid}:{p.usedGpuMemory}" for p in processes))
