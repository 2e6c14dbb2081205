"""Rows of the table, and what makes one a failure. Pure: nothing is asked, nothing is printed.

    costs ─► tolerance: the most by which the driver's truth exceeds the charge of a process that asked
             for nothing but what it was charged
    held  ─► failures: more was got than the limit; charged above the limit; refused with another code
             than out of memory; the truth above limit + tolerance
"""

MIB = 1 << 20
GRANULE = 2 * MIB
OUT_OF_MEMORY = 2

OK, FAILED, SKIPPED, TOLD = "ok", "FAILED", "skipped", "told"


class Row:
    """One line. `figures` by name, in bytes, ns or as text; `note`: why it failed or was skipped, or a remark."""

    def __init__(self, group, name, outcome=OK, note="", **figures):
        self.group, self.name, self.outcome, self.note, self.figures = group, name, outcome, note, figures

    def fail(self, note):
        """One more thing that is wrong with it."""
        self.note = "; ".join(part for part in (self.note if self.outcome == FAILED else "", note) if part)
        self.outcome = FAILED

    def as_dict(self):
        return {"group": self.group, "name": self.name, "outcome": self.outcome, "note": self.note, **self.figures}


def mib(size):
    """Bytes in MiB, exact where they are whole."""
    whole, rest = divmod(size, MIB)
    return "{}".format(whole) if rest == 0 else "{:.2f}".format(size / MIB)


def rounding(limit):
    """What the truth may exceed limit and tolerance by: the driver's tables for what is held (8 bytes a
    page of 4 KiB), and a granule on either side."""
    return max(2 * GRANULE, limit // 512)


# === seen ===


def seen(name, message, limit):
    """A program was told a total or a number of GPUs."""
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
    """A step's charge and truth, relative to `base` = (charge, truth)."""
    charged, held = message["charged"] - base[0], truth - base[1]
    row = Row("costs", name, note=message.get("note", ""), charged=charged, truth=held, difference=held - charged)
    row.figures["fixed"] = bool(message.get("fixed"))
    row.figures["beyond"] = truth - message["charged"]  # of the process as a whole
    if message.get("grows") and held - charged > GRANULE:
        row.note = "not charged, and grows with what the program asks for"
    return row


def tolerance(rows):
    """(bytes, name of the row that has them), or None when nothing was measured."""
    fixed = [(row.figures["beyond"], row.name) for row in rows if row.group == "costs" and row.figures.get("fixed")]
    if not fixed:
        return None
    most = max(fixed, key=lambda pair: pair[0])
    return (max(0, most[0]), most[1])


# === held ===


def filled(row, message, limit, exact=False):
    """What a path got until it was refused. `exact`: all of the share is to be had by it."""
    got, before = message["got"], message["before"]
    row.figures.update(got=got, charged=message["charged"], exact=exact)
    if got > limit:
        row.fail("{} MiB were allocated under a limit of {} MiB".format(mib(got), mib(limit)))
    elif message["code"] != OUT_OF_MEMORY:
        row.fail("refused with {}, not with {} (out of memory)".format(message["code"], OUT_OF_MEMORY))
    if message["charged"] > limit:
        row.fail("{} MiB are charged to a limit of {} MiB".format(mib(message["charged"]), mib(limit)))
    if exact and got <= limit and got + before + GRANULE <= limit:
        row.fail("only {} MiB were to be had of {} MiB".format(mib(got), mib(limit - before)))


def freed(row, message):
    """What is left when all was freed."""
    charged, before = message.get("charged"), message["before"]
    if charged is not None and charged > before:
        row.fail("{} MiB stay charged when all is freed".format(mib(charged - before)))
    if message["again"]:
        row.fail("what was freed cannot be allocated again ({})".format(message["again"]))


def judge(rows, limit):
    """Compares the truth of the held rows with limit and tolerance, which is known when all rows are."""
    measured = tolerance(rows)
    if measured is None:
        return
    most = limit + measured[0] + rounding(limit)
    for row in rows:
        truth = row.figures.get("truth") if row.group == "held" else None
        if truth is not None and truth > most:
            over = mib(truth - limit)
            row.fail("the GPU holds {} MiB more than the limit; the tolerance is {} MiB".format(over, mib(measured[0])))
        # A truth that misses what is certainly there would let every other row pass.
        if truth is not None and row.figures.get("exact") and truth + rounding(limit) < row.figures["got"]:
            row.fail("NVML shows only {} MiB of it: it is no measure here".format(mib(truth)))


# === overhead ===


def overhead(name, bare, limited):
    """Medians of rounds in ns; never judged."""
    return Row("overhead", name, TOLD, bare=bare, limited=limited, more=limited - bare, ratio=limited / bare)


def counts(rows):
    """(ok, failed, skipped); what is only told counts as ok."""
    outcomes = [row.outcome for row in rows]
    return outcomes.count(OK) + outcomes.count(TOLD), outcomes.count(FAILED), outcomes.count(SKIPPED)
