"""The report: a verdict, a line for each stage, culprits, surprises, the worst stack, failures. Pure.

It is the end of the output and short, because a remote call may return only the end: longer texts are shortened at the
stages' remarks, never at the verdict or at NEXT.
"""

from . import classes
from .state import FAILED, NOT_RUN, PASSED

# Lines of a list, characters of a stage's line.
MOST, WIDTH = 12, 1200


def result(stage):
    """The part of a stage's results that is stored in the state."""
    if stage.end.startswith(NOT_RUN):
        return NOT_RUN
    return PASSED if stage.has_passed() else FAILED


def stage_line(stage):
    worst = classes.worst(stage.classes)
    seen = [one for one in classes.FAILED + (classes.NO_CONTROL, classes.CUT, classes.OK, classes.SKIPPED) if one in stage.classes]
    counts = ", ".join("{} {}".format(stage.classes.count(one), one) for one in seen)
    told = "; ".join(filter(None, [counts, *stage.notes]))
    return "{:8}{:11} {:10} {:4.0f} s  {}".format(stage.name, stage.title, stage.end or worst, stage.seconds, told)[:WIDTH]


def limited(title, lines):
    more = [" ... {} more".format(len(lines) - MOST)] if len(lines) > MOST else []
    return [title, *[" " + line for line in lines[:MOST]], *more] if lines else []


def text(kit, kernel_lines, next_call, size):
    """`size`: limit of characters, 0: no limit."""
    stages = list(kit.stages.values())
    passed = sum(stage.has_passed() for stage in stages)
    head = "first contact{}: {} of {} stages passed".format(" (SOFTWARE GPU)" if kit.soft else "", passed, len(stages))
    lines = [head + ("; ENDED: " + kit.verdict if kit.verdict else ""), "{}; {:.0f} s of {:.0f}".format(kit.facts.get("gpu", "no GPU known"), kit.seconds(), kit.options.budget)]
    order = {name: at for at, name in enumerate(classes.FAILED)}
    failures = [one for _, one in sorted(kit.failures, key=lambda pair: order.get(pair[0], len(order)))]
    culprits = ["{}: {}".format(*pair) for pair in kit.culprits.items()]
    tail = limited("CULPRITS", culprits) + limited("SURPRISES", kit.surprises) + limited("STACK", kit.stack)
    tail += limited("KERNEL LOG", [line[:150] for line in kernel_lines[-4:]]) + limited("FAILURES", failures)
    last = "NEXT: " + next_call
    body = [stage_line(stage) for stage in stages]
    width = WIDTH
    while size and sum(map(len, lines + body + tail)) + len(lines + body + tail) + len(last) > size and width > 60:
        width = width * 3 // 4
        body, tail = [line[:width] for line in body], [line[:width] for line in tail]
    found = "\n".join(lines + body + tail)
    return (found[: size - len(last) - 2] if size else found) + "\n" + last
