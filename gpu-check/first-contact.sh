#!/usr/bin/env bash
# A first check of a machine with an NVIDIA GPU, in minutes: docs/gpu-check.md.
#   first-contact.sh pack | run | explain DIR | selftest; each has --help
#
# SOFT=1: on the software GPU. PYTHON names the interpreter with PyTorch (3.8 or newer), VGPU_DIST the programs
# (dist/).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null; then
  echo "first-contact: $python is missing or older than 3.8: name another with PYTHON" >&2
  exit 2
fi
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH}
exec "$python" -u -m first_contact "$@"
