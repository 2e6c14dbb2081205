#!/usr/bin/env bash
# Measures the figures of docs/benchmarks.md on this machine. One part alone:
# `run.sh library [--quick|--real-gpu|--rounds N]`, `run.sh allocator`, `run.sh calls [--rounds N]`, `run.sh cluster`,
# `run.sh translate`, `run.sh quota`, `run.sh usage` or `run.sh controller [--rounds N] [--pods N] [--nodes N]`.
# The last five start clusters and always remove them. `run.sh compute` prints docs/compute-accuracy.md: a
# simulation, and three minutes in real time.
. "$(dirname "$0")/../build/env.sh"
as_caller "$@"
cd "$root"
part=${1:-all}
[ $# -eq 0 ] || shift
runs() { # whether PART was selected
  [ "$part" = all ] || [ "$part" = "$1" ]
}
case $part in
  compute)
    cargo build --quiet --release -p vgpu-compute-sim
    "$CARGO_TARGET_DIR/release/vgpu-compute-sim"
    exec python3 bench/gpu_time.py
    ;;
  library | controller | calls) ;;
  allocator | cluster | translate | quota | usage | all) [ $# -eq 0 ] || fail "$part takes no options, and $1 was given: library, calls and controller do" ;;
  *) fail "$part: not a part; there are library, allocator, calls, cluster, translate, quota, usage, controller and compute" ;;
esac
if runs library; then
  python3 bench/run.py "$@"
fi
if runs allocator; then
  command -v go >/dev/null || fail "Go is missing: install Go >= 1.26, Kubernetes' own allocator is built with it"
  kubernetes=$CARGO_TARGET_DIR/kubernetes-go
  (cd e2e/kubernetes-go && GOWORK=off go build -mod=readonly -trimpath -buildvcs=false -o "$kubernetes" .)
  # Built as for a release.
  cargo build --quiet --profile programs -p vgpu-bench --bin bench-selectors --bin bench-allocator --bin bench-reviews
  echo "selectors:"
  "$CARGO_TARGET_DIR/programs/bench-selectors"
  echo "reviews of the webhook:"
  "$CARGO_TARGET_DIR/programs/bench-reviews"
  echo "one fractional claim:"
  "$CARGO_TARGET_DIR/programs/bench-allocator" 1000 0 --kubernetes "$kubernetes"
  "$CARGO_TARGET_DIR/programs/bench-allocator" 1000 10000 --kubernetes "$kubernetes"
  "$CARGO_TARGET_DIR/programs/bench-allocator" 5000 100000
  for policy in spread numa pcie whole-gpus first-fit; do
    "$CARGO_TARGET_DIR/programs/bench-allocator" 1000 10000 "$policy"
  done
fi
if runs cluster || runs translate || runs quota || runs usage || runs controller; then
  build/prerequisites.sh demo
  cargo build --quiet --release -p vgpu-e2e -p vgpu-bench --bin vgpu-e2e --bin vgpu-bench
fi
if runs calls; then
  cargo build --quiet --profile programs -p vgpu-bench --bin bench-calls
  sudo=()
  [ "$(id -u)" = 0 ] || sudo=(sudo) # mounting needs root
  "${sudo[@]}" "$CARGO_TARGET_DIR/programs/bench-calls" "$@"
fi
if runs cluster; then
  cargo build --quiet --profile programs -p vgpu-bench --bin bench-prepare
  "$CARGO_TARGET_DIR/release/vgpu-bench" node --prepare "$CARGO_TARGET_DIR/programs/bench-prepare"
fi
if runs translate; then
  cargo build --quiet --profile programs -p vgpu-bench --bin bench-webhook
  "$CARGO_TARGET_DIR/release/vgpu-bench" translate --webhook "$CARGO_TARGET_DIR/programs/bench-webhook"
fi
if runs quota; then
  cargo build --quiet --profile programs -p vgpu-bench --bin bench-gates
  "$CARGO_TARGET_DIR/release/vgpu-bench" quota --gates "$CARGO_TARGET_DIR/programs/bench-gates"
fi
if runs usage; then
  cargo build --quiet --profile programs -p vgpu-bench --bin bench-nodes
  programs=(--writer "$CARGO_TARGET_DIR/programs/bench-nodes" --vgpu "${VGPU_DIST:-dist}/vgpu")
  "$CARGO_TARGET_DIR/release/vgpu-bench" usage "${programs[@]}" --nodes 20 --claims 600 --minutes 1
  "$CARGO_TARGET_DIR/release/vgpu-bench" usage "${programs[@]}"
fi
if runs controller; then
  # Built as for a release.
  cargo build --quiet --profile programs -p vgpu-bench --bin bench-explanations
  "$CARGO_TARGET_DIR/release/vgpu-bench" burst "$@"
  "$CARGO_TARGET_DIR/release/vgpu-bench" memory
  echo "explanations:"
  "$CARGO_TARGET_DIR/programs/bench-explanations"
fi
