"""The verb `selftest`: tests the kit itself. Failures are caused on the software GPU; each must get the right class and its
evidence, in time. The scenes run at the same time; each is a separate `run` in its own folder.

It prints `N checks, M failed` at the end, and exits with 1 if one failed. Its processes end with it.
"""

import concurrent.futures
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time

from vgpu_check import journal

from .options import GPU_CHECK
from .stages import FIRST, load
from .stages.planted import KINDS
from .tools import Tools

# Seconds in which a scene must end, on a machine with other work.
IN_TIME = 150
AT_ONCE = 3
BUDGET_OF_FIRST = 240
REPORT = 9500


class Scene:
    """A run in a folder, and the files after it."""

    def __init__(self, folder, name, dist=None):
        self.out, self.name, self.dist = os.path.join(folder, name), name, dist

    def start(self, *flags):
        environment = dict(os.environ, SOFT="1")
        environment.update({"VGPU_DIST": self.dist} if self.dist else {})
        command = [str(GPU_CHECK / "first-contact.sh"), "run", "--out", self.out, *flags]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)

    def run(self, *flags):
        return self.end(self.start(*flags))

    def end(self, process):
        self.text, self.words = process.communicate(timeout=IN_TIME)
        self.status = process.returncode
        return self

    def rows(self):
        return journal.read(os.path.join(self.out, "rows.jsonl"))

    def row(self, step, side="limited"):
        """The class of the last row of a step."""
        found = [row["class"] for row in self.rows() if (row["step"], row["side"]) == (step, side)]
        return found[-1] if found else None

    def evidence(self):
        """{name: text} of the evidence."""
        for name in ("diag.tar.xz", "diag.tar"):
            path = os.path.join(self.out, name)
            if os.path.exists(path):
                with tarfile.open(path) as tar:
                    return {one.name: tar.extractfile(one).read().decode(errors="replace") for one in tar.getmembers() if one.isfile()}
        return {}

    def eventually(self, holds, seconds=60):
        end = time.monotonic() + seconds
        while not holds() and time.monotonic() < end:
            time.sleep(0.1)
        return holds()

    def processes(self):
        """Its processes that are still running."""
        found = []
        for one in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                is_ours = self.out.encode() in one.joinpath("cmdline").read_bytes()
                is_ours = is_ours or b"first_contact" in one.joinpath("cmdline").read_bytes() and self.out.encode() in one.joinpath("environ").read_bytes()
                found += [one.name] if is_ours else []
            except OSError:
                pass
        return found


def stacks_of(scene, kind, has_unwinder):
    """Returns whether the evidence of a planted failure shows the driver's library in a stack."""
    found = [text for name, text in scene.evidence().items() if name.endswith("stacks.txt") and "planted-" + kind in name]
    return bool(found) and (not has_unwinder or any(".so" in text and "#" in text for text in found))


def classes_scene(folder, options):
    """All kinds except the hang, in one run."""
    scene = Scene(folder, "classes")
    kinds = [kind for kind in KINDS if kind != "hang"]
    scene.run("--only", "planted", "--planted", ",".join(kinds + ["in both"]), "--report-size", str(REPORT))
    for kind in kinds:
        yield "planted {} is {}".format(kind, KINDS[kind]), scene.row(kind) == KINDS[kind], (scene.row(kind), scene.words)
    yield "what fails bare too has no control", scene.row("in both") == "no control", scene.row("in both")
    yield "the culprit is named", "planted policy: the limiter of GPU time (variant: policy unlimited)" in scene.text, scene.text
    lines = scene.text.rstrip().splitlines()
    good = scene.status == 1 and lines[-1].startswith("NEXT: ") and len(scene.text) <= REPORT + 1 and "SOFTWARE GPU" in lines[0]
    yield "status 1, a report below {} characters, NEXT last".format(REPORT), good, (scene.status, len(scene.text), lines[-1:])
    yield "a crash has stacks", stacks_of(scene, "crash", options.has_unwinder), list(scene.evidence())
    yield "a crash has maps and stderr", any("planted-crash" in name and name.endswith("proc.txt") and "libcuda" in text for name, text in scene.evidence().items()), ""
    yield "no process is left", scene.eventually(lambda: not scene.processes(), 10), scene.processes()
    explained = subprocess.run([str(GPU_CHECK / "first-contact.sh"), "explain", scene.out], stdout=subprocess.PIPE, universal_newlines=True)
    yield "explain names each failure and what to do", explained.stdout.count("\n  do: ") >= len(kinds), explained.stdout


