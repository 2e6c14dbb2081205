"""The result of a step, as one word. Pure.

    crash       a fatal signal                    hang     no end within its limit
    refused     the library refused a call (800)  error    another error
    differs     a wrong result or figure          slow     right, but too late
    noise       lines on stderr that the bare control does not have
    no control  it also fails bare      skipped  not possible here, with the reason
    cut         the stage or the run ran out of time before the step's limit
"""

import re

from . import job as jobs

OK, SKIPPED, NO_CONTROL, CUT = "ok", "skipped", "no control", "cut"
CRASH, HANG, REFUSED, ERROR, DIFFERS, SLOW, NOISE = "crash", "hang", "refused", "error", "differs", "slow", "noise"
# The worst first. Variants are tried for the first four; the others have a result to examine.
FAILED = (CRASH, HANG, REFUSED, ERROR, DIFFERS, SLOW, NOISE)
HAVE_VARIANTS = (CRASH, HANG, REFUSED, ERROR)
NOT_PERMITTED = "answers 800"  # CUDA_ERROR_NOT_PERMITTED
# A shell's exit status is this plus the signal's number.
BY_SIGNAL = 128


def worst(classes):
    return next((one for one in FAILED + (NO_CONTROL, CUT) if one in classes), OK)


def of(job, is_program):
    """(class, note) of a job that has ended. `is_program`: a program that does not report its end, unlike a probe."""
    lines = [line for line in job.stderr().splitlines() if line.strip()]
    refusals = [line for line in lines if line.startswith(("vgpu: ", "vgpu run: ")) or NOT_PERMITTED in line]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    words, code = (refusals or named or lines or [""])[-1][:300], job.code()
    if job.fate == jobs.HANG:
        reported = [message.get("name") or message["kind"] for message in job.messages]
        return HANG, "no end in {:.0f} s; last report: {}".format(job.limit, reported[-1] if reported else "none")
    if job.fate == jobs.STOPPED:
        return CRASH, "stopped at a fatal signal; " + words
    if code < 0 or code > BY_SIGNAL:
        return CRASH, "exit status {}; {}".format(code, words)
    if job.of("skip"):
        return SKIPPED, job.of("skip")[0]["reason"]
    if named and "ModuleNotFoundError" in named[-1]:
        return SKIPPED, named[-1]
    if code or not (is_program or job.of("end")):
        return (REFUSED if refusals else ERROR), "exit status {}; {}".format(code, words)
    return OK, ""


def noise(job, control):
    """The first line on stderr that the control does not have, ignoring numbers."""

    def lines(one):
        return {re.sub(r"0x[0-9a-f]+|[0-9.]+", "N", line).strip() for line in one.stderr().splitlines()}

    return next(iter(sorted(lines(job) - lines(control) - {""})), "")[:200]
