"""The rows of the table, and the rules by which a row fails. Pure: no I/O.

    costs ─► tolerance: the largest excess of the driver's truth over the charge, of processes that allocate
             only memory that is charged
    held  ─► failures: more allocated than the limit; more charged than the limit; refused with another code
             than out of memory; the truth above limit + tolerance
    time  ─► failures: more or less of the GPU's time than the share's `cores`; time that is left unused
"""

from collections import namedtuple

MIB = 1 << 20
GRANULE = 2 * MIB
OUT_OF_MEMORY = 2

OK, FAILED, SKIPPED, TOLD = "ok", "FAILED", "skipped", "told"


class Row:
    """A line of a table. `figures` by name, in bytes, ns or as text; `note`: the error, the reason for skipping, or a remark."""

    def __init__(self, group, name, outcome=OK, note="", **figures):
        self.group, self.name, self.outcome, self.note, self.figures = group, name, outcome, note, figures
        # Set when the row is written: seconds since the previous row or the start of its probe, the same probe's
        # result without a share, and the expectation for a real GPU.
        self.seconds, self.control, self.expected, self.is_surprise = None, "", None, False

    def fail(self, note):
        """Adds an error to the row."""
        self.note = "; ".join(part for part in (self.note if self.outcome == FAILED else "", note) if part)
        self.outcome = FAILED

    def as_dict(self):
        about = {"seconds": self.seconds, "control": self.control, "expected": self.expected, "surprise": self.is_surprise}
        return {"group": self.group, "name": self.name, "outcome": self.outcome, "note": self.note, **about, **self.figures}


def mib(size):
    """Formats bytes in MiB, with two decimals if they are not whole."""
    whole, rest = divmod(size, MIB)
    return "{}".format(whole) if rest == 0 else "{:.2f}".format(size / MIB)


