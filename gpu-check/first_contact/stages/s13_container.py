"""A container without Kubernetes: the plugin's CDI edits applied by runc over this machine's own root. The limit of memory
holds, and programs see the share."""

import json
import os
import sys

from .s03_refusal import SHARE, wrong
from .s07_clients import refused

TITLE, LIMIT = "container", 45
SCRIPT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "container.py")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
# Variables of the machine that its programs need.
KEPT = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_HOME", "SOFT_GPU_PROFILE")


def prefix(kit, runc, name, is_limited):
    """The command before that of a probe; each container has a folder of its own."""
    work = os.path.join(kit.work, "container-" + name)
    os.makedirs(work)
    environment = {one: os.environ[one] for one in KEPT if one in os.environ}
    environment.update(HOME=kit.home, PYTHONDONTWRITEBYTECODE="1", PYTHONUNBUFFERED="1", PYTHONFAULTHANDLER="1")
    plugin, devices = None, list(DEVICES)
    folders = {kit.work, str(kit.options.dist), os.path.dirname(kit.options.probe)}
    if is_limited:
        plugin = kit.sides.plugin_check(
            "container", "--gpu", kit.sides.uuid, "--memory", str(SHARE >> 20), "--library-dir", str(kit.options.dist), "--folder", work)
        plugin += ["--soft-gpu-state", kit.sides.soft] if kit.soft else []
    else:
        devices += [path for path in kit.facts.get("nodes", []) if not os.path.isdir(path)]
        if kit.soft:
            environment.update(LD_LIBRARY_PATH=str(kit.options.dist / "soft-gpu"), SOFT_GPU_STATE=kit.sides.soft)
    folders |= {kit.sides.soft} if kit.soft else set()
    path = os.path.join(work, "job.json")
    with open(path, "w") as file:
        job = {"runc": runc, "work": work, "plugin": plugin, "binds": sorted(folders), "devices": devices, "environment": environment}
        json.dump(job, file)
    return [sys.executable, SCRIPT, path, "--"]


def in_container(kit, runc, step, check, *probe):
    """A probe in a container of the bare GPU, then in one with a share."""
    for side in ("bare", "limited"):
        name = "{}-{}".format(step.replace(" ", "-"), side)
        job = kit.start(*probe, wrap=prefix(kit, runc, name, side == "limited"), limit=20)
        job.side = side
        ended = kit.finish("a container: " + step, job, check=check)
        if ended != "ok":
            if side == "bare":
                kit.row("a container: " + step, "limited", "no control", kit.judge(job)[1])
            return None
    return job


def seen(job):
    """Anything but one GPU, and the share's memory."""
    return job.side == "limited" and [pair for pair in job.figures.items() if pair[1] not in (1, SHARE)]


def run_stage(kit):
    runc = kit.tools.program("runc")
    if not runc or not (kit.options.dist / "vgpu-cdi-hook").exists():
        return kit.skip("a container", "no runc or no vgpu-cdi-hook here: `pack` carries both")
    if os.geteuid() != 0:
        return kit.skip("a container", "it needs root")
    if in_container(kit, runc, "what it sees", seen, "seen") is None:
        return None
    in_container(kit, runc, "until refused", wrong, "fill", "cuMemAlloc", SHARE)
    if not kit.has_no_cudart("a container: PyTorch"):
        in_container(kit, runc, "PyTorch", lambda job: job.side == "limited" and refused(job, SHARE), "torch_fill", "plain", SHARE)
    return None
