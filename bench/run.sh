#!/usr/bin/env bash
# The figures of docs/benchmarks.md, measured on this machine: the library's cost, then the cluster's.
# `run.sh library [--quick|--real-gpu|--rounds N]` or `run.sh cluster` prints one part alone.
. "$(dirname "$0")/../build/env.sh"
as_caller "$@"
cd "$root"
part=${1:-all}
[ $# -eq 0 ] || shift
case $part in library | cluster | all) ;; *) fail "$part: not a part; there are library and cluster" ;; esac
if [ "$part" != cluster ]; then
  python3 bench/run.py "$@"
fi
if [ "$part" != library ]; then
  build/prerequisites.sh demo
  cargo build --quiet --release -p vgpu-e2e
  cargo build --quiet --release -p vgpu-kubelet-plugin --example prepare_bench
  "$CARGO_TARGET_DIR/release/vgpu-e2e" --cluster bench bench --prepare-bench "$CARGO_TARGET_DIR/release/examples/prepare_bench"
fi
