#!/usr/bin/env bash
# Removes the build outputs in the clone. The cache outside it ($XDG_CACHE_HOME/dra-driver-vgpu) stays.
. "$(dirname "$0")/env.sh"
as_caller "$@"
cd "$root"
cargo clean
rm -rf dist dist-* release
