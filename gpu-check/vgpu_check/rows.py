"""The rows of the table, and the rules by which a row fails. Pure: no I/O.

    costs ─► tolerance: the largest excess of the driver's truth over the charge, of processes that allocate
             only memory that is charged
    held  ─► failures: more allocated than the limit; more charged than the limit; refused with another code
             than out of memory; the truth above limit + tolerance
"""

MIB = 1 << 20
GRANULE = 2 * MIB
OUT_OF_MEMORY = 2

OK, FAILED, SKIPPED, TOLD = "ok", "FAILED", "skipped", "told"


class Row:
    """A line of a table. `figures` by name, in bytes, ns or as text; `note`: the error, why it was skipped, or a remark."""

    def __init__(self, group, name, outcome=OK, note="", **figures):
        self.group, self.name, self.outcome, self.note, self.figures = group, name, outcome, note, figures

    def fail(self, note):
        """Adds an error to the row."""
        self.note = "; ".join(part for part in (self.note if self.outcome == FAILED else "", note) if part)
        self.outcome = FAILED

    def as_dict(self):
        return {"group": self.group, "name": self.name, "outcome": self.outcome, "note": self.note, **self.figures}


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
    """Returns (bytes, name of the row that has them), or None if nothing was measured."""
    fixed = [(row.figures["beyond"], row.name) for row in rows if row.group == "costs" and row.figures.get("fixed")]
    if not fixed:
        return None
    most = max(fixed, key=lambda pair: pair[0])
    return (max(0, most[0]), most[1])


# === held ===


def filled(row, message, limit, exact=False):
    """Checks how much a path allocated until it was refused. `exact`: it must be able to allocate the whole share."""
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
    """Checks that at most `most` of the calls that ask for too much were granted."""
    if message["granted"] > message["most"]:
        row.fail("{} calls were granted that together ask for more than the limit".format(message["granted"]))
    elif message["code"] != OUT_OF_MEMORY and message["code"] != 0:
        row.fail("refused with {}, not with {} (out of memory)".format(message["code"], OUT_OF_MEMORY))


def freed(row, message):
    """Checks that nothing is left after everything was freed."""
    charged, before = message.get("charged"), message["before"]
    if charged is not None and charged > before:
        row.fail("{} MiB stay charged when all is freed".format(mib(charged - before)))
    if message["again"]:
        row.fail("what was freed cannot be allocated again ({})".format(message["again"]))


def judge(rows, limit):
    """Compares the truth of the held rows with limit + tolerance. Needs all rows, from which the tolerance follows."""
    measured = tolerance(rows)
    if measured is None:
        return
    most = limit + measured[0] + rounding(limit)
    for row in rows:
        truth = row.figures.get("truth") if row.group == "held" else None
        if truth is not None and truth > most:
            over = mib(truth - limit)
            row.fail("the GPU holds {} MiB more than the limit; the tolerance is {} MiB".format(over, mib(measured[0])))
        # If NVML does not show memory that certainly is in use, its figures would let every other row pass.
        if truth is not None and row.figures.get("exact") and truth + rounding(limit) < row.figures["got"]:
            row.fail("NVML shows only {} MiB of it: it is no measure here".format(mib(truth)))


# === overhead ===


def overhead(name, bare, limited):
    """Makes the row for medians in ns; never a failure."""
    return Row("overhead", name, TOLD, bare=bare, limited=limited, more=limited - bare, ratio=limited / bare)


def counts(rows):
    """Returns (ok, failed, skipped). Rows without a rule count as ok."""
    outcomes = [row.outcome for row in rows]
    return outcomes.count(OK) + outcomes.count(TOLD), outcomes.count(FAILED), outcomes.count(SKIPPED)
