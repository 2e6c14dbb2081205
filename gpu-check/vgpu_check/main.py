"""Runs the check. Exit status 0: no row failed, 1: a row failed, 2: nothing can be checked here."""

import shutil
import signal
import sys
import tempfile

from . import driver_api, frameworks, gpu_time, machine, node_agent, options, overhead, report, rows
from .bench import Bench
from .child import output
from .sides import Sides
from .truth import WAYS, NoTruth, Watcher


def main():
    flags = options.parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # runs every `finally`
    state = tempfile.mkdtemp(prefix="gpu-check-") if flags.soft_gpu else None
    try:
        return check(flags, state)
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
            machine.gpus(sides, flags.patience)
        return 0
    driver, found = machine.gpus(sides, flags.patience)
    gpu = machine.choose(found, flags.gpu)
    sides.choose(gpu, machine.share(gpu["free"], flags.memory))
    heading = ["gpu-check: " + machine.describe(driver, gpu, flags.soft_gpu)]
    print(heading[0], flush=True)
    run_works(sides, flags.patience)
    watcher = Watcher(sides, flags.patience)
    try:
        wrong = watcher.learn(sides)
        if wrong:
            raise machine.Unusable("the GPU cannot be used without a share: " + wrong)
        heading.append("share: {} MiB; truth: {}".format(sides.limit >> 20, WAYS[watcher.way]))
        print(heading[1], flush=True)
        bench = Bench(flags, sides, watcher)
        run_groups(bench, flags.groups)
    finally:
        watcher.end()
    rows.judge(bench.rows, sides.limit)
    publish(flags, bench.rows, heading, sides.limit)
    return 1 if rows.counts(bench.rows)[1] else 0


def run_works(sides, patience):
    """Checks once that a share can be created, so that not every row fails for it."""
    note = output(*sides.limited(["true"]), patience)[1]
    if note:
        raise machine.Unusable("`vgpu run` does not start a command here: {}".format(note))


def run_groups(bench, groups):
    """Runs the groups; if NVML stops answering, the rows up to then are kept."""
    steps = (
        ("costs", "costs", driver_api.run_costs),
        ("seen", "seen", driver_api.run_seen),
        ("held", "held", driver_api.run_held),
        ("held", "clients", frameworks.run),
        ("overhead", "overhead", overhead.run),
        ("node", "node agent", node_agent.run),
        ("time", "time", gpu_time.run),
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


def publish(flags, found, heading, limit):
    print(report.table(found, heading[2:]), end="")
    if flags.json:
        with open(flags.json, "w") as file:
            file.write(report.as_json(found, heading, limit, flags.soft_gpu))
    if flags.markdown:
        with open(flags.markdown, "w") as file:
            file.write(report.markdown(found, heading))
