"""taichi: an array on the device; what does not fit is an error of its own. It has no call for sizes."""
import sys

import taichi

limit = int(sys.argv[1])
taichi.init(arch=taichi.cuda, device_memory_GB=0.25, offline_cache=False, log_level=taichi.ERROR)
kept = taichi.ndarray(taichi.u8, limit // 2)
try:
    taichi.ndarray(taichi.u8, limit // 2)
    taichi.sync()
    error = "none"
except RuntimeError as raised:
    error = f"RuntimeError {raised}".replace("\n", " ")
print("answer", "-", error, "-", flush=True)
sys.stdin.read()
