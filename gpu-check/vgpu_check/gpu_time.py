"""The group time: the GPU time of shares, compared with their entitlement.

    calibration (bare, alone) ─► how kernels end, the length of each workload's unit, the bare throughput
             │
             ├─► each cap, alone ─► GPU time by the share's own count of units, beside NVML's utilisation
             ├─► a Balanced share, alone; two beside each other ─► throughput
             └─► bursts beside a busy neighbour, slices of the GPU itself, the cost of a launch ─► told

Failure modes: other programs that use the GPU make every figure wrong, so a GPU that is busy before we begin skips the
group. Without a calibration there is nothing to count by: one row, skipped or failed as the calibration was. A probe that
ends early has a failed row without figures; its neighbour's row is then not checked.
"""

import time
from contextlib import contextmanager

from . import overhead, rows
from .bench import patience_of
from .rows import SKIPPED, Row
from .sides import compute
from .utilisation import Sampler

NAMES = {
    "matmul": "kernels of 500 us (as matmul)",
    "attention": "long and short kernels on 4 streams (as attention)",
    "tiny": "kernels of 8 us",
    "graph": "a graph of 20 kernels",
    "wait": "launch and wait, 200 us",
}
# The caps, and seconds; bare, half a window.
QUICK = {"caps": (10, 50, 90), "window": 1, "tenants": 2, "bursts": 2, "slices": 0.3, "rounds": 1, "samples": 60}
FULL = {"caps": (10, 30, 50, 70, 90), "window": 5, "tenants": 10, "bursts": 6, "slices": 1, "rounds": 5, "samples": 200}
BUSY = 5  # percent; NVML's figure of a GPU that is used by others


def run(bench):
    sizes = QUICK if bench.options.quick else FULL
    bounds = rows.MODELLED if bench.sides.soft else rows.SILICON
    busy = utilisation_of_others(bench)
    if busy > BUSY:
        bench.add(Row("time", "GPU time", SKIPPED, "other programs use the GPU: NVML says {} %".format(busy)))
        return
    ruler, bare = calibration(bench, sizes["window"], *NAMES)
    if ruler is None:
        return
    for cores in sizes["caps"]:
        capped(bench, cores, ruler, bare, sizes["window"], bounds)
    # Clocks fall while a GPU gets warm, so comparisons of throughput have their own reference.
    _, fresh = calibration(bench, sizes["window"], "matmul")
    if fresh:
        alone(bench, ruler, fresh["matmul"], sizes["window"], bounds)
        # Kernels that end by a clock would be finished when they return from another process's slice.
        rounds = by_rounds(ruler, fresh["matmul"])
        tenants(bench, rounds, fresh["matmul"], sizes["tenants"], bounds)
        bursts(bench, rounds, sizes["bursts"])
    slices(bench, ruler, sizes["slices"])
    launches(bench, sizes)


@contextmanager
def sampled(bench):
    """A list that contains NVML's samples after the block."""
    sampler = Sampler(bench.sides, patience_of("utilisation", bench.options.patience))
    samples = []
    try:
        yield samples
        samples += sampler.samples()
    finally:
        sampler.end()


def utilisation_of_others(bench):
    """The lowest figure in 3 s: earlier probes' use disappears after a second."""
    end = time.monotonic() + 3
    least = 100
    while least > BUSY and time.monotonic() < end:
        with sampled(bench) as samples:
            time.sleep(0.3)
        least = min([least, *(percent for _, percent in samples)] if samples else [0])
    return least


def calibration(bench, window, *names):
    """Returns (how kernels end, {workload: its bare results}); (None, {}) after a row with the reason."""
    ended = bench.probe("bare", "work", "calibrate", window / 2, *names, silent=window)
    ruler = ended.of("ruler")
    if ended.note or ended.skip is not None or not ruler:
        bench.close("time", "calibration, bare", ended)
        return None, {}
    return ruler[0]["text"], {work["name"]: work for work in ended.of("work")}


def by_rounds(ruler, bare):
    """A ruler of kernels with the same length bare, and a greater length beside others."""
    return "{}:rounds:{}".format(ruler.split(":")[0], 1000 * bare["work"] / (bare["units"] * bare["length"]))


def capped(bench, cores, ruler, bare, window, bounds):
    name = "Guaranteed {}: {{}}".format(cores)
    flags = compute(cores, "guaranteed")
    with sampled(bench) as samples:
        ended = bench.probe("limited", "work", ruler, window, *NAMES, compute=flags, silent=window, control="ok")
    done = {work["name"]: work for work in ended.of("work")}
    for workload, text in NAMES.items():
        if workload in done:
            row = rows.capped(name.format(text), cores, done[workload], bare[workload], bounds)
            row.figures["nvml"] = rows.during(samples, done[workload])
            bench.add(row)
    bench.close("time", name.format("probe"), ended)


def alone(bench, ruler, bare, window, bounds):
    name = "Balanced 10, alone"
    with sampled(bench) as samples:
        flags = compute(10, "balanced")
        ended = bench.probe("limited", "work", ruler, window, "matmul", compute=flags, silent=window, control="ok")
    for work in ended.of("work"):
        row = rows.alone(name, 10, work, bare, bounds)
        row.figures["nvml"] = rows.during(samples, work)
        bench.add(row)
    bench.close("time", name, ended)


def tenants(bench, ruler, bare, window, bounds):
    parts = (30, 70)
    wanted = [("limited", compute(cores, "balanced"), "work", ruler, window, "matmul") for cores in parts]
    both = bench.probes(*wanted, silent=window)
    if complete(bench, "time", "30 beside 70, both Balanced and busy", both):
        for row in rows.tenants({cores: ended.of("work")[0] for cores, ended in zip(parts, both)}, bare, bounds):
            bench.add(row)


def complete(bench, group, name, both):
    """Returns True if all of these probes finished; otherwise makes a row that names those that did not."""
    for ended in both:
        if ended.note or ended.skip is not None:
            bench.close(group, name, ended)
            return False
    return True


def slices(bench, ruler, seconds):
    for way, how in (("events", "short kernels"), ("timer", "one long kernel")):
        probe = ("absences", way, ruler, int(seconds * 1000))
        both = bench.probes(("bare", (), *probe), ("bare", (), *probe), silent=seconds)
        if complete(bench, "durations", "slice and switch, " + how, both):
            for row in rows.slices(how, [ended.of("spans")[0] for ended in both]):
                bench.add(row)


def bursts(bench, ruler, seconds):
    probe, neighbour = ("bursts", ruler, seconds), ("work", ruler, seconds, "matmul")
    cases = (
        ("alone, bare", [("bare", (), *probe)]),
        ("beside a busy process, both bare", [("bare", (), *probe), ("bare", (), *neighbour)]),
        (
            "High 30 beside a busy Low 70",
            [("limited", compute(30, "balanced", "high"), *probe), ("limited", compute(70, "balanced"), *neighbour)],
        ),
    )
    for case, wanted in cases:
        name = "2 ms of work every 20 ms, " + case
        both = bench.probes(*wanted, silent=seconds)
        if complete(bench, "durations", name, both):
            bench.add(rows.distribution(name, both[0].of("bursts")[0]["taken"]))


def launches(bench, sizes):
    for share, flags in (("Unlimited", compute(0, "unlimited")), ("Balanced 50, not throttled", compute(50, "balanced"))):
        name = "cuLaunchKernel, " + share
        overhead.compare(bench, name, sizes["rounds"], "launch", name, sizes["samples"], compute=flags)
