"""Chooses the GPU and the share's size, and describes the machine."""

import os
import platform

from .child import converse
from .driver import places

MIB = 1 << 20
# Enough for every probe, and quickly filled.
USUAL, LEAST = 4096 * MIB, 256 * MIB


class Unusable(Exception):
    """Nothing can be checked here; one line with the reason."""


def gpus(sides, patience):
    """Returns (the driver's version and folder as text, GPUs) from NVML."""
    ended = converse(*sides.bare(sides.probe("gpus")), patience)
    if ended.skip is not None:
        raise Unusable("no NVIDIA driver on this machine ({})".format(why_missing(sides.options, ended.skip)))
    found = ended.of("gpus")
    if ended.note or not found:
        raise Unusable("the NVIDIA driver cannot be asked: {}".format(ended.note))
    if not found[0]["gpus"]:
        raise Unusable("the NVIDIA driver has no GPU here")
    return found[0]["driver"] + where(sides.options.driver), found[0]["gpus"]


def where(libcuda):
    """The driver's folder, and how it was found, to be appended to its version."""
    return " in {}, found {}".format(libcuda.folder, libcuda.how) if libcuda else ""


def why_missing(options, said):
    """`said`: the loader's message, which is sufficient only for the software GPU."""
    if options.soft_gpu or options.driver:
        return said
    text = "{}; neither LD_LIBRARY_PATH nor {} has it: set --driver-root to the root of the driver"
    return text.format(said, places())


def choose(found, wanted):
    """Returns the requested GPU, else the first without MIG."""
    if wanted is None:
        whole = [gpu for gpu in found if not gpu["mig"]]
        if not whole:
            raise Unusable("MIG is enabled on every GPU, and this check makes no share of an instance; --only mig lists them")
        return whole[0]
    named = [gpu for gpu in found if gpu["index"] == wanted]
    if not named:
        raise Unusable("--gpu {}: there are {} GPUs".format(wanted, len(found)))
    if named[0]["mig"]:
        raise Unusable("--gpu {}: MIG is enabled on it, and this check makes no share of an instance".format(wanted))
    return named[0]


def share(free, wanted):
    """The share's bytes for a GPU with `free` ones; `wanted`: in MiB, or None.

    A quarter of the free memory: contexts and other overhead are beside the share, and a probe without a limit
    stops a little beyond it.
    """
    if wanted is not None:
        if wanted * MIB * 2 > free:
            text = "--memory {}: only {} MiB are free, and twice the share must be"
            raise Unusable(text.format(wanted, free // MIB))
        return wanted * MIB
    limit = min(USUAL, free // 4) // (64 * MIB) * (64 * MIB)
    if limit < LEAST:
        raise Unusable("only {} MiB of the GPU are free; {} are needed".format(free // MIB, 4 * LEAST // MIB))
    return limit


def describe(driver, gpu, soft):
    """One line that describes the machine."""
    glibc = " ".join(platform.libc_ver())
    host = "{} CPUs, load {:.1f}, Linux {}, {}, Python {}".format(
        os.cpu_count(), os.getloadavg()[0], platform.release(), glibc, platform.python_version()
    )
    kind = "SOFTWARE GPU, no hardware: {}".format(gpu["name"]) if soft else gpu["name"]
    user = "root" if os.geteuid() == 0 else "an ordinary user"
    others = ", {} other processes on it".format(gpu["others"]) if gpu["others"] else ""
    return "{}, driver {}, {} MiB free of {}{}; {}; as {}".format(
        kind, driver, gpu["free"] // MIB, gpu["total"] // MIB, others, host, user
    )
