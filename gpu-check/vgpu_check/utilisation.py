"""NVML's utilisation of the GPU while probes run."""

from .truth import NvmlProcess


class Sampler(NvmlProcess):
    def __init__(self, sides, patience):
        super().__init__(sides, patience, "utilisation")
        self.message()  # it has started

    def samples(self):
        """Ends the sampling; returns (moment, percent) of each. A driver without such figures has none."""
        self.child.go_on()
        return self.message()["samples"]
