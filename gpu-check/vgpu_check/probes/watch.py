"""Outside the share: NVML's own account of one GPU, once a line on stdin."""

import sys

from .nvml import Nvml
from .talk import say


def main(index):
    nvml = Nvml()
    device = nvml.device(int(index))
    say("watching")
    while sys.stdin.readline():
        total, free, used = nvml.memory_v2(device) or nvml.memory(device)
        processes = {str(pid): used for pid, used in nvml.processes(device).items()}
        say("picture", used=used, free=free, total=total, processes=processes)
