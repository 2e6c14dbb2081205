"""Reads the GPU's total through a function that was looked up in the driver's own file, in one of several ways."""

import ctypes
import os
import shutil
import tempfile

from . import talk

RTLD_NOW = 2
NEW_NAMESPACE = ctypes.c_long(-1)  # LM_ID_NEWLM


def by_path(path):
    return ctypes.CDLL(path)


def by_another_name(path):
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, "other.so")
        shutil.copyfile(path, copy)
        return ctypes.CDLL(copy)


def in_the_global_scope(path):
    ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(None)


class InNamespace:
    """Functions of a library in a namespace of its own, by name."""

    def __init__(self, path):
        self.loader = ctypes.CDLL(None)
        for function in (self.loader.dlmopen, self.loader.dlsym):
            function.restype = ctypes.c_void_p
        self.handle = self.loader.dlmopen(NEW_NAMESPACE, path.encode(), RTLD_NOW)
        if not self.handle:
            raise talk.Skip("dlmopen does not open it")

    def __getattr__(self, name):
        address = self.loader.dlsym(ctypes.c_void_p(self.handle), name.encode())
        if not address:
            raise AttributeError(name)
        return ctypes.CFUNCTYPE(ctypes.c_int)(address)


WAYS = {
    "by its path": by_path,
    "under another name": by_another_name,
    "in the global scope": in_the_global_scope,
    "by dlmopen": InNamespace,
}


def main(way, path):
    library = WAYS[way](path)
    device, total = ctypes.c_int(0), ctypes.c_size_t(0)
    calls = (
        ("cuInit", (ctypes.c_uint(0),)),
        ("cuDeviceGet", (ctypes.byref(device), ctypes.c_int(0))),
        ("cuDeviceTotalMem_v2", (ctypes.byref(total), device)),
    )
    for name, arguments in calls:
        # Before the next call: it reads what this one has written.
        code = getattr(library, name)(*arguments)
        if code:
            raise RuntimeError("{} answers {}".format(name, code))
    talk.say("seen", name="cuDeviceTotalMem of the driver's file, " + way, total=total.value)
