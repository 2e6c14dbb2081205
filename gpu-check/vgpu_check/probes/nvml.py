"""NVML through ctypes: devices, memory, and the memory of each process."""

import ctypes

NOT_AVAILABLE = (1 << 64) - 1


class NvmlError(Exception):
    def __init__(self, function, code):
        super().__init__("{} answers {}".format(function, code))
        self.code = code


class MemoryV2(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint)] + [(n, ctypes.c_uint64) for n in ("total", "reserved", "free", "used")]


class Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_uint64), ("gi", ctypes.c_uint), ("ci", ctypes.c_uint)]


class ProcessV1(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_uint64)]


class Nvml:
    def __init__(self):
        self.library = ctypes.CDLL("libnvidia-ml.so.1")
        self.call("nvmlInit_v2")

    def code(self, name, *arguments):
        function = getattr(self.library, name, None)
        if function is None:
            return 13  # NVML_ERROR_FUNCTION_NOT_FOUND
        return function(*[ctypes.c_uint64(a) if isinstance(a, int) else a for a in arguments])

    def call(self, name, *arguments):
        code = self.code(name, *arguments)
        if code:
            raise NvmlError(name, code)

    def count(self):
        count = ctypes.c_uint(0)
        self.call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        return count.value

    def device(self, index):
        device = ctypes.c_uint64(0)
        self.call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(device))
        return device.value

    def text(self, name, *arguments):
        buffer = ctypes.create_string_buffer(128)
        code = self.code(name, *arguments, buffer, 128)
        return buffer.value.decode(errors="replace") if code == 0 else "?"

    def mig(self, device):
        """Returns True if the GPU is divided into MIG instances."""
        current, pending = ctypes.c_uint(0), ctypes.c_uint(0)
        code = self.code("nvmlDeviceGetMigMode", device, ctypes.byref(current), ctypes.byref(pending))
        return code == 0 and current.value == 1

    def memory(self, device):
        """Total, free and used bytes, by the first version of the call."""
        figures = (ctypes.c_uint64 * 3)()
        self.call("nvmlDeviceGetMemoryInfo", device, figures)
        return figures[0], figures[1], figures[2]

    def memory_v2(self, device):
        """The same by the second version, which excludes memory that the driver reserves; None: an old driver."""
        figures = self.figures_v2(device)
        return figures and (figures.total, figures.free, figures.used)

    def reserved(self, device):
        """Bytes that the driver reserves; None: an old driver."""
        figures = self.figures_v2(device)
        return figures and figures.reserved

    def figures_v2(self, device):
        figures = MemoryV2(version=ctypes.sizeof(MemoryV2) | 2 << 24)
        return None if self.code("nvmlDeviceGetMemoryInfo_v2", device, ctypes.byref(figures)) else figures

    def processes(self, device):
        """Returns {PID: bytes, or None if the driver has no figure}."""
        for suffix, kind in (("_v3", Process), ("_v2", Process), ("", ProcessV1)):
            name = "nvmlDeviceGetComputeRunningProcesses" + suffix
            if not hasattr(self.library, name):
                continue
            count, found = ctypes.c_uint(512), (kind * 512)()
            if self.code(name, device, ctypes.byref(count), found):
                return {}
            used = [(one.pid, None if one.used == NOT_AVAILABLE else one.used) for one in found[: count.value]]
            return dict(used)
        return {}
