"""Runs the probes of all groups, bare or under a share and within the time, and turns errors into rows.

A row is added once it is complete: it is printed, and written to the journal, before the next probe starts.
"""

import json
import time

from . import expected, report
from .child import Ended, converse, output, side_by_side
from .rows import FAILED, SKIPPED, Row
from .truth import Account

# Probes that import a framework or start NVML: reading their files from a cold disk takes longer than any call.
SLOW = ("mig", "clients", "torch_fill", "torch_step", "gpus", "watch", "utilisation")
SLOWER = 4  # times
NOT_RUN = "not run"


def patience_of(probe, patience):
    """Seconds for which this kind of probe may be silent."""
    return patience * (SLOWER if probe in SLOW else 1)


class Bench:
    def __init__(self, options, sides, watcher, journal):
        self.options, self.sides, self.watcher, self.journal = options, sides, watcher, journal
        self.limit, self.rows = sides.limit, []
        self.end = time.monotonic() + options.time
        self.begun, self.control, self.group = time.monotonic(), "", None

    def add(self, row):
        """Keeps a complete row."""
        now = time.monotonic()
        row.seconds, self.begun = round(now - self.begun, 2), now
        row.control = self.control
        if not self.sides.soft:
            row.expected, row.is_surprise = expected.of(row)
        self.rows.append(row)
        self.write(row)
        return row

    def write(self, row):
        if row.group != self.group:
            self.group = row.group
            print("\n" + report.TITLES[row.group], flush=True)
        print(report.line(row), flush=True)
        self.journal.add(**row.as_dict())

    def patience(self, probe, silent=0):
        """Seconds for which the next probe may be silent; 0: the time is up. `silent`: the time that its work needs."""
        return max(0.0, min(patience_of(probe, self.options.patience) + silent, self.end - time.monotonic()))

    def not_run(self):
        ended = Ended()
        ended.note = "not run: the {:.0f} s are over".format(self.options.time)
        return ended

    def run_of(self, side, command, compute=(), **variables):
        """The command and environment of a probe; `compute` are a share's flags."""
        if side == "limited":
            return self.sides.limited(command, compute, **variables)
        return self.sides.bare(command, **variables)

    def probe(self, side, name, *arguments, at_step=None, compute=(), silent=0, control=None, **variables):
        """Runs a probe; `at_step` gets each step and the memory of its processes according to the driver.

        A limited probe also runs without a share: first, so that each row has the result; with --quick only after
        a failure. `control`: the result, if the caller has already run it.
        """
        patience = self.patience(name, silent)
        self.begun, self.control = time.monotonic(), control or ""
        if not patience:
            return self.not_run()
        command, bare = self.sides.probe(name, *arguments), None
        if side == "limited" and control is None:
            self.control = NOT_RUN
            if not self.options.quick:
                bare = self.bare(name, command, variables)
                self.begun = time.monotonic()
        account = Account(self.watcher) if at_step else None
        run = self.run_of(side, command, compute, **variables)
        ended = converse(*run, patience, at_step and (lambda message: at_step(message, account.held(message["pids"]))))
        if side == "limited" and ended.note and not ended.hung:
            # A probe that also fails without limits shows nothing about them.
            bare = bare or self.bare(name, command, variables)
            if bare.note and not bare.hung:
                ended.note, ended.skip = "", "does not work without a share either: " + bare.note
        return ended

    def bare(self, name, command, variables):
        """Runs a probe without a share, and stores the result."""
        ended = converse(*self.sides.bare(command, **variables), self.patience(name))
        skipped = "skipped: {}".format(ended.skip) if ended.skip is not None else "ok"
        self.control = "fails: " + ended.note if ended.note else skipped
        return ended

    def probes(self, *wanted, silent=0):
        """Runs probes at the same time, step by step; each of `wanted` is (side, compute flags, name, arguments ...)."""
        patience = self.patience(wanted[0][2], silent)
        self.begun, self.control = time.monotonic(), ""
        if not patience:
            return [self.not_run() for _ in wanted]
        runs = [self.run_of(side, self.sides.probe(*probe), compute) for side, compute, *probe in wanted]
        return side_by_side(runs, patience)

    def program(self, command):
        """Runs a program under the share and returns (stdout, note)."""
        patience = self.patience("program")
        self.begun, self.control = time.monotonic(), ""
        if not patience:
            return "", self.not_run().note
        return output(*self.sides.limited(command), patience)

    def ask_plugin(self, name, *arguments):
        """Runs the kubelet plugin's check and returns its answer; None after a row with the reason."""
        patience = self.patience("plugin")
        self.begun, self.control = time.monotonic(), ""
        if not patience:
            self.add(Row("node", name, FAILED, self.not_run().note))
            return None
        text, note = output(*self.sides.bare(self.sides.plugin_check(*arguments)), patience)
        if not note:
            try:
                return json.loads(text)
            except ValueError:
                note = "the plugin's answer is no JSON"
        self.add(Row("node", name, FAILED, note))
        return None

    def close(self, group, name, ended, row=None):
        """Records the end of a probe: a failure or a skip of `row`, which the caller adds, or of a new one."""
        if ended.note:
            if row is None:
                self.add(Row(group, name, FAILED, ended.note))
            else:
                row.fail(ended.note)
        elif ended.skip is not None:
            if row is None:
                self.add(Row(group, name, SKIPPED, ended.skip))
            elif row.outcome != FAILED:
                row.outcome, row.note = SKIPPED, ended.skip
        return row
