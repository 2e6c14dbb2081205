"""Runs the steps of stages: each bare, then under a share; classifies them, and keeps the evidence of failures.

A failure does not end the run, because nothing can be rebuilt in between: later stages use the variant that passes.
Only a GPU that no longer answers without a share, or a process that cannot be killed, ends the run.
"""

import glob
import json
import os
import pathlib
import re
import shutil
import sys
import tarfile
import tempfile
import time

from vgpu_check.sides import compute

from . import classes, variants
from . import job as jobs
from .evidence import Evidence
from .job import Job, wait
from .tools import Tools

MIB = 1 << 20
# Seconds: for all variants of a run, for one, to check that the bare GPU still answers, beyond a stage's limit.
REPAIR, ONE_REPAIR, CANARY, AFTER_FAILURE = 60, 20, 8, 10
# Seconds for an answer of NVML; its first start may load the GPU's state.
ANSWER, FIRST_ANSWER = 4, 12
# Later failures have a row, but no evidence.
MOST_EVIDENCE = 30
# Stages whose variant is kept for all later ones.
CORE = ("S1", "S2", "S3", "S4", "planted")
CACHES = "HOME TRITON_CACHE_DIR TORCHINDUCTOR_CACHE_DIR CUDA_CACHE_PATH XDG_CACHE_HOME NUMBA_CACHE_DIR".split()


class OutOfTime(Exception):
    """The stage's time or the run's is over."""


class Ended(BaseException):
    """The run ends: a signal, or a GPU that does not answer any more."""


class Stage:
    """The results of a stage so far."""

    def __init__(self, name, title):
        self.name, self.title, self.classes, self.notes, self.seconds, self.end = name, title, [], [], 0.0, "did not end"

    def has_passed(self):
        return not self.end and classes.worst(self.classes) == classes.OK


