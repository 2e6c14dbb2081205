"""The verb `run`: stages against the clock, rows at once, the report last.

Exit status: 0 nothing failed, 1 something failed, 2 nothing can be run here (no `vgpu`, another run in this folder).
"""

import lzma
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback

from vgpu_check import machine
from vgpu_check.child import converse
from vgpu_check.journal import Busy, Journal
from vgpu_check.sides import Sides

from . import classes, report, stages, state
from .kit import Ended, Kit, OutOfTime, Stage

# A stage with less of its limit left is not started.
LEAST = 0.9
NEXT_BUDGET = 450


class Run(Kit):
    """A kit with a plan of stages."""

    def __init__(self, options, sides, journal, known):
        super().__init__(options, sides, journal)
        self.known, self.plan = known, []

    def seconds(self):
        return time.monotonic() - self.begin

    def everything(self):
        """S0 provides the state's key, which the plan needs."""
        self.one("S0", [])
        if not self.verdict and "driver_version" not in self.facts:
            self.verdict = "the machine was not looked at: S0 was {}".format(self.stages["S0"].end)
        if self.verdict:
            return
        kind = "soft" if self.soft else "real"
        self.known.begin(build=state.build_hash(self.options.dist), driver=self.facts["driver_version"], gpu=self.facts["driver"]["name"], kind=kind)
        self.plan = self.known.to_run([name for name in self.options.stages if name != "S0"], self.options.again)
        for at, name in enumerate(self.plan):
            self.one(name, self.plan[at + 1 :])
            self.verdict = self.verdict or ("no share works in any form" if self.has_no_share and name in ("S2", self.plan[-1]) else "")
            if self.verdict:
                return

    def one(self, name, later):
        """Runs a stage. It gets its limit, and the time that is left beyond the limits of the later stages that fit."""
        module = stages.load(name)
        start, left = time.monotonic(), self.end - time.monotonic()
        sys.stderr.write("first-contact: {} {} at {:.0f} s\n".format(name, module.TITLE, self.seconds()))
        self.stage = self.stages[name] = Stage(name, module.TITLE)
        spare = left - module.LIMIT
        for other in later:
            limit = stages.load(other).LIMIT
            spare -= limit if limit <= spare else 0
        self.stage_end = start + module.LIMIT + max(0.0, spare)
        try:
            if left < LEAST * module.LIMIT and name != "S0":
                self.stage.end = "not run: {:.0f} s left of {} s".format(left, module.LIMIT)
                return
            module.run_stage(self)
            self.stage.end = ""
        except OutOfTime:
            self.stage.end = "cut at its limit"
        except Exception:
            self.stage.end = "a mistake of the kit"
            self.failures.append((classes.ERROR, "{} kit [error] {}".format(name, traceback.format_exc()[-330:])))
        finally:
            self.stage.seconds = time.monotonic() - start
            self.end_jobs(keep=[job for job in (self.watcher, getattr(self, "imports", None)) if job])
            if name in stages.ORDER:
                self.known.stages[name] = report.result(self.stage)
            self.publish()

    def publish(self):
        """The report, the facts and the state so far."""
        try:
            if self.known.key:
                self.known.save(self.out)
        except OSError as error:
            sys.stderr.write("first-contact: the state is not kept: {}\n".format(error))
        text = report.text(self, self.new_driver_lines(), self.next_call(), self.options.report_size)
        self.write("report.txt", text + "\n")
        self.write("facts.json", self.facts)
        return text

    def new_driver_lines(self):
        words = ("nvrm", "xid", "segfault")
        return [line for line in self.evidence.new_kernel_lines() or [] if any(word in line.lower() for word in words)]

    def next_call(self):
        program = ("SOFT=1 " if self.soft else "") + "gpu-check/first-contact.sh"
        left = [name for name in (self.known.left(stages.ORDER) if self.known.key else stages.ORDER) if name != "S0"]
        if not left or self.verdict and self.known.key:
            return "{} explain {}".format(program, self.out)
        return "{} run --out {} --budget {} --only {}".format(program, self.out, NEXT_BUDGET, ",".join(left))

    def close(self):
        imports = getattr(self, "imports", None)
        if imports:  # its output so far
            imports.end = 0
            self.wait(imports)
            self.facts["imports"] = imports.text().splitlines()
        self.end_jobs()
        self.keep_evidence()
        tar = os.path.join(self.out, "diag.tar")
        try:
            if os.path.exists(tar):
                with open(tar, "rb") as file, lzma.open(tar + ".xz", "wb", preset=1) as packed:
                    shutil.copyfileobj(file, packed)
                os.remove(tar)
        except OSError as error:
            sys.stderr.write("first-contact: the evidence is not compressed: {}\n".format(error))
        shutil.rmtree(self.work, ignore_errors=True)
        return self.publish()


def main(options):
    if not (options.dist / "vgpu").exists():
        sys.stderr.write("first-contact: {} has no vgpu: run `make dist`, or name it with VGPU_DIST\n".format(options.dist))
        return 2
    os.makedirs(options.out, exist_ok=True)
    try:
        journal = Journal(os.path.join(options.out, "rows.jsonl"))
    except (Busy, OSError) as reason:
        sys.stderr.write("first-contact: {}\n".format(reason))
        return 2
    soft = tempfile.mkdtemp(prefix="first-contact-soft-") if options.soft else None
    try:
        return with_gpu(options, journal, soft)
    finally:
        if soft:
            shutil.rmtree(soft, ignore_errors=True)


def with_gpu(options, journal, soft):
    sides = Sides(options, soft)
    find_gpu(sides)
    run = Run(options, sides, journal, state.load(options.out, options.carried))

    def end(number, _frame):
        signal.signal(number, signal.SIG_IGN)
        run.verdict = run.verdict or "by signal {}".format(number)
        raise Ended()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    try:
        run.everything()
    except Ended:
        pass
    except Exception:  # the known results are printed anyway
        run.verdict = "a mistake of the kit: " + traceback.format_exc()[-330:].replace("\n", " ")
    print(run.close(), flush=True)
    return 1 if run.failures or run.verdict else 0


def find_gpu(sides):
    """The first GPU without MIG; without NVML's list, the driver's first one."""
    found = converse(*sides.bare(sides.probe("gpus")), 30)
    try:
        gpu = machine.choose(found.of("gpus")[0]["gpus"], None)
        sides.choose(gpu, 8 << 30)
    except (IndexError, machine.Unusable):
        sides.gpu, sides.uuid, sides.limit = 0, None, 8 << 30  # S0 reports the mistake
