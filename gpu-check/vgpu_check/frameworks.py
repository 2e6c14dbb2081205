"""The groups costs, seen and held for the installed clients: PyTorch, CuPy, JAX, Numba and others."""

from .driver_api import fill, measure
from .rows import SKIPPED, Row, seen

# PyTorch's ways to allocate: name, the probe's mode, its variable.
ALLOCATORS = (
    ("PyTorch, caching allocator", "plain", ""),
    ("PyTorch, expandable segments", "expandable", "expandable_segments:True"),
    ("PyTorch, cudaMallocAsync", "async", "backend:cudaMallocAsync"),
    ("PyTorch, CUDA graph with a pool of its own", "graph", ""),
)
CLIENTS = (
    ("cuda-bindings", "cuda-bindings"),
    ("Numba", "numba"),
    ("CuPy, memory pool", "cupy"),
    ("CuPy, stream-ordered", "cupy-async"),
    ("JAX", "jax"),
)
# They use libcudart, whose check of the driver the software GPU does not imitate.
NEED_CUDART = ("cupy", "cupy-async", "jax")
NO_CUDART = "CUDA's runtime library does not run on the software GPU"


def run(bench):
    """All groups at once: each client starts once and runs every measurement."""
    ended = bench.probe("limited", "clients", "pynvml", bench.limit)
    told(bench, "pynvml", ended)
    bench.close("seen", "pynvml", ended)
    if bench.sides.soft:
        bench.add(Row("held", "PyTorch", SKIPPED, NO_CUDART))
    else:
        pytorch(bench)
    for name, client in CLIENTS:
        if bench.sides.soft and client in NEED_CUDART:
            bench.add(Row("held", name, SKIPPED, NO_CUDART))
        else:
            told(bench, name, fill(bench, name, "clients", client, bench.limit))


def pytorch(bench):
    measure(bench, "PyTorch after training steps (kernels, cuBLAS)", "torch_step", "truth")
    for name, mode, setting in ALLOCATORS:
        # The old name of the variable, and that of PyTorch 2.9.
        variables = {"PYTORCH_CUDA_ALLOC_CONF": setting, "PYTORCH_ALLOC_CONF": setting} if setting else {}
        ended = fill(bench, name, "torch_fill", mode, bench.limit, **variables)
        told(bench, name, ended)
        if ended.skip is not None:
            break  # not installed


def told(bench, name, ended):
    for message in ended.of("seen"):
        bench.add(seen("{}: {}".format(name, message["name"]), message, bench.limit))
