"""Other clients under a share: the memory that they see, and how much they can allocate until they are refused."""

import importlib
import os

from . import talk

PIECE = 32 << 20


def needs(name):
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise talk.Skip(str(error))


class Client:
    """`seen` yields (what, total), `take` allocates a piece or raises, `charged` returns the share's charge."""

    AT_MOST = False  # True if its total may be less than the share

    def charged(self):
        free, total = self.info()
        return int(total) - int(free)

    def seen(self):
        yield "memory info", self.info()[1]

    def release(self):
        """Releases memory that is kept for reuse."""


class Cupy(Client):
    def __init__(self):
        self.cupy = needs("cupy")

    def info(self):
        return self.cupy.cuda.runtime.memGetInfo()

    def take(self, size):
        return self.cupy.empty(size, dtype="uint8")

    def release(self):
        self.cupy.get_default_memory_pool().free_all_blocks()


class CupyAsync(Cupy):
    def __init__(self):
        super().__init__()
        self.cupy.cuda.set_allocator(self.cupy.cuda.malloc_async)

    def release(self):
        self.cupy.cuda.Device().synchronize()


class Numba(Client):
    def __init__(self):
        needs("numba")
        self.cuda = needs("numba.cuda")
        self.cuda.current_context()

    def info(self):
        return self.cuda.current_context().get_memory_info()

    def take(self, size):
        return self.cuda.device_array(size, dtype="uint8")


class Bindings(Client):
    """NVIDIA's cuda-bindings: the driver API through cuGetProcAddress."""

    def __init__(self):
        try:
            self.driver = importlib.import_module("cuda.bindings.driver")
        except ImportError:
            self.driver = needs("cuda.cuda")
        self.call("cuInit", 0)
        device = self.call("cuDeviceGet", 0)
        self.call("cuCtxSetCurrent", self.call("cuDevicePrimaryCtxRetain", device))
        self.device = device

    def call(self, name, *arguments):
        code, *values = getattr(self.driver, name)(*arguments)
        if int(code):
            raise MemoryError("{} answers {}".format(name, code.name))
        return values if len(values) > 1 else (values[0] if values else None)

    def info(self):
        return self.call("cuMemGetInfo")

    def seen(self):
        yield "cuMemGetInfo", self.info()[1]
        yield "cuDeviceTotalMem", self.call("cuDeviceTotalMem", self.device)

    def take(self, size):
        pointer = self.call("cuMemAlloc", size)

        class Held:
            def __del__(held):  # noqa: N805 - the client is `self` here
                self.call("cuMemFree", pointer)

        return Held()


class Jax(Client):
    AT_MOST = True

    def __init__(self):
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "1.0")
        self.jax = needs("jax")
        if not any(device.platform == "gpu" for device in self.jax.devices()):
            raise talk.Skip("this JAX uses no GPU")

    def statistics(self):
        return self.jax.devices()[0].memory_stats() or {}

    def info(self):
        held = self.statistics()
        return held.get("bytes_limit", 0) - held.get("bytes_in_use", 0), held.get("bytes_limit", 0)

    def seen(self):
        yield "bytes_limit", self.info()[1]

    def take(self, size):
        return self.jax.numpy.zeros(size, dtype="uint8").block_until_ready()


CLIENTS = {"cupy": Cupy, "cupy-async": CupyAsync, "numba": Numba, "cuda-bindings": Bindings, "jax": Jax}


def taken(client, size):
    try:
        return client.take(size)
    except BaseException as error:  # each client has its own class for it
        text = "{} {}".format(type(error).__name__, error).lower().replace(" ", "").replace("_", "")
        if isinstance(error, MemoryError) or "outofmemory" in text or "resourceexhausted" in text:
            return None
        raise


def pynvml_main():
    nvml = needs("pynvml")
    nvml.nvmlInit()
    talk.say("seen", name="nvmlDeviceGetCount", count=nvml.nvmlDeviceGetCount())
    device = nvml.nvmlDeviceGetHandleByIndex(0)
    talk.say("seen", name="nvmlDeviceGetMemoryInfo", total=nvml.nvmlDeviceGetMemoryInfo(device).total)


def main(name, limit):
    if name == "pynvml":
        pynvml_main()
        return
    client, limit = CLIENTS[name](), int(limit)
    for what, total in client.seen():
        talk.say("seen", name=what, total=int(total), at_most=client.AT_MOST)
    before = client.charged()
    if not client.AT_MOST:  # it reports the share, not its own pool
        talk.step("ready", charged=before)
    held, got = [], 0
    while got <= limit:
        piece = taken(client, PIECE)
        if piece is None:
            break
        held.append(piece)
        got += PIECE
    talk.step("full", charged=client.charged(), got=got, code=2 if got <= limit else 0, before=before)
    piece = None
    held.clear()
    client.release()
    again = 0 if taken(client, PIECE) is not None else 2
    talk.step("freed", charged=None, before=before, again=again)
