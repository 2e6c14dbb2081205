"""Failures for the self-test, each under a share only."""

import ctypes
import glob
import os
import sys
import time

from vgpu_check.probes import talk
from vgpu_check.probes.cuda import Cuda, CudaError

LAUNCH_FAILED, NOT_PERMITTED = 719, 800


def fail(kind):
    cuda = Cuda()
    talk.figures(answer=1)
    limits = glob.glob((os.environ.get("VGPU_RUN_DIR") or "/run/vgpu") + "/*/limits")
    if kind == "in both":
        raise CudaError("cuPlanted", LAUNCH_FAILED)
    if not limits:
        return
    with open(limits[0]) as file:
        is_unlimited = "Unlimited" in file.read()
    if kind == "policy" and not is_unlimited:
        raise CudaError("cuPlanted", LAUNCH_FAILED)
    if kind == "crash":
        cuda.library.cuMemGetInfo_v2(ctypes.c_void_p(8), ctypes.c_void_p(8))
    elif kind == "hang":
        wait = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: time.sleep(1000))
        cuda.call("cuLaunchHostFunc", None, wait, None)  # from within libcuda
        cuda.call("cuCtxSynchronize")
    elif kind == "noise":
        sys.stderr.write("libplanted: something odd at 0x1234\n")
    elif kind == "wrong":
        talk.figures(answer=2)
    elif kind in ("error", "refused"):
        raise CudaError("cuPlanted", LAUNCH_FAILED if kind == "error" else NOT_PERMITTED)
