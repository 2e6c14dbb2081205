"""Prints NVML's figures of one GPU for each line on stdin; runs outside the share."""

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