class Kit:
    def __init__(self, options, sides, journal):
        self.options, self.sides, self.journal = options, sides, journal
        self.soft, self.out = bool(sides.soft), options.out
        self.begin = time.monotonic()
        self.end = self.begin + options.budget
        self.work = tempfile.mkdtemp(prefix="first-contact-")
        self.diag, self.home = [os.path.join(self.work, name) for name in ("diag", "home")]
        os.mkdir(self.home)
        self.tools = Tools(options.tools, self.work)
        self.stop_library = self.tools.library("stop") or ""
        self.evidence = Evidence(self.diag, self.tools)
        self.facts, self.surprises, self.failures, self.stack, self.culprits = {}, [], [], [], {}
        self.stages, self.stage, self.stage_end, self.repaired = {}, None, self.end, 0.0
        self.variant, self.living, self.watcher, self.verdict, self.has_no_share = variants.AS_IT_IS, [], None, "", False
        self.libcuda = self.driver_root = None
        self.dissect = self.dissect_dist()

    def dissect_dist(self):
        """A folder of programs in which the library with switches replaces libvgpu.so; None without that library."""
        library, folder = self.options.dist / "libvgpu-dissect.so", pathlib.Path(self.work) / "dissect"
        if not library.exists():
            return None
        folder.mkdir()
        for name in ("vgpu", "libvgpu-preload.so"):
            shutil.copy(str(self.options.dist / name), str(folder))
        shutil.copy(str(library), str(folder / "libvgpu.so"))
        (folder / "soft-gpu").symlink_to(self.options.dist / "soft-gpu")
        return folder

    # Jobs.

    def probe(self, name, *arguments):
        return self.sides.probe(name, *arguments)

    def start(self, what, *arguments, share=None, limit=10, env=None, held=False, program=None, variant=None, wrap=()):
        """Starts a probe bare, or under a share {memory, cores, policy, priority, name}: `what` is a probe of the check, or
        `module:function` of probes/; or the command `program`. `wrap`: words before its command. It ends with the stage at
        the latest."""
        left = min(self.stage_end, self.end) - time.monotonic()
        if left < min(1.5, limit):
            raise OutOfTime()
        variant = variant or self.variant
        command = [*wrap, *(program or self.probe(what, *arguments))]
        variables = {name: self.home for name in CACHES}
        variables.update(PYTHONFAULTHANDLER="1", HF_HUB_OFFLINE="1", XLA_PYTHON_CLIENT_PREALLOCATE="false")
        if share is None:
            command, environment = self.sides.bare(command, **dict(variables, **(env or {})))
        else:
            command, environment = self.limited(command, share, variant, dict(variables, **(env or {})), program)
        job = Job(command, environment, min(limit, left), held)
        job.side, job.program, job.is_cut = "bare" if share is None else "limited", program, left < limit
        job.used_before = self.truth().get("used", 0) if self.watcher and not program else 0
        self.living.append(job)
        return job

    def limited(self, command, share, variant, variables, is_program):
        """The command line and environment under a share, in a variant."""
        stop = self.stop_library if not is_program else ""
        if not variant.backstop:
            command = ["env", "LD_PRELOAD=" + stop, *command]
        if stop:
            variables["LD_PRELOAD"] = stop
        variables.update(variant.env)
        policy = variant.policy or share.get("policy")
        flags = ["--cores", str(share["cores"])] if "cores" in share and not variant.policy else []
        flags += ["--compute-policy", policy] if policy else []
        flags += ["--priority", share["priority"]] if "priority" in share else []
        if {"cores", "policy", "priority"} <= set(share) and not variant.policy:
            flags = list(compute(share["cores"], share["policy"], share["priority"]))
        memory = self.facts.get("memory", 0) // MIB * MIB if variant.whole else share.get("memory", 8 << 30)
        if variant.off:
            variables["VGPU_DISSECT"] = variant.off
        dist = self.dissect if variant.off else None
        command, environment = self.sides.limited(command, flags, memory=memory, name=share.get("name"), dist=dist, **variables)
        return (["setpriv", "--bounding-set", "-sys_admin"] if variant.ordinary else []) + command, environment

    def on_step(self, job, message):
        """Adds the truth to a step: `proc`, its processes' memory by NVML, and `grown`, the GPU's since the job began."""
        if job is self.watcher:
            return
        truth = self.truth()
        known = [truth["held"][str(pid)] for pid in message["pids"] if str(pid) in truth.get("held", {})]
        message["proc"] = sum(known) if known else None
        message["grown"] = truth["used"] - job.used_before if truth else None

    def wait(self, *those, until=lambda: False):
        wait(those, self.on_step, until)

    def wait_step(self, *those):
        """Waits until each of these held jobs is at a step or has ended; True if all are at one."""
        self.wait(*those, until=lambda: all(job.waiting or job.fate for job in those))
        return all(job.waiting for job in those)

    def together(self, *those):
        """Lets held jobs go on at once from their first step."""
        are_there = self.wait_step(*those)
        for job in those:
            job.held = False
            if job.waiting:
                job.go()
        return are_there

    def truth(self):
        """The memory of the GPU and of its processes now; empty where NVML does not answer."""
        watcher = self.watcher
        if not watcher or watcher.fate:
            return {}
        if watcher.waiting:
            watcher.go()
        watcher.end = time.monotonic() + (ANSWER if watcher.messages else FIRST_ANSWER)
        self.wait(watcher, until=lambda: watcher.waiting)
        if not watcher.waiting:
            cls, note = self.judge(watcher)
            self.row("NVML", "bare", cls, note, watcher)
            self.trouble("NVML", cls, note, watcher)
            if self.stage.name != "S0":
                self.verdict = "NVML does not answer any more"
                raise Ended()
            return {}
        del watcher.messages[:-1]
        return watcher.waiting

    # Results.

    def judge(self, job):
        return classes.of(job, bool(job.program))

    def row(self, step, side, cls, note="", job=None, **figures):
        """Writes a row. Bare steps affect the stage's class only if they failed."""
        hidden = ("kind", "name", "pids")
        steps = {name: {k: v for k, v in one.items() if k not in hidden} for name, one in (job.steps() if job else {}).items()}
        self.journal.add(
            stage=self.stage.name, step=step, side=side, variant=self.variant.name if side == "limited" else "", note=note,
            steps=steps, figures=dict(job.figures if job else {}, **figures), seconds=round(job.seconds, 2) if job else None,
            software_gpu=self.soft, **{"class": cls})
        if side == "limited" or side == "bare" and cls not in (classes.OK, classes.SKIPPED):
            self.stage.classes.append(cls)

    def trouble(self, step, cls, note, *failed, files=()):
        """Handles a failure: keeps its evidence, and checks that the GPU still answers."""
        self.failures.append((cls, "{} {} [{}] {}".format(self.stage.name, step, cls, note[:260])))
        if failed and len(self.failures) <= MOST_EVIDENCE:
            name = re.sub(r"[^A-Za-z0-9.-]+", "-", "{}-{}-{}".format(self.stage.name, step, len(self.failures)))
            stack = self.evidence.collect(name, failed, files)
            self.stack = self.stack or (["{} {}:".format(self.stage.name, step)] + stack if stack else [])
            self.keep_evidence()
        if not all([job.kill() for job in failed]):
            self.verdict = "a process of {} {} cannot be killed".format(self.stage.name, step)
            raise Ended()
        if cls in (classes.HANG, classes.CRASH) and failed and self.watcher not in failed:
            self.stage_end = max(self.stage_end, time.monotonic() + AFTER_FAILURE)
            canary = self.start("basics:canary", limit=CANARY)
            self.wait(canary)
            found, note = self.judge(canary)
            if found != classes.OK and not canary.is_cut:
                self.verdict = "the bare GPU does not answer after {} {}: {}".format(self.stage.name, step, note)
                raise Ended()

    def finish(self, step, *those, check=lambda job: None, control=None, wanted=None):
        """Waits for jobs that belong together, and writes a row for each. Returns the last class that is not ok.

        `check` returns the mistake, as text or (class, text). `wanted`: this text in the output is sufficient."""
        self.wait(*those)
        if any(job.fate == jobs.HANG and job.is_cut for job in those):
            self.row(step, those[0].side, classes.CUT, "the stage's time is over", those[0])
            raise OutOfTime()
        found = classes.OK
        for job in those:
            cls, note = self.judge(job)
            if wanted and job.fate == jobs.EXIT:
                is_there = wanted in job.text() + job.stderr()
                cls, note = (classes.OK, "") if is_there else (cls if cls in classes.FAILED else classes.DIFFERS, note or "no '{}'".format(wanted))
            wrong = check(job) if cls == classes.OK else None
            if wrong:
                cls, note = wrong if isinstance(wrong, tuple) else (classes.DIFFERS, str(wrong))
            if cls == classes.OK and control:
                noise = classes.noise(job, control)
                cls, note = (classes.NOISE, noise) if noise else (cls, note)
            self.row(step, job.side, cls, note, job)
            found = found if cls == classes.OK else cls
            if cls in classes.FAILED:
                self.trouble(step + (", bare" if job.side == "bare" else ""), cls, note, job)
            job.kill()
        return found

    def pair(self, step, what, *arguments, share, same=(), check=lambda job: None, at_once=False, env=None, **more):
        """The control bare, then (or `at_once`) under a share; the figures in `same` must be equal. Returns both jobs; None
        for one that did not pass."""

        def start(side, logs=(), **other):
            return self.start(what, *arguments, share=side, env={**(env or {}), **dict(logs)}, **more, **other)

        control = start(None)
        job = start(share) if at_once and not self.has_no_share else None
        self.wait(*filter(None, (control, job)))
        bare = self.finish(step, control, check=check)
        if bare != classes.OK or self.has_no_share:
            if job:
                job.kill()
            reason = "no share can start" if self.has_no_share else self.judge(control)[1]
            self.row(step, "limited", classes.SKIPPED if bare == classes.SKIPPED else classes.NO_CONTROL, reason)
            return (control if bare == classes.OK else None), None

        def compare(job):
            unlike = [name for name in same if job.figures.get(name) != control.figures.get(name)]
            text = unlike and "{}: {}, bare {}".format(unlike[0], *[one.figures.get(unlike[0]) for one in (job, control)])
            return check(job) or text

        job = job or start(share)
        cls = self.finish(step, job, check=compare, control=control)
        if cls in classes.HAVE_VARIANTS:
            job = self.repair(step, lambda variant, logs: start(share, logs, variant=variant), share, compare)
        return control, job if cls == classes.OK or cls in classes.HAVE_VARIANTS else None

    def repair(self, step, start, share, compare):
        """Tries variants of the failing step, with the library's and the driver's logs; the first one that passes names the
        culprit. Returns its job."""
        where = "{} {}".format(self.stage.name, step)
        for one in variants.to_try(self.variant, "policy" in share, bool(self.dissect)):
            began = time.monotonic()
            seconds = min(ONE_REPAIR, REPAIR - self.repaired, self.end - began)
            if seconds < 3:
                break
            self.stage_end = max(self.stage_end, began + seconds)
            logs = [os.path.join(self.work, name) for name in ("vgpu.log", "cuda.log", "ld.log")]
            variables = {"VGPU_LOG": logs[0] + ":debug", "CUDA_LOG_FILE": logs[1]}
            if self.stage.name == "S1":  # which files the loader opened, a log for each process
                variables.update(LD_DEBUG="files", LD_DEBUG_OUTPUT=logs[2])
            job = start(variants.merged(self.variant, one), variables)
            job.end = min(job.end, began + seconds)
            self.wait(job)
            cls, note = self.judge(job)
            wrong = compare(job) if cls == classes.OK else None
            self.row("{}, variant {}".format(step, one.name), "variant", classes.DIFFERS if wrong else cls, str(wrong or note), job)
            self.keep_logs(step, one.name, logs)
            job.kill()
            self.repaired += time.monotonic() - began
            if cls == classes.OK and not wrong:
                self.culprits[where] = "{} (variant: {})".format(one.culprit, one.name)
                if self.stage.name in CORE and one.name != "again":
                    self.variant = variants.merged(self.variant, one)
                return job
        self.culprits.setdefault(where, variants.NONE_PASSES)
        return None

    def keep_logs(self, step, variant, logs):
        for path in [path for log in logs for path in glob.glob(log + "*")]:  # a ring of calls lies beside the library's log
            folder = os.path.join(self.diag, re.sub(r"[^A-Za-z0-9.-]+", "-", "{}-{}-logs".format(self.stage.name, step)))
            os.makedirs(folder, exist_ok=True)
            os.replace(path, os.path.join(folder, "{}-{}".format(variant.replace(" ", "-"), os.path.basename(path))))

    def skip(self, step, reason):
        self.row(step, "limited", classes.SKIPPED, reason)

    def has_no_cudart(self, *steps):
        """Returns True and writes rows on the software GPU, because CUDA's runtime library does not run there."""
        for step in steps if self.soft else ():
            self.skip(step, "CUDA's runtime library does not run on the software GPU")
        return self.soft

    # Remarks on a stage.

    def tell(self, text):
        self.stage.notes.append(text)

    def beyond(self, job, low, high, what="", names=None):
        """Writes NVML's figure minus the charge, at each step of a job."""
        steps = job.steps() if job else {}
        known = {name: one for name, one in steps.items() if None not in (one.get("proc"), one.get("charged")) and (not names or name in names)}
        found = {name: (one["proc"] - one["charged"]) / MIB for name, one in known.items()}
        if found:
            self.tell("NVML beyond the charge: " + ", ".join("{}{} {:+.0f}".format(what, *pair) for pair in found.items()) + " MiB")
        for name, value in found.items():
            self.expect(what + name + ", NVML beyond the charge", value, low, high, " MiB")

    def expect(self, name, value, low, high, unit=""):
        """On a real GPU, a figure outside these bounds is a surprise, but not a failure."""
        if not low <= value <= high and not self.soft:
            self.surprises.append("{} {}: {:.4g}{}, expected {:g} to {:g}".format(self.stage.name, name, value, unit, low, high))

    # The end.

    def keep_evidence(self):
        """Writes diag.tar, so that it exists if this process is killed. The oldest evidence is dropped first."""
        if not os.path.isdir(self.diag):
            return
        names = sorted(os.listdir(self.diag), key=lambda name: os.stat(os.path.join(self.diag, name)).st_mtime)
        sizes = {name: sum(os.path.getsize(os.path.join(self.diag, name, one)) for one in os.listdir(os.path.join(self.diag, name))) for name in names}
        while names and self.options.evidence_size and sum(sizes[name] for name in names) > self.options.evidence_size * MIB:
            shutil.rmtree(os.path.join(self.diag, names.pop(0)), ignore_errors=True)
        try:
            with tarfile.open(os.path.join(self.out, "diag.tar"), "w") as tar:
                tar.add(self.diag, "diag")
        except OSError as error:
            sys.stderr.write("first-contact: no evidence is kept: {}\n".format(error))

    def write(self, name, content):
        try:
            with open(os.path.join(self.out, name), "w") as file:
                file.write(content if isinstance(content, str) else json.dumps(content, indent=1, default=str))
        except OSError as error:
            sys.stderr.write("first-contact: {} is not kept: {}\n".format(name, error))

    def end_jobs(self, keep=()):
        for job in self.living:
            if job not in keep:
                job.kill()
        self.living = list(keep)
