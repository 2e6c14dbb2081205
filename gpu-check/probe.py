"""Runs one probe: `probe.py NAME ARGUMENTS` of the check, `probe.py MODULE:FUNCTION ARGUMENTS` of first_contact. Each
runs bare or under a share."""

import importlib
import os
import sys

from vgpu_check.probes import talk


def probe(name):
    module, _, function = name.partition(":")
    package = "first_contact.probes." if function else "vgpu_check.probes."
    return getattr(importlib.import_module(package + module), function or "main")


if __name__ == "__main__":
    talk.end_with_parent()
    status = talk.run(lambda: probe(sys.argv[1])(*sys.argv[2:]))
    if ":" in sys.argv[1]:
        sys.exit(status)  # for first_contact, the libraries' exit handlers are part of the result
    # Skips the libraries' exit handlers: they may hang, and are not part of the check.
    os._exit(status)
