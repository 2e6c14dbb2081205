#!/usr/bin/env bash
# e2e.sh demo | up | down | kubectl | exec | images | tools | preflight | payload | guest: the cluster's own program (crate
# vgpu-e2e), which asks for root where it needs it.
#
# demo builds dist/ first. Where no cluster can be made, it shows a share without one, says what is missing, and exits 3
# (make says `Error 3` then and itself exits 2). For that much Rust and a C compiler are enough: without the rest, what
# the share needs is built for this machine alone.
. "$(dirname "$0")/env.sh"
. "$root/build/crates.sh"
as_caller "$@"
cd "$root"

prerequisites() {
  "$root/build/prerequisites.sh" "$@"
}

build_program() {
  crates_take
  # As the tests of the workspace have it (dist.sh --for-tests), so that they compile nothing of it again.
  cargo build --quiet --workspace --bin vgpu-e2e --bin vgpu-client --test cluster
}

local_artefacts() {
  local from=$CARGO_TARGET_DIR/release
  export VGPU_DIST=$CARGO_TARGET_DIR/local-share
  say "building what a share on this machine needs"
  cargo build --quiet --release -p vgpu-cli -p vgpu-shim -p soft-gpu-cuda -p soft-gpu-nvml
  cargo build --quiet --profile preload -p vgpu-preload
  mkdir -p "$VGPU_DIST/soft-gpu"
  install -s -m 755 "$from/vgpu" "$from/libvgpu.so" "$VGPU_DIST"
  install -s -m 755 "$CARGO_TARGET_DIR/preload/libvgpu_preload.so" "$VGPU_DIST/libvgpu-preload.so"
  install -s -m 755 "$from/libsoft_gpu_cuda.so" "$VGPU_DIST/soft-gpu/libcuda.so.1"
  install -s -m 755 "$from/libsoft_gpu_nvml.so" "$VGPU_DIST/soft-gpu/libnvidia-ml.so.1"
}

# Before anything long is built or installed: variables that are refused, and if a cluster can be made here. What a
# cluster needs is installed, or asked for, only where one can.
ready_for_demo() {
  local missing said rc=0
  if ! missing=$(prerequisites demo --only-check 2>&1) && ! prerequisites local 2>/dev/null; then
    echo "$missing" >&2
    exit 1
  fi
  build_program
  said=$("$CARGO_TARGET_DIR/debug/vgpu-e2e" preflight --without-asking 2>&1) || rc=$?
  # Root installs what is missing: now sudo may ask, so that a user without the right is told before anything else.
  if [ $rc -eq 0 ] && ! prerequisites demo --only-check 2>/dev/null; then
    said=$("$CARGO_TARGET_DIR/debug/vgpu-e2e" preflight 2>&1) || rc=$?
  fi
  case $rc in
    0) prerequisites demo ;;
    3)
      prerequisites build --only-check 2>/dev/null || {
        local_artefacts
        return
      }
      ;;
    *)
      echo "$said" >&2
      exit 1
      ;;
  esac
  "$root/build/dist.sh"
}

case ${1:-} in
  demo) ready_for_demo ;;
  preflight | down | kubectl | exec) prerequisites local ;;
  guest) prerequisites guest ;;
  *) prerequisites demo ;;
esac
build_program
if [ "${1:-}" = guest ]; then
  built=$(cargo build --quiet --workspace --bin vgpu-e2e --test cluster --message-format=json)
  set -- "$@" --tests "$(sed -n 's/.*"executable":"\([^"]*\/deps\/cluster-[0-9a-f]*\)".*/\1/p' <<<"$built")"
fi
# exec: Ctrl-C reaches the program itself, which leaves the machine as it was.
exec "$CARGO_TARGET_DIR/debug/vgpu-e2e" "$@"
