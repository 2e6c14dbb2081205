"""The flags of all verbs, and the environment. No other module reads them, except the probes' own variables."""

import argparse
import os
import pathlib

from vgpu_check.options import choose_driver

from . import stages

HERE = pathlib.Path(__file__).resolve().parent
GPU_CHECK = HERE.parent
# The folder beside gpu-check/ in which `pack` puts the files for the other machine, and `run` finds them.
KIT = ".kit"
# The same for the parts of a cluster.
CLUSTER = ".kit-cluster"


def add_run(verbs):
    run = verbs.add_parser("run", help="run the stages on this machine")
    run.add_argument("--out", default="first-contact", metavar="DIR", help="folder of the results (first-contact)")
    run.add_argument("--budget", type=float, default=900, metavar="S", help="seconds for everything (900); S0 to S8 fit into 240")
    run.add_argument("--report-size", type=int, default=0, metavar="N", help="characters of the report (0: no limit)")
    run.add_argument("--evidence-size", type=int, default=0, metavar="MIB", help="size of the evidence before compression (0: no limit)")
    run.add_argument("--only", metavar="S4,S5", help="these stages, in this order; S0 always comes first")
    run.add_argument("--from", dest="first", metavar="S5", help="the stages from this one on")
    run.add_argument("--again", action="store_true", help="also run what passed before")
    run.add_argument("--planted", default="", help=argparse.SUPPRESS)


def add_pack(verbs):
    pack = verbs.add_parser("pack", help="make {}/ in this checkout, to be copied to another machine".format(KIT))
    pack.add_argument("--size", type=float, default=0, metavar="MIB", help="refuse a larger pack; the checkout's files count too (0: no limit)")
    pack.add_argument("--earlier", metavar="DIR", help="results of an earlier run, whose stages are not run again")
    pack.add_argument("--cluster", action="store_true", help="also {}/: what S14 needs, Kubernetes' programs among it, in parts".format(CLUSTER))
    pack.add_argument("--part-size", type=float, default=48, metavar="MIB", help="of a part of {}/ (48)".format(CLUSTER))
    pack.add_argument("--symbols", metavar="DIR", help="folder of symbol files by build-id (target/symbols); they stay here")


def parse(arguments=None):
    """Returns the validated flags; a mistake ends the program with status 2."""
    parser = argparse.ArgumentParser(prog="gpu-check/first-contact.sh", description="A first look at a machine with a GPU: docs/gpu-check.md")
    verbs = parser.add_subparsers(dest="verb", metavar="pack | run | explain | selftest")
    add_pack(verbs)
    add_run(verbs)
    explain = verbs.add_parser("explain", help="resolve addresses, and print what to do")
    explain.add_argument("results", metavar="DIR", nargs="+", help="folders of results, the oldest first")
    explain.add_argument("--symbols", metavar="DIR", help="folder of symbol files by build-id (target/symbols)")
    verbs.add_parser("selftest", help="planted failures on the software GPU, under a minute")
    options = parser.parse_args(arguments)
    if options.verb is None:
        parser.error("one of pack, run, explain, selftest")
    checkout, environment = GPU_CHECK.parent, dict(os.environ)
    kit = checkout / KIT if (checkout / KIT).is_dir() else checkout
    options.checkout, options.environment = checkout, environment
    options.dist = pathlib.Path(environment.get("VGPU_DIST") or (kit if (kit / "dist").is_dir() else checkout) / "dist").resolve()
    options.tools = environment.get("FIRST_CONTACT_TOOLS") or (str(kit / "tools") if (kit / "tools").is_dir() else "")
    options.carried = str(kit) if kit != checkout else None
    options.probe, options.driver_root = str(GPU_CHECK / "probe.py"), None
    options.soft = options.soft_gpu = environment.get("SOFT", "0") not in ("", "0")
    choose_driver(options)
    if options.verb == "run":
        choose(parser, options)
    return options


def choose(parser, options):
    options.out, options.planted = str(pathlib.Path(options.out).resolve()), options.planted.split(",")
    options.stages = options.only.split(",") if options.only else list(stages.ORDER)
    for name in options.stages + ([options.first] if options.first else []):
        if name not in stages.FILES:
            parser.error("{}: not one of {}".format(name, ", ".join(stages.ORDER)))
    if options.first:
        options.stages = options.stages[options.stages.index(options.first) :] if options.first in options.stages else options.stages
    options.stages = ["S0"] + [name for name in options.stages if name != "S0"]
