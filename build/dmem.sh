#!/usr/bin/env bash
# dmem.sh: runs the hooks of a claim's containers on a kernel that has the controller dmem, which no kernel of Debian's has:
# user-mode Linux from Debian's linux-source, with a device that charges cgroups as a GPU's driver would (e2e/dmem).
# Containers are started by runc and crun, with cgroupfs and with systemd. docs/guest.md describes it.
#
# By hand, with dist/: the kernel takes a quarter of an hour to build on two cores, once, and 2 GiB for temporary files; a
# run takes some minutes. Nothing is changed on this machine. user-mode Linux needs neither root nor KVM, but the files of
# its root are root's, so `dmem.sh run KERNEL DEBIAN`, which this calls, needs root.
#
# How it fails: a test that fails is a line `FAILED` and exit status 1, as is a run that does not reach its last line; a
# kernel that does not end is killed after half an hour; an interrupted build leaves nothing in the cache; each run's
# folder is removed.
. "$(dirname "$0")/env.sh"
[ "${1:-}" = run ] || as_caller "$@"
cd "$root"
readonly LINUX=7.3 RELEASE=trixie
dist=${VGPU_DIST:-$root/dist}
work='' run=''
trap 'rm -rf "$work" "$run"' EXIT

cache_of() { "$CARGO_TARGET_DIR/debug/vgpu-cache" "$@"; }

# Builds the kernel into the cache.
build_kernel() {
  local sources
  say "building user-mode Linux $LINUX: about a quarter of an hour"
  sources=$(cache_of --release $RELEASE-backports --alone "linux-source-$LINUX")
  work=$(mktemp -d)
  tar -C "$work" -xf "$sources/usr/src/linux-source-$LINUX.tar.xz"
  cd "$work/linux-source-$LINUX"
  cp "$root/e2e/dmem/gpu_memory.c" drivers/misc/gpu_memory.c
  echo 'obj-y += gpu_memory.o' >>drivers/misc/Makefile
  make -s ARCH=um defconfig
  ARCH=um SUBARCH=x86_64 scripts/kconfig/merge_config.sh -m .config "$root/e2e/dmem/config" >/dev/null
  make -s ARCH=um olddefconfig
  grep -q CONFIG_CGROUP_DMEM=y .config || fail "linux $LINUX has no CGROUP_DMEM"
  make -s ARCH=um -j"$(nproc)" linux
  cp linux "$kernel.new"
  mv "$kernel.new" "$kernel"
  cd "$root"
  rm -rf "$work"
}

# Makes the root of the guest's file system in $run/root, with an image for containers in it, of the same packages.
root_of_guest() { # DEBIAN
  local guest=$run/root file
  cp -a "$1/." "$guest"
  mkdir -p "$guest"/{var/lib/vgpu/release,driver/usr/lib/x86_64-linux-gnu,vgpu/image,etc/systemd/system}
  for file in libvgpu.so libvgpu-preload.so vgpu-cdi-hook vgpu-driver-limit; do
    cp "$dist/$file" "$guest/var/lib/vgpu/release/"
  done
  cp "$dist/soft-gpu/"* "$guest/driver/usr/lib/x86_64-linux-gnu/"
  cp -a "$1/." "$guest/vgpu/image"
  cp "$dist/vgpu-client" "$guest/vgpu/image/usr/bin/"
  cp e2e/dmem/in-container.sh "$guest/vgpu/image/"
  cp e2e/dmem/tests.sh "$guest/vgpu/"
  cp e2e/dmem/{dmem.service,dmem.target} "$guest/etc/systemd/system/"
  printf 'root:x:0:0:root:/:/bin/sh\nmessagebus:x:100:100::/:/bin/false\n' >"$guest/etc/passwd"
  printf 'root:x:0:\nmessagebus:x:100:\n' >"$guest/etc/group"
  : >"$guest/etc/machine-id"
  SOFT_GPU_STATE=$guest/vgpu/soft-gpu "$CARGO_TARGET_DIR/debug/examples/dmem" "$guest"
  chown -R root:root "$guest/var/lib/vgpu" "$guest/driver" "$guest/vgpu"
}

if [ "${1:-}" != run ]; then
  build/prerequisites.sh dmem
  [ -x "$dist/vgpu-driver-limit" ] || fail "$dist has no vgpu-driver-limit: run \`make dist\`"
  # With the tests' features, so that they compile none of it again.
  cargo build --quiet --workspace --bin vgpu-cache --example dmem
  kernel=$cache/dmem-kernel-$LINUX-$(cat e2e/dmem/gpu_memory.c e2e/dmem/config | sha256sum | cut -c1-16)
  [ -x "$kernel" ] || build_kernel
  debian=$(cache_of --release $RELEASE systemd dbus crun runc dash coreutils util-linux grep sed)
  as_root=()
  [ "$(id -u)" = 0 ] || as_root=(sudo -E)
  exec "${as_root[@]}" "$root/build/dmem.sh" run "$kernel" "$debian"
fi

run=$(mktemp -d)
root_of_guest "$3"
say "starting user-mode Linux"
timeout --kill-after=5 1800 "$2" mem=1G con=null con0=null,fd:1 root=/dev/root rootfstype=hostfs \
  "rootflags=$run/root" rw quiet init=/usr/lib/systemd/systemd systemd.unit=dmem.target systemd.show_status=false \
  </dev/null | sed -u 's/\r//' | tee "$run/console" | sed -un 's/^dmem: //p' || true
grep -q '^dmem: all passed' "$run/console" || {
  tail -40 "$run/console" >&2
  fail "not all of it passed; above is the end of the kernel's console"
}
