"""Runs the check. Exit status 0: no row failed, 1: a row failed, 2: nothing can be checked here."""

import shutil
import signal
import sys
import tempfile

from . import driver_api, frameworks, gpu_time, machine, mig, node_agent, options, overhead, report, rows
from .bench import Bench, patience_of
from .child import output
from .journal import Busy, Journal
from .sides import Sides
from .truth import WAYS, NoTruth, Watcher


def main():
    flags = options.parse()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # runs every `finally`
    state = tempfile.mkdtemp(prefix="gpu-check-") if flags.soft_gpu else None
    try:
        return check(flags, state)
    except Busy as reason:
        print("gpu-check: {}".format(reason), file=sys.stderr)
        return 2
    except (machine.Unusable, NoTruth) as reason:
        hint = "" if flags.soft_gpu else "; `make gpu-check SOFT=1` runs what the software GPU can answer"
        print("gpu-check: {}{}".format(reason, hint), file=sys.stderr)
        return 2
    finally:
        if state:
            shutil.rmtree(state, ignore_errors=True)


def check(flags, state):
    sides = Sides(flags, state)
    if flags.look:
        if not flags.soft_gpu:
            machine.gpus(sides, patience_of("gpus", flags.patience))
        return 0
    journal = Journal(flags.rows)
    driver, found = machine.gpus(sides, patience_of("gpus", flags.patience))
    if flags.groups == ("mig",):
        return only_mig(flags, sides, journal, driver)
    gpu = machine.choose(found, flags.gpu)
    sides.choose(gpu, machine.share(gpu["free"], flags.memory))
    heading = ["gpu-check: " + machine.describe(driver, gpu, flags.soft_gpu)]
    print(heading[0], flush=True)
    run_works(sides, flags.patience)
    watcher = Watcher(sides, patience_of("watch", flags.patience))
    bench, ended = None, "by a signal"
    try:
        wrong = watcher.learn(sides)
        if wrong:
            raise machine.Unusable("the GPU cannot be used without a share: " + wrong)
        heading.append("share: {} MiB; truth: {}".format(sides.limit >> 20, WAYS[watcher.way]))
        print(heading[1], flush=True)
        journal.add(machine=heading, software_gpu=flags.soft_gpu, limit=sides.limit)
        bench = Bench(flags, sides, watcher, journal)
        run_groups(bench, flags.groups)
        ended = ""
    finally:
        watcher.end()
        if bench:
            publish(flags, bench, heading, ended)
    return 1 if rows.counts(bench.rows)[1] else 0


def only_mig(flags, sides, journal, driver):
    """The rows for MIG alone, which need neither a share nor a GPU without MIG."""
    heading = ["gpu-check: MIG alone, driver {}".format(driver)]
    print(heading[0], flush=True)
    journal.add(machine=heading, software_gpu=flags.soft_gpu, limit=None)
    bench, ended = Bench(flags, sides, None, journal), "by a signal"
    try:
        run_groups(bench, flags.groups)
        ended = ""
    finally:
        publish(flags, bench, heading, ended)
    return 1 if rows.counts(bench.rows)[1] else 0


def run_works(sides, patience):
    """Checks once that a share can be created, so that not every row fails for this reason."""
    note = output(*sides.limited(["true"]), patience)[1]
    if note:
        raise machine.Unusable("`vgpu run` does not start a command here: {}".format(note))


def run_groups(bench, groups):
    """Runs the groups, the most informative ones first; if NVML stops answering, the rows so far are kept."""
    steps = (
        ("seen", "seen", driver_api.run_seen),
        ("held", "held", driver_api.run_held),
        ("held", "clients", frameworks.run),
        ("time", "time", gpu_time.run),
        ("node", "node agent", node_agent.run),
        ("mig", "MIG", mig.run),
        ("costs", "costs", driver_api.run_costs),
        ("overhead", "overhead", overhead.run),
    )
    for group, name, run in steps:
        if group not in groups:
            continue
        print("gpu-check: {} ...".format(name), file=sys.stderr, flush=True)
        try:
            run(bench)
        except NoTruth as reason:
            bench.add(rows.Row(group, name, rows.FAILED, str(reason)))
            return


def publish(flags, bench, heading, ended):
    """Applies the rules that need all rows, and prints the summary, even if a signal ends the check."""
    for row in rows.judge(bench.rows, bench.limit):
        bench.write(row)  # once more: the last line with a row's name is valid
    if flags.json:
        with open(flags.json, "w") as file:
            file.write(report.as_json(bench.rows, heading, bench.limit, flags.soft_gpu, ended))
    if flags.markdown:
        with open(flags.markdown, "w") as file:
            file.write(report.markdown(bench.rows, heading))
    print(report.summary(bench.rows, ended), end="", flush=True)
