"""The flags and the environment, which no other module reads."""

import argparse
import os
import pathlib

from . import driver

MIB = 1 << 20
GROUPS = ("seen", "held", "time", "node", "mig", "costs", "overhead")


def parser():
    flags = argparse.ArgumentParser(
        prog="gpu-check/run.sh", description="Checks the limits on this machine's NVIDIA GPU, and measures their cost."
    )
    flags.add_argument("--soft-gpu", action="store_true", help="use the software GPU, for the rows that it can answer")
    flags.add_argument("--gpu", type=int, metavar="N", help="NVML's index (default: the first GPU without MIG)")
    memory = "the share's memory in MiB (default: a quarter of the free memory, at most 4 GiB)"
    flags.add_argument("--memory", type=int, metavar="MIB", help=memory)
    flags.add_argument("--quick", action="store_true", help="fewer and shorter rounds: under 4 minutes")
    flags.add_argument("--only", metavar="GROUP,...", help="run only some of " + ", ".join(GROUPS))
    root = "root of NVIDIA's driver (default: where LD_LIBRARY_PATH, the loader's cache or a usual folder has it)"
    flags.add_argument("--driver-root", metavar="DIR", help=root)
    flags.add_argument("--rows", metavar="FILE", help="append each row to a file of JSON lines as soon as it is known")
    flags.add_argument("--json", metavar="FILE", help="also write all rows as JSON, at the end")
    flags.add_argument("--markdown", metavar="FILE", help="also write the rows as a Markdown table")
    patience = "seconds that a probe of the driver API may be silent (15); frameworks and NVML's start have four times as long"
    flags.add_argument("--patience", type=float, default=15, metavar="S", help=patience)
    flags.add_argument("--time", type=float, metavar="S", help="seconds for the whole check (770; with --quick 235)")
    flags.add_argument("--look", action="store_true", help=argparse.SUPPRESS)
    return flags


def parse(arguments=None):
    """Returns the validated flags; an error ends the program with status 2."""
    flags = parser()
    options = flags.parse_args(arguments)
    options.groups = tuple(options.only.split(",")) if options.only else GROUPS
    for group in options.groups:
        if group not in GROUPS:
            flags.error("--only {}: not one of {}".format(group, ", ".join(GROUPS)))
    if options.memory is not None and options.memory < 64:
        flags.error("--memory {}: below the minimum of 64 MiB".format(options.memory))
    if options.time is None:
        options.time = 235 if options.quick else 770
    root = pathlib.Path(__file__).resolve().parent.parent
    options.probe = str(root / "probe.py")
    options.dist = pathlib.Path(os.environ.get("VGPU_DIST") or root.parent / "dist").resolve()
    options.environment = dict(os.environ)
    named = options.driver_root
    choose_driver(options)
    if named and not options.driver and not options.soft_gpu:
        text = "--driver-root {}: it has no {} with {} in any of {}: set it to the root of NVIDIA's driver"
        flags.error(text.format(named, driver.LIBCUDA, driver.LIBNVIDIA_ML, driver.places()))
    return options


def choose_driver(options):
    """Finds the driver, and makes all programs use it.

    Sets `driver` (None: there is none, or it is the software GPU), `driver_root` (the flag's value, or the one with which
    the plugin finds this driver) and LD_LIBRARY_PATH, if the loader would find another driver or none.
    """
    named, options.driver, options.driver_root = options.driver_root, None, options.driver_root or "/"
    if options.soft_gpu:
        return
    folders = driver.folders(options.environment.get("LD_LIBRARY_PATH"))
    options.driver = driver.driver(named) if named else driver.driver("/", folders)
    if not options.driver:
        return
    if not named:
        options.driver_root = driver.root_for(options.driver)
    if not driver.loader_finds(options.driver, options.driver_root, folders):
        options.environment["LD_LIBRARY_PATH"] = ":".join([options.driver.folder] + folders)
