"""The file of the driver that this process loads."""

import ctypes

from .talk import Skip, say


def main():
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise Skip(str(error))
    with open("/proc/self/maps") as maps:
        paths = [line.split(None, 5)[-1].strip() for line in maps if "/libcuda.so" in line]
    if not paths:
        raise Skip("no libcuda.so is mapped")
    say("driver_file", path=paths[0])
