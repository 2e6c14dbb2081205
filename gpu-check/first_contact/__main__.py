"""Starts the verb that the command line names."""

import importlib
import sys

from . import options


def main():
    flags = options.parse()
    return importlib.import_module("first_contact." + flags.verb).main(flags)


if __name__ == "__main__":
    sys.exit(main())