def rounding(limit):
    """Allowed excess of the truth over limit + tolerance: the driver's page tables (8 bytes for each page of
    4 KiB), and a granule on either side."""
    return max(2 * GRANULE, limit // 512)


# === seen ===


def seen(name, message, limit):
    """Makes the row for a total or a number of GPUs that a program saw."""
    row = Row("seen", name)
    if "count" in message:
        row.figures["seen"] = str(message["count"])
        if message["count"] != 1:
            row.fail("{} GPUs, not one".format(message["count"]))
        return row
    total = message["total"]
    row.figures["seen"] = mib(total) + " MiB"
    if total > limit or (total != limit and not message.get("at_most")):
        row.fail("the share has {} MiB".format(mib(limit)))
    return row


# === costs ===


def cost(name, message, base, truth):
    """Makes the row for a step's charge and truth, relative to `base` = (charge, truth)."""
    charged, held = message["charged"] - base[0], truth - base[1]
    row = Row("costs", name, note=message.get("note", ""), charged=charged, truth=held, difference=held - charged)
    row.figures["fixed"] = bool(message.get("fixed"))
    row.figures["beyond"] = truth - message["charged"]  # of the process as a whole
    if message.get("grows") and held - charged > GRANULE:
        row.note = "not charged, and grows with what the program asks for"
    return row


def tolerance(rows):
    """Returns (bytes, name of their row), or None if nothing was measured."""
    fixed = [(row.figures["beyond"], row.name) for row in rows if row.group == "costs" and row.figures.get("fixed")]
    if not fixed:
        return None
    most = max(fixed, key=lambda pair: pair[0])
    return (max(0, most[0]), most[1])


# === held ===


def filled(row, message, limit, exact=False):
    """Checks how much a path allocated until it was refused. `exact`: the whole share must have been possible."""
    got, before = message["got"], message["before"]
    row.figures.update(got=got, charged=message["charged"], exact=exact)
    if got > limit:
        row.fail("{} MiB were allocated under a limit of {} MiB".format(mib(got), mib(limit)))
    elif message["code"] != OUT_OF_MEMORY:
        row.fail("refused with {}, not with {} (out of memory)".format(message["code"], OUT_OF_MEMORY))
    if message["charged"] > limit:
        row.fail("{} MiB are charged to a limit of {} MiB".format(mib(message["charged"]), mib(limit)))
    if exact and got <= limit and got + before + GRANULE <= limit:
        row.fail("only {} MiB could be allocated of {} MiB".format(mib(got), mib(limit - before)))


def refused(row, message):
    """Checks that at most `most` of the excessive requests were granted."""
    if message["granted"] > message["most"]:
        row.fail("{} calls were granted that together ask for more than the limit".format(message["granted"]))
    elif message["code"] != OUT_OF_MEMORY and message["code"] != 0:
        row.fail("refused with {}, not with {} (out of memory)".format(message["code"], OUT_OF_MEMORY))


def freed(row, message):
    """Checks that no charge is left after everything was freed."""
    charged, before = message.get("charged"), message["before"]
    if charged is not None and charged > before:
        row.fail("{} MiB stay charged when all is freed".format(mib(charged - before)))
    if message["again"]:
        row.fail("freed memory cannot be allocated again ({})".format(message["again"]))


def judge(rows, limit):
    """Compares the truth of the held rows with limit + tolerance. Needs all rows, from which the tolerance follows.
    Returns the rows that changed."""
    measured, changed = tolerance(rows), []
    if measured is None:
        return changed
    most = limit + measured[0] + rounding(limit)
    for row in rows:
        truth, before = row.figures.get("truth") if row.group == "held" else None, row.note
        if truth is not None and truth > most:
            over = mib(truth - limit)
            row.fail("the GPU holds {} MiB more than the limit; the tolerance is {} MiB".format(over, mib(measured[0])))
        # If NVML does not show memory that is certainly in use, every other row would pass with its figures.
        if truth is not None and row.figures.get("exact") and truth + rounding(limit) < row.figures["got"]:
            row.fail("NVML shows only {} MiB of it: it is no measure here".format(mib(truth)))
        if row.note != before:
            changed.append(row)
    return changed


# === time ===

MS = 1_000_000
# Percentage points by which a share may exceed its cap, exceed its cores beside another one, and fall below its
# entitlement; percent of the bare throughput that must be reached.
Bounds = namedtuple("Bounds", "more beside less use")
SILICON = Bounds(more=2, beside=6, less=6, use=94)
# The software GPU's time advances even while other programs delay the waiting ones on the CPU.
MODELLED = Bounds(more=5, beside=15, less=30, use=60)
# In addition to its part and its longest kernel or graph, a capped share may use this much in any window.
BURST = 20 * MS


def gpu_time(work, length):
    """Returns the GPU time of a workload in percent of the wall time. `length`: ns of one of its units."""
    return 100 * work["units"] * length / (work["end"] - work["begin"])


def throughput(work, bare):
    """Returns the work done in a time, in percent of the work done bare."""
    rate, whole = [one["work"] / (one["end"] - one["begin"]) for one in (work, bare)]
    return 100 * rate / whole


def capped(name, cores, work, bare, bounds):
    """Makes the row for a share that is capped at `cores` percent. `bare`: the calibration, with a unit's length."""
    got, unlimited = gpu_time(work, bare["length"]), min(100, gpu_time(bare, bare["length"]))
    row = Row("time", name, cores=cores, got=got, bare=unlimited, throughput=throughput(work, bare))
    most = cores + bounds.more + 100 * (BURST + work["longest"]) / (work["end"] - work["begin"])
    # A program that waits for each kernel leaves the GPU partly idle even without a limit.
    least = min(cores, unlimited) - bounds.less
    if got > most:
        row.fail("more than {:.1f} %".format(most))
    elif got < least:
        row.fail("less than {:.1f} %".format(least))
    return row


def tenants(parts, bare, bounds):
    """Makes the rows for busy shares that run at the same time; `parts`: {cores: its work}, 100 in sum."""
    found = []
    for cores, work in parts.items():
        part = throughput(work, bare)
        row = Row("time", "{} beside {}, both Balanced and busy".format(cores, 100 - cores), cores=cores, throughput=part)
        if part > cores + bounds.beside:
            row.fail("more than {} %".format(cores + bounds.beside))
        elif part < cores - bounds.less:
            row.fail("less than {} %".format(cores - bounds.less))
        found.append(row)
    whole = Row("time", "both together", cores=100, throughput=sum(row.figures["throughput"] for row in found))
    used(whole, bounds)
    return [*found, whole]


def alone(name, cores, work, bare, bounds):
    """Makes the row for a Balanced share that is alone on the GPU."""
    row = Row("time", name, cores=cores, got=gpu_time(work, bare["length"]), throughput=throughput(work, bare))
    used(row, bounds)
    return row


def used(row, bounds):
    if row.figures["throughput"] < bounds.use:
        row.fail("less than {} % of the bare throughput".format(bounds.use))


def during(samples, work):
    """Returns NVML's utilisation while a workload ran; None without a sample. `samples`: (moment, percent).

    A figure covers up to a second before it, so only the second half is used.
    """
    middle = (work["begin"] + work["end"]) // 2
    found = [percent for at, percent in samples if middle <= at <= work["end"]]
    return sum(found) / len(found) if found else None


def percentile(values, percent):
    """Returns the least value that this percentage of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def distribution(name, values, note=""):
    """Makes the row for times in ns; never a failure."""
    return Row("durations", name, TOLD, note, p50=percentile(values, 50), p99=percentile(values, 99))


def slices(how, both):
    """Makes the rows for slice and switch; `both`: the runs and absences of two processes that were busy at the same time."""
    runs = [run for one in both for run in one["runs"]]
    names = ["slice, " + how, "switch between contexts, " + how]
    if not all(one["runs"] for one in both):
        return [Row("durations", name, SKIPPED, "neither was seen to make way for the other") for name in names]
    found = [distribution(names[0], runs)]
    switches = []
    for own, other in (both, both[::-1]):
        usual = percentile(other["runs"], 50)
        # Two switches: away and back.
        switches += [max(0, absence - usual) / 2 for absence in own["absences"]]
    return [*found, distribution(names[1], switches)]


# === overhead ===


def overhead(name, bare, limited):
    """Makes the row for medians in ns; never a failure."""
    return Row("overhead", name, TOLD, bare=bare, limited=limited, more=limited - bare, ratio=limited / bare)


def counts(rows):
    """Returns (ok, failed, skipped). Rows without a rule are ok."""
    outcomes = [row.outcome for row in rows]
    return outcomes.count(OK) + outcomes.count(TOLD), outcomes.count(FAILED), outcomes.count(SKIPPED)
