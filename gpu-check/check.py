"""The check itself: `run.sh --help`."""

import sys

from vgpu_check.main import main

if __name__ == "__main__":
    sys.exit(main())
