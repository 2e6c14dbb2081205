"""How a probe talks to the check: lines of JSON on stdout after a mark, one line on stdin to go on.

Other lines on stdout are the libraries' own. The last line of a probe that ran to its end is `end` or
`skip`; one that ends without has died.
"""

import ctypes
import json
import os
import signal
import sys

MARK = "@gpu-check "


class Skip(Exception):
    """What this probe asks about is not here; the text says what."""


def say(kind, **fields):
    fields["kind"] = kind
    sys.stdout.write("\n" + MARK + json.dumps(fields) + "\n")
    sys.stdout.flush()


def step(name, **fields):
    """A point at which the check looks at the truth; goes on when it has."""
    fields.setdefault("pids", [os.getpid()])
    say("step", name=name, **fields)
    if not sys.stdin.readline():
        raise SystemExit(1)  # the check is gone


def run(probe):
    """Runs a probe and says how it ended; the exit status."""
    say("hello", pid=os.getpid())
    try:
        probe()
    except Skip as reason:
        say("skip", reason=str(reason))
        return 0
    except SystemExit as leaving:
        return leaving.code or 0
    except BaseException as error:  # a probe must tell whatever it met
        sys.stderr.write("{}: {}\n".format(type(error).__name__, error))
        sys.stderr.flush()
        return 1
    say("end")
    return 0


def end_with_parent():
    """No child survives a check that was killed: a `vgpu run` ends with the check, its probe with it."""
    death_signal = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(death_signal, signal.SIGKILL, 0, 0, 0)
