"""The library's overhead: the same program without and with it, in turns, in one run.

Each round measures bare first and limited next, so that a machine whose speed changes affects both
alike. Prints the medians over the rounds' medians, with difference and ratio. docs/benchmarks.md
explains the rows.
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
LIVE = 1_000_000
STORM = 300
LAUNCHES = {  # options of the share
    "launch": [],
    "launch_50": ["--cores", "50"],
    "launch_unlimited": ["--compute-policy", "Unlimited"],
}
ROWS = [  # name, unit, ns in a unit, what
    ("alloc_free", "ns", 1, "cuMemAlloc + cuMemFree of 1 MiB"),
    ("live_0", "ns", 1, "the same of 2 MiB, nothing else live"),
    (f"live_{LIVE}", "ns", 1, f"the same beside {LIVE:,} live ones"),
    (f"replace_{LIVE}", "ns", 1, "the same, any of those replaced"),
    ("contend", "ns", 1, "CPU time of a pair, 4 processes on 2 CPUs"),
    ("launch_unlimited", "ns", 1, "cuLaunchKernel, empty, policy Unlimited"),
    ("launch_50", "ns", 1, "the same with 50 cores, not held back"),
    ("launch_50_all", "ns", 1, "the same, mean of 50 between two waits"),
    ("launch", "ns", 1, "the same, a share of memory alone"),
    ("launch_all", "ns", 1, "the same, mean of 50 between two waits"),
    ("mem_get_info", "ns", 1, "cuMemGetInfo"),
    ("dlsym", "ns", 1, "dlsym of a function that is no driver's"),
    ("context", "us", 1000, "cuCtxCreate + cuCtxDestroy"),
    ("init", "us", 1000, "first cuInit of a process"),
    ("load_init", "us", 1000, "dlopen of libcuda and first cuInit"),
    ("storm_p99", "ms", 1_000_000, f"cuInit of {STORM} processes at once, p99"),
    ("storm_load_p99", "ms", 1_000_000, f"dlopen and cuInit of {STORM} at once, p99"),
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
    """Parses a program's lines "NAME MEDIAN P99" into {name: ns, name_p99: ns}."""
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"bench: {' '.join(map(str, command))}: exit status {done.returncode}")
    found = {}
    for line in done.stdout.splitlines():
        name, median, p99 = line.split()
        found.update({name: float(median), f"{name}_p99": float(p99)})
    return found


def timed(command, env):
    start = time.perf_counter_ns()
    subprocess.run(command, env=env, check=True)
    return time.perf_counter_ns() - start


class Side:
    """One variant: how a command runs, and its measurements."""

    def __init__(self, name, prefix, large, env):
        """`large`: the prefix for a run that makes a million allocations; None on a real GPU."""
        self.name, self.prefix, self.large, self.env = name, prefix, large, env
        self.samples = {}

    def add(self, name, ns):
        self.samples.setdefault(name, []).append(ns)

    def measure(self, prefix, args, env):
        for name, ns in figures([*prefix, *args], env).items():
            self.add(name, ns)

    def round(self, client, quick):
        for args in (["calls"], ["contend", "4"], ["exec", "50" if quick else "300"]):
            self.measure(self.prefix, [client, *args], self.env)
        for name, options in LAUNCHES.items():
            # Options of `vgpu run` must come before the `--`.
            prefix = [*self.prefix[:-1], *options, "--"] if self.prefix else []
            self.measure(prefix, [client, "launch", name], self.env)
        for _ in range(5):
            self.measure(self.prefix, [client, "init"], self.env)
            self.add("run", timed([*self.prefix, "/bin/true"], self.env))
        # Each runs on its own GPU: allocations left by one would slow the others down, and a GPU's size is set by its
        # first program.
        with tempfile.TemporaryDirectory() as state:
            self.measure(self.prefix, [client, "storm", str(STORM)], {**self.env, "SOFT_GPU_STATE": f"{state}/storm"})
            if self.large is not None:
                profile = Path(state) / "profile"
                profile.write_text("memory = 4TiB\n")
                env = {**self.env, "SOFT_GPU_STATE": f"{state}/large", "SOFT_GPU_PROFILE": str(profile)}
                self.measure(self.large, [client, "live", str(LIVE)], env)


def table(bare, limited):
    print(f"{'':52}{'bare':>10}{'limited':>10}{'more':>10}{'ratio':>8}")
    for name, unit, scale, what in ROWS:
        if name not in bare.samples:
            print(f"{what}: not measured on a real GPU, which is too small")
            continue
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
        run = [dist / "vgpu", "run", "--memory"]
        if options.real_gpu:
            bare = Side("bare", [], None, env)
            limited = Side("limited", [*run, "20Gi", "--"], None, env)
        else:
            bare = Side("bare", [], [], {**env, "LD_LIBRARY_PATH": str(dist / "soft-gpu")})
            limited = Side("limited", [*run, "20Gi", "--soft-gpu", "--"], [*run, "3Ti", "--soft-gpu", "--"], env)
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
