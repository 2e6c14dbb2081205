"""The importing process of `ipc`: opens the object of each line and answers `ipc CODE`."""

import ctypes
import sys

from .cuda import Cuda, CudaError
from .ipc import POSIX_FILE_DESCRIPTOR, SIZE


class Handle(ctypes.Structure):
    """CUipcMemHandle, which is passed by value."""

    _fields_ = [("bytes", ctypes.c_char * 64)]


def open_handle(cuda, text):
    handle = Handle.from_buffer_copy(bytes.fromhex(text))
    pointer = ctypes.c_uint64(0)
    lazily = 1
    cuda.call("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), handle, ctypes.c_uint(lazily))
    return lambda: cuda.call("cuIpcCloseMemHandle", pointer.value)


def open_descriptor(cuda, text):
    handle = cuda.value("cuMemImportFromShareableHandle", int(text), POSIX_FILE_DESCRIPTOR)
    cuda.map(handle, SIZE)
    return lambda: None


def answer(act):
    code, made = 0, None
    try:
        made = act()
    except CudaError as error:
        code = error.code
    print("\nipc {}".format(code), flush=True)
    return made


def main():
    cuda = answer(Cuda)
    close = None
    for line in sys.stdin:
        word, _, text = line.strip().partition(" ")
        if word == "handle":
            close = answer(lambda text=text: open_handle(cuda, text))
        elif word == "descriptor":
            close = answer(lambda text=text: open_descriptor(cuda, text))
        else:
            answer(close)
