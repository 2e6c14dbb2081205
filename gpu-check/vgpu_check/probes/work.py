"""Runs workloads one after another, each after a step, so that probes can begin at the same time.

    calibrate            also finds how kernels end, and the length of each unit; bare, alone on the GPU
    CLOCK:UNTIL:NUMBER   how kernels end (kernels.Ruler)
"""

import time

from . import talk
from .kernels import find_ruler, gpu, ruler_of
from .workloads import WORKLOADS

# Time to settle the previous workload's debts to the limiter.
PAUSE = 0.2


def main(how, seconds, *names):
    cuda = gpu()
    if how == "calibrate":
        ruler, step = find_ruler(cuda)
        talk.say("ruler", text=ruler.text(), step=step)
    else:
        ruler = ruler_of(how)
    for name in names:
        workload = WORKLOADS[name](cuda, ruler)
        length = workload.length() if how == "calibrate" else None
        talk.step(name)
        time.sleep(PAUSE)
        talk.say("work", name=name, length=length, **workload.run(float(seconds)))
