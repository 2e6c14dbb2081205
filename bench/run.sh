#!/usr/bin/env bash
# Measures the figures of docs/benchmarks.md on this machine. One part alone:
# `run.sh library [--quick|--real-gpu|--rounds N]`, `run.sh allocator`, `run.sh calls [--rounds N]`,
# `run.sh driver-limit [--starts N]`, `run.sh cluster`,
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
  library | controller | calls | driver-limit) ;;
  allocator | cluster | translate | quota | usage | all) [ $# -eq 0 ] || fail "$part takes no options, and $1 was given: library, calls, driver-limit and controller do" ;;
  *) fail "$part: not a part; there are library, allocator, calls, driver-limit, cluster, translate, quota, usage, controller and compute" ;;
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
  state=$(mktemp -d) # of the software GPU
  "${sudo[@]}" env SOFT_GPU_STATE="$state" "$CARGO_TARGET_DIR/programs/bench-calls" --instances "${VGPU_DIST:-$root/dist}" "$@"
  "${sudo[@]}" rm -rf "$state"
fi
if runs driver-limit; then
  build/prerequisites.sh demo
  cargo build --quiet --workspace --bin vgpu-cache --bin vgpu-e2e --example dmem
  sudo=()
  [ "$(id -u)" = 0 ] || sudo=(sudo) # runc needs root
  # In a PID namespace of its own, because the hook is given a /proc with few PIDs.
  "${sudo[@]}" unshare --pid --fork --mount-proc bash -euc '
    node=$(mktemp -d)
    trap "rm -rf $node" EXIT
    dist=$1 debug=$2 runc=$3
    shift 3
    release=$node/var/lib/vgpu/release libraries=$node/driver/usr/lib/x86_64-linux-gnu
    mkdir -p "$release" "$libraries" "$node/vgpu/image"
    cp "$dist"/{libvgpu.so,libvgpu-preload.so,vgpu-cdi-hook,vgpu-driver-limit} "$release"
    cp "$dist"/soft-gpu/* "$libraries"
    SOFT_GPU_STATE=$node/vgpu/soft-gpu "$debug/examples/dmem" "$node"
    cp -a "$("$debug/vgpu-cache" coreutils)/." "$node/vgpu/image"
    mkdir -p "$node/vgpu/image/proc" "$node/vgpu/image/dev"
    python3 bench/driver_limit.py "$node" "$runc" "$@"
  ' driver-limit "${VGPU_DIST:-$root/dist}" "$CARGO_TARGET_DIR/debug" "$(echo "$cache"/tools/runc-*/runc)" "$@"
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
