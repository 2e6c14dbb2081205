"""Runs the probes of all groups, bare or under a share and within the time, and turns errors into rows."""

import json
import time

from .child import Ended, converse, output, side_by_side
from .rows import FAILED, SKIPPED, Row
from .truth import Account


class Bench:
    def __init__(self, options, sides, watcher):
        self.options, self.sides, self.watcher = options, sides, watcher
        self.limit, self.rows = sides.limit, []
        self.end = time.monotonic() + options.time

    def add(self, row):
        self.rows.append(row)
        return row

    def patience(self):
        """Seconds that the next probe may be silent; 0: the time is up."""
        return max(0.0, min(self.options.patience, self.end - time.monotonic()))

    def not_run(self):
        ended = Ended()
        ended.note = "not run: the {:.0f} s are over".format(self.options.time)
        return ended

    def run_of(self, side, command, compute=(), **variables):
        """The command and environment of a probe; `compute` is for a share."""
        if side == "limited":
            return self.sides.limited(command, compute, **variables)
        return self.sides.bare(command, **variables)

    def probe(self, side, name, *arguments, at_step=None, compute=(), **variables):
        """Runs a probe; `at_step` gets each step and the memory of its processes by the driver's account."""
        patience = self.patience()
        if not patience:
            return self.not_run()
        account = Account(self.watcher) if at_step else None
        command = self.sides.probe(name, *arguments)
        run = self.run_of(side, command, compute, **variables)
        ended = converse(*run, patience, at_step and (lambda message: at_step(message, account.held(message["pids"]))))
        if side == "limited" and ended.note and not ended.hung:
            # A probe that fails without limits too shows nothing about them.
            bare = converse(*self.sides.bare(command, **variables), self.patience())
            if bare.note and not bare.hung:
                ended.note, ended.skip = "", "does not work without a share either: " + bare.note
        return ended

    def probes(self, *wanted):
        """Runs probes at once, from step to step; each of `wanted` is (side, compute flags, name, arguments ...)."""
        patience = self.patience()
        if not patience:
            return [self.not_run() for _ in wanted]
        runs = [self.run_of(side, self.sides.probe(*probe), compute) for side, compute, *probe in wanted]
        return side_by_side(runs, patience)

    def program(self, command):
        """Runs a program under the share and returns (stdout, note)."""
        patience = self.patience()
        if not patience:
            return "", "not run: the {:.0f} s are over".format(self.options.time)
        return output(*self.sides.limited(command), patience)

    def ask_plugin(self, name, *arguments):
        """Runs the kubelet plugin's check and returns its answer; None after a row that says why there is none."""
        patience = self.patience()
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
        """Records the end of a probe: a failure of its row (a new one if it has none yet), or a skip."""
        if ended.note:
            (row or self.add(Row(group, name))).fail(ended.note)
        elif ended.skip is not None:
            if row is None:
                self.add(Row(group, name, SKIPPED, ended.skip))
            elif row.outcome != FAILED:
                row.outcome, row.note = SKIPPED, ended.skip
        return row