def hang_scene(folder, options):
    """A hang ends at its limit; killed in the next one, the run keeps its results; a later run continues there."""
    scene = Scene(folder, "hang")
    process = scene.start("--only", "S2,planted", "--planted", "hang")
    is_seen = scene.eventually(lambda: scene.row("hang") == "hang" and os.path.exists(os.path.join(scene.out, "diag.tar")))
    yield "planted hang is hang, by its limit", is_seen, scene.rows()[-3:]
    second = Scene(folder, "hang").run("--only", "S2")
    yield "a second run in the folder is refused", second.status == 2 and "another run" in second.words, second.words
    process.kill()
    scene.end(process)
    kept = {"rows.jsonl", "report.txt", "state.json", "diag.tar"} <= set(os.listdir(scene.out))
    yield "killed by the limit of the call: rows, report, state and evidence are there", kept, os.listdir(scene.out)
    yield "a hang has stacks", stacks_of(scene, "hang", options.has_unwinder), list(scene.evidence())
    yield "killed: no process is left", scene.eventually(lambda: not scene.processes(), 15), scene.processes()
    before = len(scene.rows())
    scene.run("--only", "S2,S3")
    later = [row["stage"] for row in scene.rows()[before:]]
    yield "a later run goes on: S2, which passed, is skipped", "S2" not in later and "S3" in later and scene.status == 0, (later, scene.text)
    scene.run("--only", "S2,S3")
    yield "the canary S3 is repeated", [row["stage"] for row in scene.rows()].count("S3") >= 2 * later.count("S3"), scene.text


def without_nvml_scene(folder, options):
    """NVML cannot be loaded, as on a machine with half a driver."""
    dist = pathlib.Path(folder) / "without-nvml"
    shutil.copytree(str(options.dist / "soft-gpu"), str(dist / "soft-gpu"))
    for name in ("vgpu", "libvgpu.so", "libvgpu-preload.so", "vgpu-kubelet-plugin"):
        (dist / name).symlink_to(options.dist / name)
    library = dist / "soft-gpu" / "libnvidia-ml.so.1"
    library.unlink()
    library.write_text("no library")
    scene = Scene(folder, "nvml", str(dist)).run("--only", "S1,S2")
    yield "no NVML is an error with its reason", scene.row("NVML", "bare") == "error", scene.rows()
    yield "no NVML: the bare GPU is measured all the same", scene.row("contexts", "bare") == "ok", scene.text
    named = scene.row("names") == "no control" and "file too short" in scene.text and "a mistake of the kit" not in scene.text
    yield "no NVML: what needs it has no control, and the report has the reason", named and scene.status == 1, scene.text


def limits_scene(folder, options):
    scene = Scene(folder, "limits").run("--only", "S2,S5", "--budget", "40")
    yield "too small a budget: S5 is not run, and is next", "not run" in scene.text and "S5" in scene.text.rstrip().split("\n")[-1], (scene.status, scene.text, scene.words)
    process = Scene(folder, "ended").start("--only", "S5")
    ended = Scene(folder, "ended")
    ended.eventually(lambda: any(row["stage"] == "S5" for row in ended.rows()))
    process.send_signal(signal.SIGTERM)
    ended.end(process)
    yield "SIGTERM: the report is printed", "ENDED: by signal 15" in ended.text, ended.text
    total = sum(load(name).LIMIT for name in FIRST)
    yield "the limits of S0 to S8 fit into {} s".format(BUDGET_OF_FIRST), total <= BUDGET_OF_FIRST, total


def container_scene(folder, options):
    """If a container can be created, its share is enforced."""
    scene = Scene(folder, "container").run("--only", "S13")
    reasons = [row["note"] for row in scene.rows() if row["step"] == "a container" and row["class"] == "skipped"]
    if reasons:
        options.unchecked.append("a container: " + reasons[0])
        return
    steps = ("a container: what it sees", "a container: until refused")
    yield "a container sees its share and is refused at its limit", [scene.row(step) for step in steps] == ["ok", "ok"], scene.text


def main(options):
    if not (options.dist / "vgpu").exists():
        sys.stderr.write("selftest: {} has no vgpu: run `make dist`, or name it with VGPU_DIST\n".format(options.dist))
        return 2
    folder = tempfile.mkdtemp(prefix="first-contact-selftest-")
    options.has_unwinder = Tools(options.tools, folder).program("eu-stack") is not None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    failed, count, start = 0, 0, time.monotonic()
    options.unchecked = []
    try:
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            scenes = [hang_scene, classes_scene, without_nvml_scene, limits_scene, container_scene]
            for checks in [pool.submit(lambda scene=scene: list(scene(folder, options))) for scene in scenes]:
                for name, is_good, detail in checks.result():
                    count, failed = count + 1, failed + (not is_good)
                    print("{} {}{}".format("ok    " if is_good else "FAILED", name, "" if is_good else ": " + json.dumps(detail, default=str)[:1500]), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if not options.has_unwinder:
        options.unchecked.append("what stacks show: no eu-stack (FIRST_CONTACT_TOOLS names a folder with it)")
    for one in options.unchecked:
        print("not checked: " + one)
    print("{} checks, {} failed, {:.0f} s".format(count, failed, time.monotonic() - start))
    return 1 if failed else 0
