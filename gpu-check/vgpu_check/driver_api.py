"""The groups costs, seen and held, for the driver API."""

import shutil

from .probes import lookups
from .rows import FAILED, OK, SKIPPED, TOLD, Row, cost, filled, freed, refused, seen

COSTS = ("contexts", "green", "small", "pieces", "shapes", "host", "virtual", "pools", "graphs", "modules", "hidden")
# Steps that need a real GPU: the software GPU stores no code, and its kernels have no memory of their own.
SILICON = ("hidden", "cuModuleLoadData")
PATHS = (
    "cuMemAlloc",
    "cuMemAllocPitch",
    "cuMemAllocManaged",
    "cuMemAllocAsync",
    "cuMemAllocFromPoolAsync",
    "cuMemCreate",
    "cuArrayCreate",
    "cuMipmappedArrayCreate",
    "cuGraphAddMemAllocNode",
    "cuModuleLoadData",
)
AHEAD = {"limit": "cuCtxSetLimit beyond the share, in a loop", "newcomers": "contexts and heaps at once"}
BEYOND = ("local memory", "device heap")
NO_SILICON = "the software GPU has no such memory"


def run_costs(bench):
    for name in COSTS:
        if bench.sides.soft and name in SILICON:
            bench.add(Row("costs", name, SKIPPED, NO_SILICON))
        else:
            measure(bench, name, "costs", name, bench.limit)
    for way in ("handle", "descriptor"):
        measure(bench, "IPC by " + way, "ipc", way, bench.limit)


def measure(bench, name, *probe, **variables):
    """Makes a row for each step of a probe: the charge and the driver's truth."""
    base = [(0, 0)]

    def at_step(message, truth):
        whole = (0, 0) if message.get("whole") else base[0]
        if message.get("base"):
            base[0] = (message["charged"], truth)
            whole = (0, 0)
        if message["name"]:
            bench.add(cost(message["name"], message, whole, truth))

    ended = bench.probe("limited", *probe, at_step=at_step, **variables)
    for figure in ended.of("figure"):
        bench.add(Row("costs", figure["name"], TOLD, figure["text"]))
    for absent in ended.of("absent"):
        bench.add(Row("costs", absent["name"], SKIPPED, absent["reason"]))
    bench.close("costs", name, ended)


def run_seen(bench):
    ended = bench.probe("limited", "seen")
    for message in ended.of("seen"):
        bench.add(seen(message["name"], message, bench.limit))
    bench.close("seen", "driver API and NVML", ended)
    look_ups(bench)
    nvidia_smi(bench)


def look_ups(bench):
    """Programs that open the driver's own file also get the share."""
    ended = bench.probe("bare", "driver_file")
    bench.close("seen", "the driver's file", ended)
    for message in ended.of("driver_file"):
        for way in lookups.WAYS:
            found = bench.probe("limited", "lookups", way, message["path"])
            for total in found.of("seen"):
                bench.add(seen(total["name"], total, bench.limit))
            bench.close("seen", "the driver's file, " + way, found)
            if found.hung:
                return


def nvidia_smi(bench):
    program = shutil.which("nvidia-smi")
    if bench.sides.soft or not program:
        why = "nvidia-smi is of a real driver" if program else "nvidia-smi is not installed"
        bench.add(Row("seen", "nvidia-smi", SKIPPED, why))
        return
    text, note = bench.program([program, "--query-gpu=memory.total", "--format=csv,noheader,nounits"])
    row = Row("seen", "nvidia-smi")
    lines = text.split()
    row.figures["seen"] = " ".join(lines) + " MiB"
    if note:
        row.fail(note)
    elif lines != [str(bench.limit >> 20)]:
        row.fail("the share has {} MiB".format(bench.limit >> 20))
    bench.add(row)


def run_held(bench):
    for path in PATHS:
        if bench.sides.soft and path in SILICON:
            bench.add(Row("held", path, SKIPPED, NO_SILICON))
        else:
            fill(bench, path, "fill", path, bench.limit, exact=path in ("cuMemAlloc", "cuMemCreate"))
    for what in AHEAD:
        ahead(bench, what)
    for what in BEYOND:
        if bench.sides.soft:
            bench.add(Row("held", what, SKIPPED, NO_SILICON))
        else:
            beyond(bench, what)


def ahead(bench, what):
    """Makes one row: implicit memory of a call is refused before the driver allocates it."""
    row = Row("held", AHEAD[what])

    def at_step(message, truth):
        if message["name"] == "asked":
            row.figures["truth"] = truth
            refused(row, message)

    ended = bench.probe("limited", "ahead", what, bench.limit, at_step=at_step)
    bench.close("held", row.name, ended, row)
    if row.outcome not in (FAILED, SKIPPED) and "truth" not in row.figures:
        row.fail("the probe ended without a figure")
    bench.add(row)


def fill(bench, name, *probe, exact=False, **variables):
    """Makes one row: how much one path can allocate until it is refused, and the GPU's memory in use then."""
    row = Row("held", name)
    ready = Row("costs", name + ": before it asks for memory")

    def at_step(message, truth):
        if message["name"] == "ready":
            ready.figures.update(charged=message["charged"], truth=truth, difference=truth - message["charged"])
            ready.figures.update(fixed=True, beyond=truth - message["charged"])
        elif message["name"] == "freed":
            freed(row, message)
        else:
            filled(row, message, bench.limit, exact)
            row.figures["truth"] = truth

    ended = bench.probe("limited", *probe, at_step=at_step, **variables)
    bench.close("held", name, ended, row)
    if row.outcome == OK and "got" not in row.figures:
        row.fail("the probe ended without a figure")
    bench.add(row)
    if probe[0] != "fill" and ready.figures:
        bench.add(ready)
    return ended


def beyond(bench, what):
    row = Row("held", what + " beyond the share")

    def at_step(message, truth):
        if message["name"] == "asked":
            row.figures["truth"] = truth
            row.note = "the driver answers {}".format(message["code"])

    ended = bench.probe("limited", "beyond", what, bench.limit, at_step=at_step)
    bench.close("held", row.name, ended, row)
    if row.outcome not in (FAILED, SKIPPED) and "truth" not in row.figures:
        row.fail("the probe ended without a figure")
    bench.add(row)
