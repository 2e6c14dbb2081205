"""Makes the command lines of the two sides: bare, and under a share."""

import sys


class Sides:
    """The sides for one GPU and one share. `soft` is the software GPU's state folder, or None."""

    def __init__(self, options, soft=None):
        self.options, self.soft = options, soft
        self.gpu = self.uuid = self.limit = None

    def choose(self, gpu, limit):
        """Sets the GPU (as NVML lists it) and the share's bytes, a multiple of 1 MiB."""
        self.gpu, self.uuid, self.limit = gpu["index"], gpu["uuid"], limit

    def probe(self, name, *arguments):
        return [sys.executable, self.options.probe, name, *[str(argument) for argument in arguments]]

    def plugin(self):
        """The kubelet plugin's program."""
        return self.options.dist / "vgpu-kubelet-plugin"

    def plugin_check(self, *arguments):
        """The command of the plugin's check on this driver."""
        root = str(self.options.dist / "soft-gpu") if self.soft else self.options.driver_root
        return [str(self.plugin()), "check", "--driver-root", root, *arguments]

    def bare(self, command, **variables):
        """Returns (command, environment) with access to the whole GPU and no other."""
        environment = self.environment(variables)
        if self.soft:
            folders = [str(self.options.dist / "soft-gpu"), environment.get("LD_LIBRARY_PATH")]
            environment["LD_LIBRARY_PATH"] = ":".join(filter(None, folders))
        if self.uuid:
            environment["CUDA_VISIBLE_DEVICES"] = self.uuid
        return command, environment

    def limited(self, command, compute=(), memory=None, name=None, dist=None, **variables):
        """Returns (command, environment) with a share of the same GPU. `compute`: flags for its GPU time; `memory`: bytes,
        if not the chosen ones; `name`: processes with the same name share one share; `dist`: a folder with other programs."""
        share = ["--memory", "{}Mi".format((memory or self.limit) >> 20), "--gpu", str(self.gpu), *compute]
        share += ["--share", name] if name else []
        run = [str((dist or self.options.dist) / "vgpu"), "run", *share]
        if self.soft:
            run.append("--soft-gpu")
        return [*run, "--", *command], self.environment(variables)

    def environment(self, variables):
        environment = dict(self.options.environment)
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        # NVML's order, which --gpu uses.
        environment.update(CUDA_DEVICE_ORDER="PCI_BUS_ID", PYTHONDONTWRITEBYTECODE="1", PYTHONUNBUFFERED="1")
        if self.soft:
            environment["SOFT_GPU_STATE"] = self.soft
        environment.update(variables)
        return environment


def compute(cores, policy, priority="low"):
    """The flags for a share's GPU time."""
    return "--cores", str(cores), "--compute-policy", policy, "--priority", priority
