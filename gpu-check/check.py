"""Starts the check; `run.sh --help` lists its flags."""

import sys

from vgpu_check.main import main

if __name__ == "__main__":
    sys.exit(main())
