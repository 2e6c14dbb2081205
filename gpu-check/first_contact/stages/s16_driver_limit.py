"""Whether this machine's driver limits the GPU memory of a cgroup (r615 and newer, cgroup v2): vgpu-driver-limit makes a
cgroup, limits it, reads the limit back, and removes it. Nothing else on the machine is in that cgroup.

The plugin asks the same program on a node, so the stage also says what a node like this machine would publish. The parts that
decide it are told apart: the driver's functions, the hierarchy of cgroups as this process sees it, and the answer for the GPU. The
hook itself runs when a container runtime makes a container, which this stage does not do; it names the runtimes that are here."""

import json
import os
import shutil

from .. import elf

TITLE, LIMIT = "driver's limit", 30
STEP = "the driver limits a cgroup"
# The NVML function that a driver of r615 has.
FUNCTION = "nvmlDeviceSetMemoryLimits_v1"
# Exit statuses of the program: the answer is no, and there is no answer.
REFUSED, NO_ANSWER = 1, 3
# Its answers for a GPU that has nothing to test.
ABSENT = ("MIG mode", "NVML_ERROR_NOT_SUPPORTED")
# Its answers for a machine that has nothing to test: an older driver, another hierarchy of cgroups.
UNABLE = ("older than r615", "cgroup v1", "hybrid", "of the hierarchy is mounted")
# Runtimes that run createRuntime hooks of CDI in the node's namespaces.
RUNTIMES = ("runc", "crun")


def nvml(kit):
    return os.path.join(os.path.dirname(kit.libcuda), "libnvidia-ml.so.1")


def driver(path):
    """Without loading it: whether it has the function is known also where the cgroups are of version 1."""
    try:
        has = FUNCTION in elf.exports(path)
    except OSError as error:
        return "{} cannot be read: {}".format(path, error.strerror)
    return "the driver {} {}".format("has" if has else "is older than r615: it has no", FUNCTION)


def cgroups(proc="/proc/self"):
    """What this process sees. A container has a namespace of cgroups of its own, or only a part of the hierarchy mounted."""
    with open(proc + "/mountinfo") as file:
        mounts = [line.split() for line in file]
    version_2 = [words[3:5] for words in mounts if words[words.index("-") + 1] == "cgroup2"]
    at_root = [root for root, place in version_2 if place == "/sys/fs/cgroup"]
    if not at_root:
        return "cgroups: hybrid, v2 beside v1" if version_2 else "cgroups: v1"
    if at_root[-1] != "/":
        return "cgroups: v2, of which only {} is mounted".format(at_root[-1])
    with open(proc + "/cgroup") as file:
        own = next((line.strip()[3:] for line in file if line.startswith("0::")), "unknown")
    return "cgroups: v2 alone; this process is in {}".format(own)


def answer(text, gpu):
    """The answer for the GPU: a word, or a word and the reason."""
    found = json.loads(text.splitlines()[0])
    if found["gpu"] != gpu:
        raise ValueError("it is about another GPU")
    limit = found["driverLimit"]
    return (limit, "") if isinstance(limit, str) else next(iter(limit.items()))


def what(job, gpu):
    """What the program says: `dmem`, `misc`, `none` or `unknown`, and why. Raises ValueError if that cannot be read."""
    line = (job.stderr().strip().splitlines() or [""])[-1]
    if job.code() == REFUSED:
        return "none", line
    if job.code() == NO_ANSWER:
        return "unknown", line
    try:
        return answer(job.text(), gpu)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError("it says {!r}".format(job.text())) from error


def run_stage(kit):
    program = kit.options.dist / "vgpu-driver-limit"
    if not program.exists():
        return kit.skip(STEP, "no vgpu-driver-limit here: `pack` carries it")
    if os.geteuid() != 0:
        return kit.skip(STEP, "it needs root")
    kit.tell(driver(nvml(kit)))
    kit.tell(cgroups())
    there = [name for name in RUNTIMES if shutil.which(name)]
    kit.tell("the hook was not run: it needs a container runtime; here: {}".format(", ".join(there) or "none of " + ", ".join(RUNTIMES)))
    command = [str(program), "probe", "--gpu", kit.sides.uuid, "--nvml", nvml(kit)]
    job = kit.start(None, program=command + (["--soft-gpu", kit.sides.soft] if kit.soft else []), limit=28)
    kit.wait(job)
    try:
        limit, why = what(job, kit.sides.uuid)
    except ValueError:
        limit, why = "", ""
    if limit == "none" and any(reason in why for reason in ABSENT + UNABLE):
        job.kill()
        kit.tell("a node like this publishes driverLimit: none, because " + why)
        return kit.skip(STEP, why)
    if kit.finish(STEP, job, check=lambda job: limit not in ("dmem", "misc") and (why or "it says {!r}".format(job.text()))) == "ok":
        kit.tell("kept by {0}; a node like this publishes driverLimit: {0}".format(limit))
    return None
