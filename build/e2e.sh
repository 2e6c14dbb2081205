#!/usr/bin/env bash
# e2e.sh demo | up | down | kubectl | exec | images | tools | preflight | payload | guest: the cluster's own program
# (crate vgpu-e2e), which asks for root if it needs it.
#
# demo builds dist/ first. If no cluster can be created, it shows a share without one, says what is missing, and exits
# with 3 (make then prints `Error 3` and exits with 2). For this, Rust and a C compiler are enough: if other tools are
# missing, the share's programs are built for this machine alone.
. "$(dirname "$0")/env.sh"
. "$root/build/crates.sh"
as_caller "$@"
cd "$root"

prerequisites() {
  "$root/build/prerequisites.sh" "$@"
}

build_program() {
  crates_take
  # With the workspace tests' options (dist.sh --for-tests), so that they compile none of it again.
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

# Says what the demo builds, how long that takes, and how much disk it needs, before any of it.
announce() {
  local family missing=() families=(cni runc etcd containerd helm)
  [ -n "${KUBERNETES:-}" ] || families+=(kubernetes)
  for family in "${families[@]}"; do
    # A finished build is a folder. One of another version counts too: then the rest takes longer than said.
    compgen -G "$cache/tools/$family-*/" >/dev/null || missing+=("$family")
  done
  if [ ${#missing[@]} -eq 0 ]; then
    say "the demo takes one to two minutes, longer after changes: etcd, Kubernetes and the others are built, in $cache/tools"
    return
  fi
  say "before it starts, the demo builds this project and, from their sources, ${missing[*]}:"
  say "up to half an hour on two cores, and 8 GiB of disk in $cache, $CARGO_TARGET_DIR and $root/dist"
  say "Ctrl-C ends it, and the next run goes on with what is built; first it looks whether a cluster can be created here"
}

# Runs before long builds and installations: refuses bad variables and checks whether a cluster can be created.
# Prerequisites of a cluster are only installed, or requested, on machines that can have one.
ready_for_demo() {
  local missing said rc=0
  if ! missing=$(prerequisites demo --only-check 2>&1) && ! prerequisites local 2>/dev/null; then
    echo "$missing" >&2
    exit 1
  fi
  build_program
  said=$("$CARGO_TARGET_DIR/debug/vgpu-e2e" preflight --without-asking 2>&1) || rc=$?
  # Root installs missing packages. sudo may ask for a password now, so that a user without the right finds out first.
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
  demo)
    announce
    ready_for_demo
    ;;
  preflight | down | kubectl | exec) prerequisites local ;;
  guest) prerequisites guest ;;
  *) prerequisites demo ;;
esac
build_program
if [ "${1:-}" = guest ]; then
  built=$(cargo build --quiet --workspace --bin vgpu-e2e --test cluster --message-format=json)
  set -- "$@" --tests "$(sed -n 's/.*"executable":"\([^"]*\/deps\/cluster-[0-9a-f]*\)".*/\1/p' <<<"$built")"
fi
# exec: Ctrl-C reaches the program itself, which cleans up.
exec "$CARGO_TARGET_DIR/debug/vgpu-e2e" "$@"
