"""One process opens another one's memory in the same share: which of them is charged, and which does NVML list.

    ipc (exporter) ── handle in hex, or a descriptor ──► ipc_import (importer, its child)
"""

import ctypes
import os
import subprocess
import sys

from . import talk
from .cuda import ABSENT, DEVICE_UNAVAILABLE, Cuda, CudaError

SIZE = 64 << 20
POSIX_FILE_DESCRIPTOR = 1
PROBE = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "probe.py")


class Importer:
    """The importing process, which gets one line for each object to open."""

    def __init__(self, *descriptors):
        command = [sys.executable, PROBE, "ipc_import"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, universal_newlines=True, pass_fds=descriptors, **pipes)
        self.answer()

    def answer(self):
        """Its next line; the check's own time-out ends it if it hangs."""
        for line in self.process.stdout:
            if line.startswith("ipc "):
                code = int(line.split()[1])
                if code in ABSENT or code == DEVICE_UNAVAILABLE:
                    raise talk.Skip("the second process is answered {}".format(code))
                if code:
                    raise CudaError("the second process", code)
                return
        raise CudaError("the second process ended", -1)

    def say(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        self.answer()

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def step(cuda, name, importer, base=False):
    talk.step(name, charged=cuda.charged(), base=base, fixed=False, pids=[os.getpid(), importer.process.pid])


def legacy(cuda):
    """cuIpcGetMemHandle: of memory of cuMemAlloc."""
    pointer = cuda.value("cuMemAlloc_v2", SIZE)
    handle = ctypes.create_string_buffer(64)
    code = cuda.code("cuIpcGetMemHandle", handle, pointer)
    if code in ABSENT:
        raise talk.Skip("cuIpcGetMemHandle answers {}".format(code))
    if code:
        raise CudaError("cuIpcGetMemHandle", code)
    importer = Importer()
    step(cuda, "", importer, base=True)
    importer.say("handle " + handle.raw.hex())
    step(cuda, "64 MiB opened by a second process (cuIpcOpenMemHandle)", importer)
    importer.say("close")
    step(cuda, "the same, closed", importer)
    importer.end()
    cuda.call("cuMemFree_v2", pointer)


def descriptor(cuda):
    """cuMemExportToShareableHandle: of memory of cuMemCreate."""
    handle = cuda.create(SIZE, exported=True)
    number = ctypes.c_int(-1)
    code = cuda.code("cuMemExportToShareableHandle", ctypes.byref(number), handle, POSIX_FILE_DESCRIPTOR, 0)
    if code in ABSENT:
        raise talk.Skip("cuMemExportToShareableHandle answers {}".format(code))
    if code:
        raise CudaError("cuMemExportToShareableHandle", code)
    importer = Importer(number.value)
    step(cuda, "", importer, base=True)
    importer.say("descriptor {}".format(number.value))
    step(cuda, "64 MiB imported by a second process (cuMemImportFromShareableHandle)", importer)
    importer.end()
    cuda.call("cuMemRelease", handle)


def main(way, _limit):
    {"handle": legacy, "descriptor": descriptor}[way](Cuda())
