#!/usr/bin/env bash
# Checks the limits on this machine's NVIDIA GPU, and measures their cost: docs/gpu-check.md.
#
# Needs Python 3.8 and dist/ (VGPU_DIST), which may come from another machine and is built here only if it is missing.
# PYTHON names the interpreter with PyTorch, CuPy, JAX ...
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export VGPU_DIST=${VGPU_DIST:-$here/../dist} PYTHONDONTWRITEBYTECODE=1
python=${PYTHON:-python3}
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null; then
  echo "gpu-check: $python is missing or older than 3.8: name another with PYTHON" >&2
  exit 2
fi
case " $* " in *" --help "* | *" -h "*) exec "$python" "$here/check.py" --help ;; esac
# Look for a GPU before the build: without one there is no reason to build.
"$python" "$here/check.py" "$@" --look
if [ ! -e "$VGPU_DIST/vgpu" ]; then
  "$here/../build/dist.sh" >&2
fi
exec "$python" "$here/check.py" "$@"
