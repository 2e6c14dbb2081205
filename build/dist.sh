#!/usr/bin/env bash
# Builds the release artefacts into dist/ and checks each of them (check-dist.sh).
#
# All that runs on other people's systems is linked against glibc 2.17 by zig; the hook is static,
# because it runs in whatever root file system a container brings. dist/ is filled file by file,
# each by one rename and only where its bytes changed, so an interrupted run leaves no half file,
# and a run without changes only asks cargo and checks.
. "$(dirname "$0")/env.sh"
. "$root/build/zigbuild.sh"
as_caller "$@"

readonly TRIPLE=x86_64-unknown-linux-gnu GLIBC=2.17
dist=${VGPU_DIST:-$root/dist}
# Flags of the caller would replace ours, or build something else than what is released.
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS CARGO_BUILD_TARGET CARGO_BUILD_RUSTFLAGS

"$root/build/prerequisites.sh" build
cd "$root"
mkdir -p "$CARGO_TARGET_DIR" "$dist/soft-gpu"
exec 9>"$CARGO_TARGET_DIR/.dist.lock"
flock 9 # two runs at once take turns
zigbuild_ready

say "building the programs and libraries (glibc $GLIBC)"
cargo zigbuild --profile programs --target $TRIPLE.$GLIBC -p vgpu-kubelet-plugin -p vgpu-controller -p vgpu-cli
cargo zigbuild --release --target $TRIPLE.$GLIBC -p vgpu-shim -p soft-gpu-cuda -p soft-gpu-nvml
cargo zigbuild --profile preload --target $TRIPLE.$GLIBC -p vgpu-preload
# A target folder of its own, so that the flag does not rebuild what others share.
cargo build --release --target $TRIPLE --target-dir "$CARGO_TARGET_DIR/static" -p vgpu-cdi-hook \
  --config "target.$TRIPLE.rustflags=[\"-C\",\"target-feature=+crt-static\"]"

# Not an artefact: cargo builds it for its own package's tests only, and tests of other packages that load dist/ start it.
cargo build -p gpu-client

# place BUILT NAME
place() {
  local from=$CARGO_TARGET_DIR/$1 to=$dist/$2
  cmp -s "$from" "$to" && return
  install -m 755 "$from" "$dist/.${2##*/}.new"
  mv -f "$dist/.${2##*/}.new" "$to"
}

place $TRIPLE/programs/vgpu-kubelet-plugin vgpu-kubelet-plugin
place $TRIPLE/programs/vgpu-controller vgpu-controller
place $TRIPLE/programs/vgpu vgpu
place static/$TRIPLE/release/vgpu-cdi-hook vgpu-cdi-hook
place $TRIPLE/release/libvgpu.so libvgpu.so
place $TRIPLE/preload/libvgpu_preload.so libvgpu-preload.so
place $TRIPLE/release/libsoft_gpu_cuda.so soft-gpu/libcuda.so.1
place $TRIPLE/release/libsoft_gpu_nvml.so soft-gpu/libnvidia-ml.so.1

# What HAMi has one place for: the backstop with the shim behind it, the shim's length and a mark
# (vgpu-core/preload/src/embedded.rs).
combine() {
  local length i
  cat "$dist/libvgpu-preload.so" "$dist/libvgpu.so"
  length=$(stat -c %s "$dist/libvgpu.so")
  for i in 0 8 16 24 32 40 48 56; do
    printf '%b' "\\x$(printf %02x $((length >> i & 255)))"
  done
  printf vgpushim
}
combine >"$CARGO_TARGET_DIR/libvgpu-hami.so"
place libvgpu-hami.so libvgpu-hami.so

"$root/build/check-dist.sh" "$dist"
