"""nvitop's own API: total, used, and each process with its bytes."""
from nvitop import Device

devices = Device.all()
gpu = devices[0]
processes = gpu.processes()
print(len(devices), gpu.memory_total(), gpu.memory_used(), *(f"{pid}:{p.gpu_memory()}" for pid, p in processes.items()))
