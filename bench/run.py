"""What the library costs: the same program with and without it, in turns, in one run.

Each round measures bare first and limited next, so that a machine that grows slower or faster meets
both alike. Of each round's medians the median over rounds is printed, with the difference and the
ratio of the two. docs/benchmarks.md says what the rows mean.
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROWS = [  # name, unit, ns in a unit, what
    ("alloc_free", "ns", 1, "cuMemAlloc + cuMemFree of 1 MiB"),
    ("launch", "ns", 1, "cuLaunchKernel of an empty kernel"),
    ("mem_get_info", "ns", 1, "cuMemGetInfo"),
    ("init", "us", 1000, "first cuInit of a process"),
    ("start", "us", 1000, "start and end of /bin/true, inside"),
    ("run", "us", 1000, "start and end of /bin/true, `vgpu run` included"),
]


def machine():
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    load = os.getloadavg()[0]
    glibc = " ".join(platform.libc_ver())
    user = "root, mount namespace" if os.geteuid() == 0 else "ordinary user"
    return f"{model}, {os.cpu_count()} CPUs, load {load:.1f}; Linux {platform.release()}, {glibc}; as {user}"


def figures(command, env):
    """NAME MEDIAN P99 lines of a program, as {name: ns}."""
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"bench: {' '.join(map(str, command))}: exit status {done.returncode}")
    return {line.split()[0]: float(line.split()[1]) for line in done.stdout.splitlines()}


def timed(command, env):
    start = time.perf_counter_ns()
    subprocess.run(command, env=env, check=True)
    return time.perf_counter_ns() - start


class Side:
    """One of the two: how a command runs, and what was measured."""

    def __init__(self, name, prefix, env):
        self.name, self.prefix, self.env = name, prefix, env
        self.samples = {}

    def add(self, name, ns):
        self.samples.setdefault(name, []).append(ns)

    def round(self, client, quick):
        for args in (["calls"], ["exec", "50" if quick else "300"]):
            for name, ns in figures([*self.prefix, client, *args], self.env).items():
                self.add(name, ns)
        for _ in range(5):
            self.add("init", figures([*self.prefix, client, "init"], self.env)["init"])
            self.add("run", timed([*self.prefix, "/bin/true"], self.env))


def table(bare, limited):
    print(f"{'':52}{'bare':>10}{'limited':>10}{'more':>10}{'ratio':>8}")
    for name, unit, scale, what in ROWS:
        without = statistics.median(bare.samples[name]) / scale
        with_it = statistics.median(limited.samples[name]) / scale
        row = f"{without:>10.1f}{with_it:>10.1f}{with_it - without:>+10.1f}{with_it / without:>8.2f}"
        print(f"{what + ', ' + unit:52}{row}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=11, help="rounds of bare and limited (default 11)")
    parser.add_argument("--quick", action="store_true", help="two short rounds: does it run at all?")
    parser.add_argument("--real-gpu", action="store_true", help="the NVIDIA driver's GPU 0 instead of the software GPU")
    options = parser.parse_args()
    dist = Path(os.environ.get("VGPU_DIST", ROOT / "dist"))
    if not (dist / "vgpu").exists():
        sys.exit(f"bench: {dist}/vgpu is missing: run `make dist`")
    with tempfile.TemporaryDirectory() as tmp:
        client = Path(tmp) / "client"
        subprocess.run(["cc", "-O2", "-o", client, ROOT / "bench/client.c", "-ldl"], check=True)
        env = {**os.environ, "SOFT_GPU_STATE": f"{tmp}/state"}
        run = [dist / "vgpu", "run", "--memory", "20Gi"]
        if options.real_gpu:
            bare = Side("bare", [], env)
        else:
            bare = Side("bare", [], {**env, "LD_LIBRARY_PATH": str(dist / "soft-gpu")})
            run.append("--soft-gpu")
        limited = Side("limited", [*run, "--"], env)
        gpu = "the driver's GPU 0" if options.real_gpu else "software GPU"
        print(f"machine: {machine()}; {gpu}")
        rounds = 2 if options.quick else options.rounds
        for _ in range(rounds):
            for side in (bare, limited):
                side.round(client, options.quick)
        print(f"medians of {rounds} rounds, bare and limited in turns")
        table(bare, limited)


if __name__ == "__main__":
    main()
