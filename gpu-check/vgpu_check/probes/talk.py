"""The protocol between probe and check: lines of JSON on stdout after a mark, one line on stdin to continue.

Other lines on stdout come from libraries. The last line of a probe that finished is `end` or `skip`; without
one of them it died.
"""

import ctypes
import json
import os
import signal
import sys
import traceback

MARK = "@gpu-check "


class Skip(Exception):
    """A feature that the probe needs is absent here; the text names it."""


def say(kind, **fields):
    fields["kind"] = kind
    sys.stdout.write("\n" + MARK + json.dumps(fields) + "\n")
    sys.stdout.flush()


def figures(**values):
    """Reports figures by name, for the row of this probe."""
    say("figures", **{name: round(value, 4) if isinstance(value, float) else value for name, value in values.items()})


def step(name, **fields):
    """Reports a step and waits until the check has read the truth."""
    fields.setdefault("pids", [os.getpid()])
    say("step", name=name, **fields)
    if not sys.stdin.readline():
        raise SystemExit(1)  # the check has ended


def run(probe):
    """Runs a probe, reports its end, and returns the exit status."""
    say("hello", pid=os.getpid())
    try:
        probe()
    except Skip as reason:
        say("skip", reason=str(reason))
        return 0
    except SystemExit as leaving:
        return leaving.code or 0
    except BaseException as error:  # a probe reports every error
        traceback.print_exc()
        sys.stderr.write("{}: {}\n".format(type(error).__name__, error))
        sys.stderr.flush()
        return 1
    say("end")
    return 0


def end_with_parent():
    """Makes the kernel kill this process with its parent, so that a killed check leaves no children."""
    death_signal = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(death_signal, signal.SIGKILL, 0, 0, 0)
