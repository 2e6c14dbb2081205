"""A process with 2 GiB of known content and running kernels, and one that checkpoints and restores it."""

import ctypes
import os
import threading
import time
import zlib

from vgpu_check.probes import talk
from vgpu_check.probes.cuda import Cuda, CudaError
from vgpu_check.probes.kernels import Kernels, Ruler

from .basics import alloc, timed

CHUNK, CHUNKS = 64 << 20, 32
STATES = ("running", "locked", "checkpointed", "failed")
UNSUPPORTED = 801
LOCK_MS = 8000


def fill(cuda):
    """[(address, checksum)] of chunks that all differ."""
    block, kept = os.urandom(CHUNK), []
    for at in range(CHUNKS):
        turned = block[at * 4099 :] + block[: at * 4099]
        code, place = alloc(cuda, CHUNK)
        if code:
            raise CudaError("cuMemAlloc", code)
        cuda.call("cuMemcpyHtoD_v2", place, turned, CHUNK)
        kept.append((place, zlib.crc32(turned)))
    return kept


def target():
    cuda, context = Cuda(), ctypes.c_void_p()
    cuda.call("cuCtxGetCurrent", ctypes.byref(context))
    kept = fill(cuda)
    launch = Kernels(cuda, Ruler("clock64", "rounds", 1.0), [200]).launcher(200)
    done, errors, has_ended = [], [], threading.Event()

    def loop():
        cuda.call("cuCtxSetCurrent", context)
        while not has_ended.is_set() and not errors:
            try:
                launch()
                cuda.call("cuCtxSynchronize")
                done.append(1)
            except CudaError as error:
                errors.append(str(error))

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    time.sleep(0.3)
    charged = cuda.charged()
    talk.step("ready", charged=charged)
    before, buffer = len(done), ctypes.create_string_buffer(CHUNK)
    time.sleep(0.3)
    goes_on, wrong = len(done) > before, 0
    for place, checksum in kept:
        cuda.call("cuMemcpyDtoH_v2", buffer, place, CHUNK)
        wrong += zlib.crc32(buffer.raw) != checksum
    has_ended.set()
    thread.join(5)
    talk.figures(goes_on=goes_on, errors=list(errors), wrong_chunks=wrong, charge_moved=cuda.charged() - charged)
    talk.step("verified", charged=cuda.charged())


def operate(pid):
    """Lock, checkpoint, restore and unlock of another process: code, ms, and its state after each."""
    cuda, pid, state = Cuda(context=False), int(pid), ctypes.c_int(0)
    if not cuda.has("cuCheckpointProcessLock"):
        raise talk.Skip("this driver has no cuCheckpointProcessLock")
    lock = (ctypes.c_uint * 16)(LOCK_MS)  # CUcheckpointLockArgs: its time-out, and zeros
    for name, arguments in (("Lock", lock), ("Checkpoint", None), ("Restore", None), ("Unlock", None)):
        ms, code = timed(lambda: cuda.code("cuCheckpointProcess" + name, pid, arguments))
        cuda.code("cuCheckpointProcessGetState", pid, ctypes.byref(state))
        talk.figures(**{name: [code, round(ms, 1), STATES[state.value & 3]]})
        if code == UNSUPPORTED:
            raise talk.Skip("cuCheckpointProcess{} answers {}".format(name, code))
        if code:
            raise CudaError("cuCheckpointProcess" + name, code)
        talk.step(name, pids=[pid])
