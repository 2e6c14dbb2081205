"""GPU time of shares through the library, in real time on the software GPU: a part of docs/compute-accuracy.md.

Programs under `vgpu run` launch kernels of a known length and count them every second. The counts are compared with
the entitlements of their shares. Other work on the machine disturbs them, so no test asserts these figures.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = Path(os.environ.get("VGPU_DIST", ROOT / "dist"))
CLIENT = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug" / "gpu-client"
# Seconds before the measurement, in which the programs start, and measured seconds.
FIRST, SECONDS = 1, 6


class Tenant:
    """A program in a share of its own. `every`: number of kernels between waits; 0: never waits."""

    def __init__(self, cores, length, every=0, policy="balanced", priority="low", kind="work"):
        self.cores, self.length, self.every = cores, length, every
        self.policy, self.priority, self.kind = policy, priority, kind

    def command(self):
        share = ["--memory", "1Gi", "--cores", str(self.cores), "--compute-policy", self.policy]
        step = f"{self.kind}:{self.length},1000,{self.every}"
        client = [str(CLIENT), "init", *[step] * (FIRST + SECONDS)]
        return [str(DIST / "vgpu"), "run", "--soft-gpu", *share, "--priority", self.priority, "--", *client]


def run(tenants, environment):
    """Returns each tenant's percentage of the GPU's time, by second."""
    running = [subprocess.Popen(one.command(), env=environment, stdout=subprocess.PIPE, text=True) for one in tenants]
    found = []
    for tenant, process in zip(tenants, running):
        said, _ = process.communicate()
        if process.returncode != 0:
            sys.exit(f"gpu_time: {' '.join(tenant.command())}: exit status {process.returncode}: {said}")
        lines = [line.split()[1:] for line in said.splitlines() if line.startswith(tenant.kind + " ")]
        if any(code != "0" for code, _, _ in lines):
            sys.exit(f"gpu_time: a launch failed: {said}")
        percents = [int(count) * tenant.length / (int(ms) * 10) for _, count, ms in lines]
        found.append(percents[FIRST:])
    return found


def mean(values):
    return sum(values) / len(values)


def errors(percents, wanted):
    """Returns the error of the mean, and the largest error of a second."""
    return abs(mean(percents) - wanted), max(abs(percent - wanted) for percent in percents)


def length(us):
    return f"{us} us" if us < 1000 else f"{us // 1000} ms"


def caps(environment):
    cores = (10, 30, 50, 70, 90)
    print("### One Guaranteed share, alone\n")
    print("Error of the mean over {} s, and the worst second, in points.\n".format(SECONDS))
    print("| kernels | " + " | ".join(f"cores {one}" for one in cores) + " |")
    print("|---|" + "---|" * len(cores))
    all_means = []
    for us, every, kind in ((10, 0, "work"), (50, 1, "work"), (500, 0, "work"), (500, 0, "graph"), (5000, 0, "work")):
        cells = []
        # A program that waits after each kernel leaves the GPU partly idle even when alone.
        (free,) = run([Tenant(0, us, every, "unlimited", kind=kind)], environment)
        most = mean(free) if every else 100
        for one in cores:
            (percents,) = run([Tenant(one, us, every, "guaranteed", kind=kind)], environment)
            error, worst = errors(percents, min(one, most))
            all_means.append(error)
            cells.append(f"{error:.1f}, {worst:.1f}")
        name = length(us) + (f", waits for each, {most:.0f} % when not limited" if every else "") + (", in a graph" if kind == "graph" else "")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    print(f"\nMean of all: {mean(all_means):.2f} points.\n")


def together(environment):
    print("### Balanced shares that always have work\n")
    print("| shares | use | error of the mean | worst second | sum |")
    print("|---|---|---|---|---|")
    cases = [
        ("30 / 70, 500 us / 500 us", [Tenant(30, 500), Tenant(70, 500)]),
        ("10 / 90, 500 us / 500 us", [Tenant(10, 500), Tenant(90, 500)]),
        ("30 / 70, 50 us / 5 ms", [Tenant(30, 50), Tenant(70, 5000)]),
        ("30 / 70, 5 ms / 50 us", [Tenant(30, 5000), Tenant(70, 50)]),
        ("30 / 70, 500 us / 500 us in graphs", [Tenant(30, 500), Tenant(70, 500, kind="graph")]),
        ("four of 25, 500 us", [Tenant(25, 500) for _ in range(4)]),
    ]
    for name, tenants in cases:
        found = run(tenants, environment)
        both = [errors(percents, tenant.cores) for percents, tenant in zip(found, tenants)]
        use = " / ".join(f"{mean(percents):.1f}" for percents in found)
        error, worst = max(one for one, _ in both), max(one for _, one in both)
        total = sum(mean(percents) for percents in found)
        print(f"| {name} | {use} | {error:.1f} | {worst:.1f} | {total:.1f} % |", flush=True)
    print()


def others(environment):
    print("### Others\n")
    print("| case | use |")
    print("|---|---|")
    cases = [
        ("Balanced, 10 cores, alone", [Tenant(10, 500)]),
        ("High of 50, and Low of 50, both always with work", [Tenant(50, 500, priority="high"), Tenant(50, 500)]),
        ("Unlimited, alone", [Tenant(0, 500, policy="unlimited")]),
    ]
    for name, tenants in cases:
        found = run(tenants, environment)
        print(f"| {name} | " + " / ".join(f"{mean(percents):.1f} %" for percents in found) + " |", flush=True)


def machine():
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    load = os.getloadavg()[0]
    return f"{time.strftime('%Y-%m-%d')}, {model}, {os.cpu_count()} CPUs, load {load:.1f}"


def main():
    for needed in (DIST / "vgpu", CLIENT):
        if not needed.exists():
            sys.exit(f"gpu_time: {needed} is missing: run `make dist`")
    print("\n## In real time\n")
    print(
        "The same code in libvgpu.so, under `vgpu run` on the software GPU, whose slices and switches are those of the\n"
        f"simulation. {machine()}. Programs count their own kernels; seconds on the machine's clock.\n"
    )
    with tempfile.TemporaryDirectory() as state:
        environment = {**os.environ, "SOFT_GPU_STATE": state}
        for part in (caps, together, others):
            part(environment)


if __name__ == "__main__":
    main()
