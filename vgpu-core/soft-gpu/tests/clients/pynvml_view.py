"""What nvidia-ml-py sees: GPUs, usable memory, reserved, used, and processes of GPU 0."""
import pynvml

pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
first = pynvml.nvmlDeviceGetMemoryInfo(gpu)
memory = pynvml.nvmlDeviceGetMemoryInfo(gpu, version=pynvml.nvmlMemory_v2)
assert first.total == memory.total and first.used == memory.used + memory.reserved, (first, memory)
assert memory.used + memory.free + memory.reserved == memory.total, memory
uuid = pynvml.nvmlDeviceGetUUID(gpu)
assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByUUID(uuid)) == uuid
bus = pynvml.nvmlDeviceGetPciInfo(gpu).busId
assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByPciBusId(bus)) == 0
assert "Software GPU" in pynvml.nvmlDeviceGetName(gpu)
processes = pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)
users = [f"{process.pid}:{process.usedGpuMemory}" for process in processes]
print(pynvml.nvmlDeviceGetCount(), memory.total - memory.reserved, memory.reserved, memory.used, *users)
pynvml.nvmlShutdown()
