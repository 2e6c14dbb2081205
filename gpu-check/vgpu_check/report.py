"""Formats rows as lines, a summary, Markdown and JSON. Pure."""

import json

from .rows import FAILED, TOLD, counts, mib, tolerance

# Lines of a list in the summary, and characters of each.
MOST, WIDTH = 12, 160

TITLES = {
    "mig": "MIG: what the driver says of it (nothing is changed)",
    "costs": "Memory charged, and memory in use by the driver's account, in MiB",
    "seen": "The GPU that programs see",
    "held": "Memory that programs can allocate until they are refused, in MiB",
    "overhead": "Time of calls, in us (medians, bare and limited in turns)",
    "node": "The node agent (vgpu-kubelet-plugin): its NVML process, a share's process, what containers get",
    "time": "GPU time of shares, in percent (throughput: of the bare one)",
    "durations": "Durations on the GPU, in ms",
}
COLUMNS = {
    "mig": (("seen", "seen"),),
    "costs": (("charged", "charged"), ("truth", "truth"), ("difference", "difference")),
    "seen": (("seen", "seen"),),
    "held": (("got", "got"), ("charged", "charged"), ("truth", "truth")),
    "overhead": (("bare", "bare"), ("limited", "limited"), ("more", "more"), ("ratio", "ratio")),
    "node": (("seen", "seen"),),
    "time": (("cores", "cores"), ("got", "got"), ("bare", "bare"), ("nvml", "NVML"), ("throughput", "throughput")),
    "durations": (("p50", "p50"), ("p99", "p99")),
}
SIGNED = ("difference", "more")


def cell(group, key, value):
    """Formats a figure; empty if it was not measured."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if key == "ratio":
        return "{:.3f}".format(value)
    if group == "time":
        return "{:.1f}".format(value)
    if group == "durations":
        return "{:.3f}".format(value / 1_000_000)
    sign = "+" if key in SIGNED and value >= 0 else ""
    if group == "overhead":
        return sign + "{:.2f}".format(value / 1000)
    if value < 0:
        return "-" + mib(-value)
    return sign + mib(value)


def lines(rows, group):
    """(header, [cells]) of one group's table."""
    keys = COLUMNS[group]
    body = []
    for row in rows:
        figures = [cell(group, key, row.figures.get(key)) for key, _ in keys]
        outcome = "" if row.outcome == TOLD else row.outcome
        body.append([row.name, *figures, ": ".join(part for part in (outcome, row.note) if part)])
    return [TITLES[group], *[title for _, title in keys], ""], body


def line(row):
    """One row as a line of text."""
    figures = []
    for key, title in COLUMNS[row.group]:
        text = cell(row.group, key, row.figures.get(key))
        figures += ["{} {}".format(title, text)] if text else []
    outcome = "" if row.outcome == TOLD else row.outcome
    words = ": ".join(part for part in (outcome, row.note) if part)
    marks = ["SURPRISE: expected " + row.expected] if row.is_surprise else []
    return "  {}".format("; ".join(part for part in (row.name + ":", ", ".join(figures), words, *marks) if part).replace(":;", ":"))


def tail(rows):
    """The last lines, after tables too."""
    text = []
    measured = tolerance(rows)
    if measured:
        text.append("tolerance of `Enforced`: {} MiB ({})".format(mib(measured[0]), measured[1]))
    text.append("{} ok, {} failed, {} skipped".format(*counts(rows)))
    return text


def summary(rows, ended=""):
    """The summary, to be printed last: at most some 4,000 characters. `ended`: the reason if the check ended early."""
    text = []
    failures = ["  {}: {}".format(row.name, row.note)[:WIDTH] for row in rows if row.outcome == FAILED]
    surprises = ["  {}: expected {}".format(line(row).strip().split("; SURPRISE")[0], row.expected)[:WIDTH] for row in rows if row.is_surprise]
    for title, lines in (("FAILED", failures), ("SURPRISES (never a failure)", surprises)):
        if lines:
            more = ["  ... {} more".format(len(lines) - MOST)] if len(lines) > MOST else []
            text += [title, *lines[:MOST], *more]
    text += ["ended early: " + ended] if ended else []
    return "\n".join(["", *text, *tail(rows)]) + "\n"


def markdown(rows, heading):
    text = ["{}  ".format(line) for line in heading]
    for group, (header, body) in grouped(rows):
        text += ["", "| " + " | ".join(header) + " |", "|---" + "|---:" * (len(header) - 2) + "|---|"]
        text += ["| " + " | ".join(part.replace("|", "\\|") for part in line) + " |" for line in body]
    return "\n".join(text + [""] + tail(rows)) + "\n"


def as_json(rows, heading, limit, soft, ended=""):
    measured = tolerance(rows)
    ok, failed, skipped = counts(rows)
    document = {
        "machine": list(heading),
        "software_gpu": soft,
        "limit": limit,
        "tolerance": measured and {"bytes": measured[0], "row": measured[1]},
        "ok": ok,
        "failed": failed,
        "skipped": skipped,
        "ended_early": ended,
        "rows": [row.as_dict() for row in rows],
    }
    return json.dumps(document, indent=1) + "\n"


def grouped(rows):
    """(group, its table), in the order of the titles."""
    for group in TITLES:
        own = [row for row in rows if row.group == group]
        if own:
            yield group, lines(own, group)
