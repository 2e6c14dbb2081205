"""The expected figures of a real GPU, so that surprises stand out. Pure. A surprise never fails a row.

The bounds are estimates of drivers 535 to 580 on data-centre GPUs; the first table of a real GPU replaces them.
"""

from .rows import MIB

MS = 1_000_000
# (group, begin of the row's name, figure, lowest, highest, divisor, unit)
BOUNDS = (
    ("costs", "the first context", "truth", 300, 900, MIB, "MiB"),
    ("costs", "a second context", "truth", 0, 500, MIB, "MiB"),
    ("costs", "PyTorch after training steps", "beyond", -16, 64, MIB, "MiB beyond the charge"),
    ("overhead", "cuLaunchKernel", "ratio", 0.9, 1.3, 1, "times bare"),
    ("overhead", "cuMemAlloc", "ratio", 0.9, 1.5, 1, "times bare"),
    ("overhead", "PyTorch", "ratio", 0.95, 1.05, 1, "times bare"),
    ("durations", "slice", "p50", 0.5, 6, MS, "ms"),
    ("durations", "switch", "p50", 0.02, 0.5, MS, "ms"),
    ("durations", "2 ms of work every 20 ms, alone", "p50", 1.9, 2.6, MS, "ms"),
    ("time", "both together", "throughput", 94, 103, 1, "%"),
)


def of(row):
    """Returns (text, is it a surprise) for a row that has an expectation; else (None, False)."""
    for group, name, figure, low, high, unit, text in BOUNDS:
        value = row.figures.get(figure)
        if row.group == group and row.name.startswith(name) and value is not None:
            return "{} {:g} to {:g} {}".format(figure, low, high, text), not low <= value / unit <= high
    return None, False
