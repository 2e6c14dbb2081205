"""The group overhead: times the same calls bare and limited in turns, so that a change of the machine's speed
affects both. Medians over rounds; never a failure."""

import statistics

from .rows import FAILED, SKIPPED, Row, overhead

SIDES = ("bare", "limited")


def run(bench):
    rounds, samples = (2, 60) if bench.options.quick else (5, 200)
    compare(bench, "calls of the driver API", rounds, "calls", samples)
    if bench.sides.soft:
        bench.add(Row("overhead", "PyTorch", SKIPPED, "CUDA's runtime library does not run on the software GPU"))
    else:
        compare(bench, "PyTorch", 1 if bench.options.quick else 3, "torch_step", 10)


def compare(bench, name, rounds, *probe, compute=()):
    """Makes a row for each call that the probe times; `compute`: flags of the limited side."""
    samples, absent = {}, {}
    for number in range(rounds):
        # The second side of a round has warm caches, so the sides take turns in being first.
        for side in SIDES if number % 2 == 0 else SIDES[::-1]:
            ended = bench.probe(side, *probe, compute=compute, control="ok" if side == "limited" else "")
            if ended.note or ended.skip is not None:
                report_end(bench, name, side, ended)
                return
            for time in ended.of("time"):
                samples.setdefault(time["name"], {one: [] for one in SIDES})[side].append(time["ns"])
            for missing in ended.of("absent"):
                absent[(side, missing["name"])] = missing["reason"]
    bench.control = "ok"
    for what, by_side in samples.items():
        if all(by_side[side] for side in SIDES):
            bench.add(overhead(what, *[statistics.median(by_side[side]) for side in SIDES]))
    for (side, what), reason in absent.items():
        # A call that fails bare too says nothing about the library.
        works_bare = side == "limited" and ("bare", what) not in absent
        if side == "bare" or works_bare:
            bench.add(Row("overhead", what, FAILED if works_bare else SKIPPED, "{}: {}".format(side, reason)))


def report_end(bench, name, side, ended):
    if ended.note and side == "bare" and not ended.note.startswith("not run"):
        ended.skip, ended.note = "bare: " + ended.note, ""
    bench.close("overhead", name, ended)
