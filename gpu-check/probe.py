"""Runs one probe: `probe.py NAME ARGUMENTS`. The check starts it bare or under a share."""

import importlib
import os
import sys

from vgpu_check.probes import talk

if __name__ == "__main__":
    talk.end_with_parent()
    # Skip the libraries' exit handlers: they may hang, and are not part of the check.
    os._exit(talk.run(lambda: importlib.import_module("vgpu_check.probes." + sys.argv[1]).main(*sys.argv[2:])))
