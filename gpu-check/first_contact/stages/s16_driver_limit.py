"""Whether this machine's driver limits the GPU memory of a cgroup (r615 and newer, cgroup v2): vgpu-driver-limit makes a
cgroup, limits it, reads the limit back, and removes it. Nothing else on the machine is in that cgroup."""

import os

TITLE, LIMIT = "driver's limit", 15
STEP = "the driver limits a cgroup"
# Who keeps the limit, as the program prints it.
WAYS = ("dmem", "misc")
# What it says where there is nothing to find out: an older driver, another hierarchy of cgroups, a driver without limits.
ABSENT = ("older than r615", "cgroup v1", "hybrid", "MIG mode", "NVML_ERROR_NOT_SUPPORTED", "of the hierarchy is mounted")


def nvml(kit):
    return os.path.join(os.path.dirname(kit.libcuda), "libnvidia-ml.so.1")


def run_stage(kit):
    program = kit.options.dist / "vgpu-driver-limit"
    if not program.exists():
        return kit.skip(STEP, "no vgpu-driver-limit here: `pack` carries it")
    if os.geteuid() != 0:
        return kit.skip(STEP, "it needs root")
    command = [str(program), "probe", "--gpu", kit.sides.uuid, "--nvml", nvml(kit)]
    job = kit.start(None, program=command + (["--soft-gpu", kit.sides.soft] if kit.soft else []), limit=10)
    kit.wait(job)
    said = (job.stderr().strip().splitlines() or [""])[-1]
    if job.code() and any(reason in said for reason in ABSENT):
        job.kill()
        kit.tell(said)
        return kit.skip(STEP, said)
    if kit.finish(STEP, job, check=lambda job: job.text().strip() not in WAYS and "it says {!r}".format(job.text())) == "ok":
        kit.tell("kept by {}".format(job.text().strip()))
    return None
