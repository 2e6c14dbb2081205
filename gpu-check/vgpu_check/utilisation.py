"""NVML's utilisation of the GPU while probes run, sampled by a process outside the shares."""

from .child import Child, Silent
from .truth import NoTruth


class Sampler:
    def __init__(self, sides, patience):
        self.patience = patience
        self.child = Child(*sides.bare(sides.probe("utilisation", sides.gpu)))
        self.message()  # it has started

    def message(self):
        try:
            message = self.child.message(self.patience)
        except Silent:
            raise NoTruth("NVML hangs: silent for {:.0f} s".format(self.patience))
        if message is None:
            raise NoTruth("NVML: " + (self.child.last_words() or "its process has ended"))
        return message

    def samples(self):
        """Ends the sampling; returns (moment, percent) of each. A driver without such figures has none."""
        self.child.go_on()
        return self.message()["samples"]

    def end(self):
        self.child.end()
