"""Runs workloads one after the other, each after a step, so that probes can begin together.

    calibrate            also finds what ends the kernels, and the length of each unit; bare, with the GPU for itself
    CLOCK:UNTIL:NUMBER   what ends the kernels (kernels.Ruler)
"""

import time

from . import talk
from .kernels import find_ruler, gpu, ruler_of
from .workloads import WORKLOADS

# For a limiter's debts of the workload before.
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
