"""py3nvml, which lists processes by NVML's first version of that call: total, used, and each process with its bytes."""
from py3nvml import py3nvml

py3nvml.nvmlInit()
gpu = py3nvml.nvmlDeviceGetHandleByIndex(0)
memory = py3nvml.nvmlDeviceGetMemoryInfo(gpu)
assert memory.used + memory.free == memory.total
processes = py3nvml.nvmlDeviceGetComputeRunningProcesses(gpu)
print(py3nvml.nvmlDeviceGetCount(), memory.total, memory.used, *(f"{p.pid}:{p.usedGpuMemory}" for p in processes))
