"""One probe, in a process of its own: `probe.py NAME ARGUMENTS`, started by the check on one side."""

import importlib
import os
import sys

from vgpu_check.probes import talk

if __name__ == "__main__":
    talk.end_with_parent()
    # Probes are many and short; what a library does at its exit is nobody's question here, and may hang.
    os._exit(talk.run(lambda: importlib.import_module("vgpu_check.probes." + sys.argv[1]).main(*sys.argv[2:])))
