"""How much throughput of a model server is kept: tokens a second of a decoder, alone, two at once in several forms."""

import os
import shutil
import time

from ..probes.serve import LOADS

TITLE, LIMIT = "serving", 150
SECONDS, MEMORY = 4, 12 << 30
# Each process as a share, None: bare. `alone` is what the others are compared with.
SCENES = (
    ("alone", (None,)),
    ("two bare", (None, None)),
    ("two shares, 50 and 50", ({"cores": 50}, {"cores": 50})),
    ("two shares, 30 and 70", ({"cores": 30}, {"cores": 70})),
    ("one share, default", ({},)),
    ("one share, guaranteed 50", ({"cores": 50, "policy": "guaranteed"},)),
)


def scene(kit, name, shares, alone, env=None):
    """Runs the server for each of `shares` at once, in step; returns the sums of tokens a second by load."""
    those = [kit.start("serve:main", SECONDS, share=one if one is None else dict(one, memory=MEMORY), env=env, limit=45, held=True)
             for one in shares]
    while kit.wait_step(*those):
        for job in those:
            job.go()
    kit.together(*those)  # one that waits for another that has ended
    if kit.finish(name, *those) != "ok":
        return None
    kit.facts.setdefault("tokens_s", {})[name] = [job.figures for job in those]
    sums = {load: sum(job.figures[load] for job in those) for load, _ in LOADS}
    told = ["{} {:.0f} ({:.0f} %)".format(load, rate, 100 * rate / (alone or sums)[load]) for load, rate in sums.items()]
    kit.tell("{}: {}".format(name, ", ".join(told)))
    return sums


def under_mps(kit, alone):
    """The daemon runs in the foreground with pipes of its own, and ends with its process group: nothing of the GPU is set."""
    if not shutil.which("nvidia-cuda-mps-control"):
        return kit.skip("two under MPS", "no nvidia-cuda-mps-control here")
    pipes = os.path.join(kit.work, "mps")
    os.makedirs(pipes)
    env = {"CUDA_MPS_PIPE_DIRECTORY": pipes, "CUDA_MPS_LOG_DIRECTORY": pipes, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}
    daemon = kit.start(None, program=["nvidia-cuda-mps-control", "-f"], env=env, limit=60)
    time.sleep(1)
    scene(kit, "two under MPS, 50 % of the threads each", (None, None), alone, env)
    quit_it = kit.start(None, program=["sh", "-c", "echo quit -t 2 | nvidia-cuda-mps-control"], env=env, limit=6)
    kit.wait(quit_it)
    quit_it.kill()
    daemon.kill()
    return None


def run_stage(kit):
    if kit.has_no_cudart("tokens a second"):
        return
    alone = None
    for name, shares in SCENES:
        found = scene(kit, name, shares, alone)
        if name == SCENES[0][0] and not found:
            return kit.skip("tokens a second", "no control")
        alone = alone or found
    under_mps(kit, alone)
