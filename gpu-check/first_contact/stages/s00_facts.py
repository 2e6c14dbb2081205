"""Describes this machine, and how the loader finds its driver. Starts two processes that run beside all stages: one keeps
NVML open, and one reads the frameworks' files into the page cache."""

import glob
import os
import platform
import re
import shutil
import sys
import time

from .. import elf
from ..evidence import kernel_log, read, run

TITLE, LIMIT = "facts", 15
TOOLS = ("nvidia-smi nvcc ncu nsys compute-sanitizer cuda-gdb nvidia-cuda-mps-control nvidia-cuda-mps-server cuda-checkpoint gcc gdb "
         "strace nsenter unshare setpriv ip ldconfig runc nvidia-modprobe").split()
PROGRAMS = ("vgpu", "libvgpu.so", "libvgpu-preload.so", "vgpu-kubelet-plugin", "vgpu-cdi-hook")
QUERY = ("name,uuid,driver_version,memory.total,memory.reserved,memory.used,persistence_mode,compute_mode,mig.mode.current,pstate,"
         "clocks.sm,power.limit,ecc.mode.current")
FILES = ("/proc/driver/nvidia/version /proc/driver/nvidia/params /sys/module/nvidia_uvm/parameters/uvm_disable_hmm "
         "/sys/fs/cgroup/cgroup.controllers /proc/sys/kernel/yama/ptrace_scope /proc/sys/kernel/core_pattern /etc/ld.so.preload "
         "/etc/os-release").split()
IMPORTS = """import importlib, time
for name in "torch triton jax cupy numba transformers cuda.bindings.driver".split():
    start = time.time()
    try: text = getattr(importlib.import_module(name), "__version__", "")
    except Exception as error: text = type(error).__name__ + ": " + str(error)[:80]
    print(name, text, round(time.time() - start, 2), flush=True)"""
IMPORT_SECONDS = 150


def can(command):
    """The error of a command in its own namespaces, or yes."""
    return run(["unshare", "-mn", "sh", "-c", command + " && echo yes"], 3).strip()[-80:]


def machine():
    log = kernel_log()
    status = dict(line.split(":\t", 1) for line in read("/proc/self/status").splitlines() if ":\t" in line)
    mounts = [line for line in read("/proc/mounts").splitlines() if re.search(" / | /opt| /usr/local|nvidia|cgroup", line)]
    overlay = "mount -t tmpfs t /mnt && cd /mnt && mkdir u w m && mount -t overlay o -o lowerdir=/etc,upperdir=u,workdir=w m"
    return {
        "kernel": platform.release(), "cpus": os.cpu_count(), "memory_of_host": read("/proc/meminfo").splitlines()[0],
        "python": sys.version, "glibc": platform.libc_ver()[1], "disk_gib": shutil.disk_usage("/tmp").free >> 30,
        "tools": {name: shutil.which(name) for name in TOOLS}, "files": {path: read(path, 4096) for path in FILES},
        "nodes": glob.glob("/dev/nvidia*") + glob.glob("/dev/nvidia-caps/*"), "mounts": mounts,
        "process": {name: status.get(name) for name in ("Uid", "NSpid", "CapEff", "CapBnd", "Seccomp", "NoNewPrivs")},
        "kernel_log": "may not be read" if log is None else [line for line in log if "nvidia" in line.lower() or "NVRM" in line][-20:],
        "library_path": os.environ.get("LD_LIBRARY_PATH"), "can_overlay": can(overlay),
        "can_cgroup": can("mkdir /sys/fs/cgroup/kit-x && rmdir /sys/fs/cgroup/kit-x"),
        "can_veth": can("ip link add v0 type veth peer name v1"), "can_bridge": can("ip link add b0 type bridge"),
    }


def run_stage(kit):
    kit.watcher = kit.start("basics:watch", kit.sides.gpu or 0, held=True, limit=LIMIT)
    truth, found = kit.truth(), []
    for step, probe in (("the first bare context", "facts:driver"), ("the second bare context", "basics:canary")):
        found.append(kit.start(probe))
        kit.finish(step, found[-1])
    driver = found[0].figures
    smi = run(["nvidia-smi", "--query-gpu=" + QUERY, "--format=csv,noheader"]) if shutil.which("nvidia-smi") and not kit.soft else ""
    kit.facts["build_ids"] = {name: elf.build_id(str(kit.options.dist / name)) for name in PROGRAMS if (kit.options.dist / name).exists()}
    kit.facts.update(machine(), driver=driver, truth=truth, nvidia_smi=smi)
    if "name" not in driver:
        kit.verdict = "no bare GPU: {}".format(kit.judge(found[0])[1])
        return
    kit.facts["memory"] = driver["memory"][1]
    kit.libcuda = next(path for path in driver["files"] if "libcuda.so" in path)
    kit.driver_root = str(kit.options.dist / "soft-gpu") if kit.soft else kit.options.driver_root
    module = read("/proc/driver/nvidia/version")
    kind = "software" if kit.soft else "open" if "Open" in module else "closed" if "NVRM" in module else "no"
    version = (smi.split(", ") + [""] * 3)[2] or str(driver["version"])
    kit.facts.update(driver_root=kit.driver_root, driver_version=version, module=kind)
    kit.facts["gpu"] = "{}, driver {}, {} module, root {}".format(driver["name"], version, kind, kit.driver_root)
    for name, job in zip(("first", "second"), found):
        if "context_ms" in job.figures:
            kit.tell("{} cuInit {:.0f} ms, context {:.0f} ms".format(name, job.figures["init_ms"], job.figures["context_ms"]))
    if truth:
        kit.tell("NVML list {:.0f} us".format(truth["us"]))
    if not kit.soft:
        kit.imports = kit.start(None, program=[sys.executable, "-c", IMPORTS])
        kit.imports.end = time.monotonic() + IMPORT_SECONDS
