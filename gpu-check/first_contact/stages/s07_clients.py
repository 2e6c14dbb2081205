"""JAX, CuPy, Numba and cuda-bindings compute, see the share, and are refused at its limit."""

import sys

TITLE, LIMIT = "clients", 30
SHARE = 2 << 30
OUT_OF_MEMORY = 2
RESULT = "1048576.0"  # the sum of 2 x + 1 for x below 1024
RESULTS = {
    "jax": "import jax; assert jax.devices()[0].platform == 'gpu', jax.devices(); "
           "print(float(jax.jit(lambda x: (x * 2 + 1).sum())(jax.numpy.arange(1024.0))))",
    "cupy": "import cupy; print(float((cupy.arange(1024.0) * 2 + 1).sum()))",
    "numba": "from numba import cuda; import numpy\n@cuda.jit\ndef double(x): x[cuda.grid(1)] = x[cuda.grid(1)] * 2 + 1\n"
             "x = cuda.to_device(numpy.arange(1024.0)); double[4, 256](x); print(float(x.copy_to_host().sum()))",
}
CLIENTS, WITHOUT_CUDART = ("jax", "cupy", "numba", "cuda-bindings"), ("numba", "cuda-bindings")


def refused(job, limit=SHARE):
    """The mistake of a client that allocated until it was refused, freed everything, and allocated again."""
    full, freed = job.steps().get("full", {}), job.steps().get("freed", {})
    seen = [one["total"] for one in job.of("seen") if not one.get("at_most") and one["total"] != limit]
    if seen or full.get("got", limit + 1) > limit or full.get("code") != OUT_OF_MEMORY or freed.get("again") != 0:
        return "sees {}, got {} MiB, refused with {}, again {}".format(seen, full.get("got", 0) >> 20, full.get("code"), freed.get("again"))
    return None


def run_stage(kit):
    soft = kit.has_no_cudart("jax", "cupy", "a result of numba")
    for name, code in () if soft else RESULTS.items():
        kit.pair("a result of " + name, None, program=[sys.executable, "-c", code], share={"memory": SHARE}, limit=20, at_once=True,
                 check=lambda job: RESULT not in job.text() and job.text())
    names = WITHOUT_CUDART if soft else CLIENTS
    those = [kit.start("clients", name, SHARE, share={"memory": SHARE}, limit=25) for name in names]
    kit.wait(*those)
    for name, job in zip(names, those):
        kit.finish(name + ", until refused", job, check=refused)
        kit.beyond(job, -16, 64, name + " ", ("full",))
