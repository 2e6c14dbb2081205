"""What the hook for the driver's limit adds to the start of a container: runc with it and without, in turns.

`driver_limit.py NODE RUNC [--starts N]`, as root, in a PID namespace of its own (bench/run.sh does that). NODE is what
kubelet-plugin/examples/dmem.rs wrote, with the release in it. The cgroups that the hook limits are a tree of plain
folders, whatever this machine has, and the driver is the software GPU. Prints medians.

How it fails: with the output of the first program that fails. runc's cgroups are removed with the containers.
"""

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from run import machine

POD = "kubepods/pod0123abcd-1111-2222-3333-444455556666"
CLAIM = "5c0f3b9a-0000-4000-8000-000000000001"
PIDS = 4096


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("node", type=Path)
    parser.add_argument("runc")
    parser.add_argument("--starts", type=int, default=10, help="of each kind (default 10)")
    return parser.parse_args()


def tree(folder, container):
    """A hierarchy of plain folders with a container, and processes of which each is in it."""
    for path in ("", "kubepods", POD, f"{POD}/{container}"):
        (folder / "cgroups" / path).mkdir(parents=True, exist_ok=True)
        (folder / "cgroups" / path / "cgroup.procs").touch()
        (folder / "cgroups" / path / "cgroup.subtree_control").write_text("cpu memory\n")
    (folder / "cgroups/cgroup.controllers").write_text("cpu memory dmem misc\n")
    own = folder / "proc/self"
    own.mkdir(parents=True)
    (own / "mountinfo").write_text(f"24 1 0:21 / {folder}/cgroups rw - cgroup2 cgroup2 rw\n")
    (own / "cgroup").write_text("0::/system.slice/containerd.service\n")
    for pid in range(1, PIDS):
        (folder / "proc" / str(pid)).mkdir()
        (folder / "proc" / str(pid) / "cgroup").write_text(f"0::/{POD}/{container}\n")


def node_options(node, folder):
    nvml = node / "driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
    return ["--nvml", nvml, "--soft-gpu", node / "vgpu/soft-gpu", "--cgroups", folder / "cgroups", "--proc", folder / "proc"]


def bundle(folder, node, hooks):
    folder.mkdir()
    config = {
        "ociVersion": "1.1.0",
        "process": {"user": {"uid": 0, "gid": 0}, "cwd": "/", "env": ["PATH=/usr/bin"], "args": ["/usr/bin/true"]},
        "root": {"path": str(node / "vgpu/image"), "readonly": True},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
        ],
        "hooks": {"createRuntime": hooks},
        "linux": {"namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts", "network")]},
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def cpu_of_children():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def took(command, **more):
    """Wall-clock time and CPU time of a program that must succeed, in ms."""
    before, cpu = time.perf_counter(), cpu_of_children()
    done = subprocess.run(command, capture_output=True, check=False, **more)
    wall, cpu = time.perf_counter() - before, cpu_of_children() - cpu
    if done.returncode != 0:
        sys.exit(f"{command}: {done.returncode}: {done.stderr.decode()}")
    return wall * 1000, cpu * 1000


def main():
    options = arguments()
    node = options.node.resolve()
    program = node / "var/lib/vgpu/release/vgpu-driver-limit"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tree(folder, "bench")
        nvml = node_options(node, folder)
        hook = [program, "set", "--claim", node / "vgpu/claims" / CLAIM, "--records", folder / "records", *nvml, "--required"]
        hook = [str(one) for one in hook]
        entry = {"path": hook[0], "args": [hook[0].rsplit("/", 1)[1], *hook[1:]], "timeout": 35}
        without, with_hook = bundle(folder / "without", node, []), bundle(folder / "with", node, [entry])
        state = json.dumps({"ociVersion": "1.1.0", "id": "bench", "status": "creating", "pid": 77}).encode()
        limits = folder / "cgroups" / POD / "bench/dmem.max"
        rows = {
            "runc run of /usr/bin/true": ([options.runc, "--root", folder / "runc", "run", "-b", without, "bench"], {}),
            "the same with the hook": ([options.runc, "--root", folder / "runc", "run", "-b", with_hook, "bench"], {}),
            "the hook alone": (hook, {"input": state}),
            "of that: a process that loads the driver's NVML and ends": ([program, "serve", *nvml[:4]], {"input": b""}),
            "of that: a process that ends at once": ([program, "--version"], {}),
        }
        figures = {row: [] for row in rows}
        for start in range(options.starts + 1):
            for row, (command, more) in rows.items():
                limits.unlink(missing_ok=True)
                figure = took([str(one) for one in command], **more)
                if "hook" in row and not limits.exists():
                    sys.exit(f"{row}: it has set no limit")
                if start > 0:  # the first one reads files from the disk
                    figures[row].append(figure)
        shutil.rmtree(folder / "runc", ignore_errors=True)
    print(f"machine: {machine()}; software GPU, plain folders as cgroups")
    print(f"medians of {options.starts} starts of each, in turns{'':22}ms   least  CPU time")
    for row, of_row in figures.items():
        wall, cpu = [sorted(values) for values in zip(*of_row)]
        print(f"{row:58}{statistics.median(wall):8.1f}{wall[0]:8.1f}{statistics.mean(cpu):10.1f}")
    pairs = zip(*(figures[row] for row in list(rows)[:2]))
    print(f"added to a start, median of the differences: {statistics.median(b[0] - a[0] for a, b in pairs):.1f} ms")


main()
