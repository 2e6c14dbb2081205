#!/bin/sh
# The figures of docs/benchmarks.md: with and without the library, in one run, on this machine.
set -eu
exec python3 "$(dirname "$0")/run.py" "$@"
