"""GPUtil, which parses what nvidia-smi prints: total, used and free in MiB."""
import setuptools  # The distutils that GPUtil imports: Python has none from 3.12 on.

import GPUtil

gpus = GPUtil.getGPUs()
print(len(gpus), *(f"{gpu.memoryTotal:.0f} {gpu.memoryUsed:.0f} {gpu.memoryFree:.0f}" for gpu in gpus))
