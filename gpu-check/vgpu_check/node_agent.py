"""The group node: results of the kubelet plugin's own code on this machine, without a cluster.

    dist/vgpu-kubelet-plugin check ─┬─ child      NVML in a process of its own: its list, its time, its end
                                    ├─ processes  while a probe holds memory under a share, and another one without
                                    └─ injection  files and device nodes, beside those of the loader and of /dev

Failure modes: without the program the rows are skipped. Mount namespaces show the share of a process: this
needs a `vgpu run` by root that could create one, and the right to see all processes; otherwise these rows are skipped.
In a container, where NVML has PIDs of another namespace or none, the rows that need a PID are.
"""

import glob
import os
import time

from . import node_rows
from .child import converse, output
from .rows import FAILED, SKIPPED, Row

# Seconds for the plugin's child to end after the plugin.
LEAVE = 10
CONTAINER = "NVML does not list processes by the PIDs of this machine (in a container); the plugin needs hostPID"
ALONE = "`vgpu run` makes no mount namespace here (that needs root)"
DENIED = "this process may not read the mounts of all others (that needs root with CAP_SYS_PTRACE)"
NO_FILES = "the software GPU has no file with a version"
NO_NODES = "the software GPU has no device nodes"


def run(bench):
    program = bench.sides.plugin()
    if not program.exists():
        for name in ("child", "matching", "injection"):
            bench.add(Row("node", name, SKIPPED, "{} is missing: run `make dist`".format(program)))
        return
    ended = bench.probe("bare", "gpus")
    found = ended.of("gpus")
    if ended.note or not found:
        bench.add(Row("node", "NVML's list", FAILED, ended.note or ended.skip or "it has none"))
        return
    child(bench, found[0]["gpus"])
    matching(bench)
    injection(bench, found[0]["driver"])


def child(bench, gpus):
    found = bench.ask_plugin("child", "child")
    if found is None:
        return
    for row in node_rows.child(found, gpus):
        bench.add(row)
    row = Row("node", "that process ends with the plugin")
    left = {found[answer]["child"] for answer in ("first", "again", "replaced")}
    start = time.monotonic()
    while left and time.monotonic() < start + LEAVE:
        left = {pid for pid in left if not has_ended(pid)}
        time.sleep(0.01)
    if left:
        row.fail("process {} lives".format(sorted(left)[0]))
    bench.add(row)


def has_ended(pid):
    """Also true for a zombie."""
    try:
        with open("/proc/{}/stat".format(pid)) as file:
            return file.read().rsplit(")", 1)[-1].split()[0] == "Z"
    except OSError:
        return True


def matching(bench):
    if bench.watcher.way != "pid":
        bench.add(Row("node", "matching", SKIPPED, CONTAINER))
        return
    seen = []

    def at_step(message, _):
        beside(bench, lambda bare: seen.append(compare(bench, message, bare)))

    ended = bench.probe("limited", "share", bench.limit, at_step=at_step)
    for row in [row for rows in seen for row in rows]:
        bench.add(row)
    if ended.note or ended.skip is not None or not seen:
        bench.close("node", "matching", ended)


def beside(bench, look):
    """Calls `look` with the PID of a process that uses the GPU without a share; None if there is none."""
    pids = []

    def at_step(message):
        pids.append(message["pids"][0])
        look(pids[0])

    patience = bench.patience("hold")
    if patience:
        converse(*bench.sides.bare(bench.sides.probe("hold")), patience, at_step)
    if not pids:
        look(None)


def compare(bench, holder, bare):
    """Returns the rows of a process that holds memory in a share."""
    if holder["share"] is None:
        return [Row("node", "matching", FAILED, "no share is mounted for the process")]
    folder, blind = holder["folder"], why_blind(holder)
    if holder["has_namespace"]:
        folder = "/proc/{}/root{}".format(holder["pids"][0], folder)
    arguments = ["--gpu", bench.sides.uuid, "--share", os.path.join(folder, holder["share"])]
    if not blind:
        arguments += ["--tmpfs", folder]
    found = bench.ask_plugin("matching", "processes", *arguments)
    if found is None:
        return []
    nvml = bench.watcher.picture()["processes"]
    return node_rows.matching(found, holder, bare, nvml, bench.limit, blind)


def why_blind(holder):
    """The reason why the mounts of processes cannot be compared; empty if they can."""
    if not holder["has_namespace"]:
        return ALONE
    for process in glob.glob("/proc/[0-9]*"):
        try:
            os.readlink(process + "/ns/mnt")
        except PermissionError:
            return DENIED
        except OSError:
            pass  # it has ended
    return ""


def injection(bench, version):
    soft = bench.sides.soft
    found = bench.ask_plugin("injection", "injection", *(["--soft-gpu-state", soft] if soft else []))
    if found is None:
        return
    files = {found["libcuda"], found["libnvidia_ml"], *[file["file"] for file in found["files"]]}
    for row in node_rows.capabilities(found, {file for file in files if not os.path.exists(file)}):
        bench.add(row)
    if soft:
        bench.add(Row("node", "libraries of the driver's version", SKIPPED, NO_FILES))
        bench.add(Row("node", "device nodes", SKIPPED, NO_NODES))
        return
    for row in node_rows.libraries(found, expected(bench, found["libcuda"], version), version):
        bench.add(row)
    for row in node_rows.nodes(found, bench.sides.uuid, device_nodes()):
        bench.add(row)


def expected(bench, libcuda, version):
    """The names of the libraries of this version, in the driver's folder and, for this machine's root, in the loader's cache."""
    names = os.listdir(os.path.dirname(libcuda))
    if bench.options.driver_root != "/":
        return node_rows.of_version(names, version)
    # Not in every user's path.
    environment = dict(bench.options.environment)
    environment["PATH"] = ":".join(filter(None, [environment.get("PATH"), "/usr/sbin", "/sbin"]))
    text, _ = output(["ldconfig", "-p"], environment, max(1, bench.patience("ldconfig")))
    names += [os.path.basename(os.path.realpath(path)) for path in node_rows.loader_paths(text)]
    return node_rows.of_version(names, version)


def device_nodes():
    found = glob.glob("/dev/nvidia*") + glob.glob("/dev/nvidia-caps/*")
    return [path for path in found if not os.path.isdir(path)]
