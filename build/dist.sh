#!/usr/bin/env bash
# dist.sh: builds the release artefacts into dist/ and checks each of them (check-dist.sh). VGPU_ARCH=arm64 or amd64: those
# for that architecture, in dist-ARCH/ unless it is this machine's; VGPU_ARCH=both: first this machine's.
# dist.sh --for-tests: the same folder for the tests of this machine, in target/test-dist. With VGPU_ARCH of another
# machine, in target/test-dist-ARCH: only what a share needs, for an emulator (arm64.sh).
# dist.sh --dissect: only libvgpu-dissect.so, in target/dissect-dist: its parts can be switched off
# (docs/debugging.md).
#
# Files in dist/ are stripped. target/symbols has an unstripped copy of each, with the same build ID.
#
# Everything that runs on other people's systems is linked against glibc 2.17 by zig; the hook is static,
# because it runs in any container's root file system. dist/ is filled file by file, each by one rename
# and only if its bytes changed, so an interrupted run leaves no half file, and a run without changes
# only asks cargo and checks.
#
# For another architecture zig links too. Only the hook needs that architecture's C compiler: zig has no static glibc.
#
# For tests, libraries and the static hook are those of the release. The other programs come from the build of the workspace that
# the tests need anyway (profile dev, this machine's glibc), which saves the minutes of a build for size. They differ
# in size and speed, and check overflows and debug assertions.
. "$(dirname "$0")/env.sh"
. "$root/build/arch.sh"
. "$root/build/zigbuild.sh"
. "$root/build/crates.sh"
as_caller "$@"

architectures=$(arch_list)
if [ "${VGPU_ARCH:-}" = both ]; then
  [ -z "${1:-}${VGPU_DIST:-}" ] || fail "VGPU_ARCH=both: leave VGPU_DIST unset and write no $*: name one architecture"
  for VGPU_ARCH in $(arch_own; grep -v "^$(arch_own)$" <<<"$architectures"); do VGPU_ARCH=$VGPU_ARCH "$0"; done
  exit
fi
arch_use "$architectures"
readonly TRIPLE=$ARCH_TRIPLE GLIBC=2.17
suffix='' foreign=''
[ "$VGPU_ARCH" = "$(arch_own)" ] || suffix=-$VGPU_ARCH foreign=1
for_tests='' dissect=''
case ${1:-} in
  '') dist=${VGPU_DIST:-$(arch_dist "$VGPU_ARCH")} ;;
  --for-tests) for_tests=1 dist=${VGPU_DIST:-$CARGO_TARGET_DIR/test-dist$suffix} ;;
  --dissect) dissect=1 dist=${VGPU_DIST:-$CARGO_TARGET_DIR/dissect-dist$suffix} ;;
  *) fail "$1: write nothing, --for-tests or --dissect" ;;
esac
# The caller's flags would replace ours, or build something else than the release.
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS CARGO_BUILD_TARGET CARGO_BUILD_RUSTFLAGS
wrapper=${RUSTC_WORKSPACE_WRAPPER:-} # test.sh: clippy's driver, for programs and tests
export VGPU_ROOT=$root RUSTC_WORKSPACE_WRAPPER=rustc-same-paths.sh PATH=$PATH:$root/build

"$root/build/prerequisites.sh" build
[ -z "$foreign" ] || "$root/build/prerequisites.sh" "$VGPU_ARCH"
cd "$root"
symbols=$CARGO_TARGET_DIR/symbols${for_tests:+-for-tests}$suffix
mkdir -p "$CARGO_TARGET_DIR" "$dist" "$symbols"
exec 9>"$CARGO_TARGET_DIR/.dist${for_tests:+-for-tests}${dissect:+-dissect}.lock"
flock 9 # concurrent runs wait for each other
zigbuild_ready
crates_take

# Builds the libraries and the hook, which are the same in both folders.
libraries() {
  cargo zigbuild --release --target $TRIPLE.$GLIBC -p vgpu-shim -p soft-gpu-cuda -p soft-gpu-nvml &&
    preload_library &&
    # Its own target folder, so that the flag does not cause rebuilds for others.
    cargo build --release --target $TRIPLE --target-dir "$CARGO_TARGET_DIR/static" -p vgpu-cdi-hook \
      ${foreign:+--config "target.$TRIPLE.linker=\"$ARCH_GNU-gcc\""} \
      --config "target.$TRIPLE.rustflags=[\"-C\",\"target-feature=+crt-static\"]"
}

# arm64's compiler calls functions for atomics, which look up the processor's features in a constructor, and by a function
# of libc. The library has neither. rustc warns of a feature that it calls unstable; -A warnings leaves that out, and what
# the crate itself is warned of is seen in any other build.
preload_library() {
  local flags=() rustflags='["-C", "target-feature=-outline-atomics", "-A", "warnings"]'
  [ "$VGPU_ARCH" != arm64 ] || flags=(--config "target.$TRIPLE.rustflags=$rustflags")
  cargo zigbuild --profile preload --target $TRIPLE.$GLIBC -p vgpu-preload "${flags[@]}"
}

