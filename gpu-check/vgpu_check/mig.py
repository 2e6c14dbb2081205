"""The group mig: what the driver says of MIG on each GPU, which only a real one can say. Nothing is changed."""

from . import mig_rows
from .rows import FAILED, Row


def run(bench):
    ended = bench.probe("bare", "mig")
    for found in ended.of("gpu"):
        for row in mig_rows.of_gpu(found):
            bench.add(row)
    bench.close("mig", "MIG", ended)
    if not ended.note and ended.skip is None and not ended.of("gpu"):
        bench.add(Row("mig", "MIG", FAILED, "NVML lists no GPU"))
