"""Every look-up by cuGetProcAddress: its code and status, and the symbol that it finds."""

import ctypes
import hashlib
import itertools
import json
import re

from vgpu_check.probes import talk
from vgpu_check.probes.cuda import Cuda

from ..elf import exports

VERSIONS = [2000, 3020, 4000, 5000, 6000, 6050, 7000, 7050, 8000, 9000, 9020, 10000, 10010, 10020, 11000, 11010, 11020, 11030,
            11040, 11050, 11060, 11070, 11080, 12000, 12010, 12020, 12030, 12040, 12050, 12060, 12080, 12090, 13000, 13010, 13050]
FLAGS = (0, 1, 2)


class Info(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p), ("address", ctypes.c_void_p)]


def main(libcuda, file):
    cuda, info, found, unnamed = Cuda(context=False), Info(), {}, 0
    names = {re.sub(r"(_v\d+)?(_pt[sd]z?s?)?$", "", name) for name in exports(libcuda) if name.startswith("cu") and not name.startswith("cudbg")}
    look, dladdr, pointer, status = cuda.library.cuGetProcAddress_v2, ctypes.CDLL(None).dladdr, ctypes.c_void_p(), ctypes.c_int()
    for name, version, flag in itertools.product(sorted(names), VERSIONS, FLAGS):
        pointer.value, status.value, symbol = None, -1, None
        code = look(name.encode(), ctypes.byref(pointer), version, ctypes.c_uint64(flag), ctypes.byref(status))
        if pointer.value:
            is_named = dladdr(pointer, ctypes.byref(info)) and info.address == pointer.value and info.name
            symbol, unnamed = info.name.decode() if is_named else "?", unnamed + (not is_named)
        found.setdefault(name, []).append((code, status.value, symbol))
    with open(file, "w") as out:
        json.dump(found, out)
    digest = hashlib.sha256(json.dumps(found).encode()).hexdigest()[:16]
    talk.figures(names=len(names), look_ups=len(names) * len(VERSIONS) * len(FLAGS), unnamed=unnamed, digest=digest)