# In its own target folder, because another feature would rebuild the release's crates.
dissecting_library() {
  cargo zigbuild --release --target $TRIPLE.$GLIBC --target-dir "$CARGO_TARGET_DIR/dissect" -p vgpu-shim --features dissect
}

# The files of a share, linked by the cross compiler's glibc.
programs_for_emulated_tests() {
  RUSTC_WORKSPACE_WRAPPER=$wrapper cargo build --target $TRIPLE --config "target.$TRIPLE.linker=\"$ARCH_GNU-gcc\"" \
    --bin vgpu --bin gpu-client -p vgpu-cli -p gpu-client
}

# With all features that any test needs, so that `cargo test --workspace` compiles none of it again.
programs_for_tests() {
  local built tests
  built=$(RUSTC_WORKSPACE_WRAPPER=$wrapper cargo build --workspace --bin vgpu-kubelet-plugin --bin vgpu-controller --bin vgpu --bin vgpu-e2e \
    --bin vgpu-driver-limit \
    --bin vgpu-client --bin gpu-client --test cluster --message-format=json-render-diagnostics) || return
  # The cluster tests' program, for test.sh.
  tests=$(sed -n 's/.*"executable":"\([^"]*\/deps\/cluster-[0-9a-f]*\)".*/\1/p' <<<"$built")
  [ -x "$tests" ] && ln -sfn "$tests" "$CARGO_TARGET_DIR/cluster-tests"
}

if [ -n "$dissect" ]; then
  say "building the library whose parts can be switched off (glibc $GLIBC)"
  dissecting_library
elif [ -n "$for_tests" ] && [ -n "$foreign" ]; then
  say "building what a share needs on $VGPU_ARCH, and the libraries (glibc $GLIBC)"
  libraries
  programs_for_emulated_tests
  programs=$TRIPLE/debug
elif [ -n "$for_tests" ]; then
  say "building the programs for tests, and the libraries (glibc $GLIBC)"
  # Both at the same time: the last crates of either leave a core idle.
  set -m # own process group, to be ended together with its cargo
  libraries 9>&- &
  beside=$!
  set +m
  programs_for_tests || { kill -- -$beside; exit 1; }
  wait $beside
  programs=debug
else
  say "building the programs and libraries (glibc $GLIBC)"
  cargo zigbuild --profile programs --target $TRIPLE.$GLIBC -p vgpu-kubelet-plugin -p vgpu-controller -p vgpu-cli \
    -p vgpu-client -p vgpu-driver-limit
  libraries
  # Not an artefact. Cargo builds it only for tests of its own package, but tests of other packages start it too.
  [ -n "$foreign" ] || RUSTC_WORKSPACE_WRAPPER=$wrapper cargo build --workspace --bin gpu-client
  programs=$TRIPLE/programs
fi

# place BUILT NAME: copies it stripped into dist/, and unstripped into the symbols.
place() {
  local name=${2##*/} new twin
  new=$dist/.$name.new twin=$symbols/.$name.new
  install -m 755 "$CARGO_TARGET_DIR/$1" "$new"
  ${foreign:+$ARCH_GNU-}strip "$new" # symbols are most of a file
  settle "$new" "$dist/$2"
  case $1 in */debug/* | debug/*) return ;; esac # tests need no symbols of their programs
  cp --reflink=auto "$CARGO_TARGET_DIR/$1" "$twin"
  settle "$twin" "$symbols/$name"
}

# settle NEW FILE: replaces the file if its bytes differ.
settle() {
  if cmp -s "$1" "$2"; then
    rm -f "$1"
  else
    mv -f "$1" "$2"
  fi
}

if [ -n "$dissect" ]; then
  place dissect/$TRIPLE/release/libvgpu.so libvgpu-dissect.so
  exit
fi

mkdir -p "$dist/soft-gpu"
place $programs/vgpu vgpu
if [ -z "$foreign" ] || [ -z "$for_tests" ]; then
  for program in vgpu-kubelet-plugin vgpu-controller vgpu-client vgpu-driver-limit; do
    place $programs/$program $program
  done
fi
place static/$TRIPLE/release/vgpu-cdi-hook vgpu-cdi-hook
place $TRIPLE/release/libvgpu.so libvgpu.so
place $TRIPLE/preload/libvgpu_preload.so libvgpu-preload.so
place $TRIPLE/release/libsoft_gpu_cuda.so soft-gpu/libcuda.so.1
place $TRIPLE/release/libsoft_gpu_nvml.so soft-gpu/libnvidia-ml.so.1

# HAMi's single library: the backstop with the shim appended, the shim's length and a marker
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
combine >"$dist/.libvgpu-hami.so.new"
chmod 755 "$dist/.libvgpu-hami.so.new"
settle "$dist/.libvgpu-hami.so.new" "$dist/libvgpu-hami.so"

[ -n "$for_tests" ] || "$root/build/check-dist.sh" "$dist" "$symbols" "$VGPU_ARCH"
