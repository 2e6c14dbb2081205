"""The whole of gpu-check, quickly."""

import time

from .s09_node import gpu_check

TITLE, LIMIT = "gpu-check", 240


def run_stage(kit):
    seconds = int(min(LIMIT, kit.end - time.monotonic())) - 10
    gpu_check(kit, "gpu-check --quick", seconds, "--time", seconds - 10)
