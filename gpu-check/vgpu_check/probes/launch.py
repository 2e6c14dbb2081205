"""Times the launch of an empty kernel as `calls` does, with the name given by the check."""

from . import ptx, talk
from .calls import Calls, median
from .cuda import Cuda


def main(name, samples):
    cuda = Cuda()
    launch = Calls(cuda).launch(cuda.function(cuda.module(ptx.empty(cuda)), ptx.LAUNCHABLE))
    talk.say("time", name=name, ns=median(launch, int(samples), lambda: cuda.call("cuCtxSynchronize")))
