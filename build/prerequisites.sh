#!/usr/bin/env bash
# prerequisites.sh local | build | arm64 | emulate | demo | guest | dmem [--only-check]: checks this machine's programs for a
# share without a cluster, for building dist/, the same for another architecture, for running its programs, for a cluster,
# for an emulated machine with a cluster, or for building a kernel. It does not check rights and sizes; `vgpu-e2e preflight` tries them.
#
# Rust and Go are only reported if they are missing or too old, because distributions ship old versions. Everything
# else is installed if apt and root (or sudo) are available, else reported; --only-check installs nothing. All missing
# programs are reported at once, one per line.
. "$(dirname "$0")/env.sh"

readonly RUST=1.89 GO=1.26.6 GO_SWITCHING=1.21
mode=${1:-build} only_check=${2:-}
missing=()
packages=()

# at_least HAVE WANT
at_least() {
  [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | sed -n 1p)" = "$2" ]
}

# need PACKAGE WHAT COMMAND...: if COMMAND fails, PACKAGE (Debian's name) is missing, and with it WHAT.
need() {
  local package=$1 what=$2
  shift 2
  "$@" >/dev/null 2>&1 || packages+=("$package:$what")
}

check_machine() {
  [ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || missing+=("Linux on x86-64: this machine is $(uname -s) on $(uname -m)")
}

check_rust() {
  local said have
  # If rustup cannot fetch the toolchain that it needs, its message is the reason.
  said=$(cd "$root" && rustc --version 2>&1) || true
  have=$(sed -n 's/^rustc \([0-9.]*\).*/\1/p' <<<"$said")
  if [ -z "$have" ] || ! command -v cargo >/dev/null; then
    missing+=("Rust >= $RUST (rustc and cargo in PATH or ~/.cargo/bin): install it with rustup; rustc --version: ${said##*$'\n'}")
  elif ! at_least "$have" "$RUST"; then
    missing+=("Rust >= $RUST: $(command -v rustc) is $have; install a newer one with rustup")
  fi
}

check_go() {
  local have switching
  have=$(cd / && go env GOVERSION 2>/dev/null) || true
  have=${have#go}
  switching=$(cd / && go env GOTOOLCHAIN 2>/dev/null) || true
  if [ -z "$have" ]; then
    missing+=("Go >= $GO (or >= $GO_SWITCHING with GOTOOLCHAIN=auto): install it from the Go project")
  elif ! at_least "$have" "$GO" && ! { at_least "$have" "$GO_SWITCHING" && [ "${switching#*+}" = auto ]; }; then
    missing+=("Go >= $GO (or >= $GO_SWITCHING with GOTOOLCHAIN=auto): $(command -v go) is $have with GOTOOLCHAIN=$switching")
  fi
}

links() {
  echo 'int main(void) { return 0; }' | cc -x c -o /dev/null -
}

links_statically() {
  echo 'int main(void) { return 0; }' | cc -static -x c -o /dev/null -
}

links_statically_for_arm64() {
  echo 'int main(void) { return 0; }' | aarch64-linux-gnu-gcc -static -x c -o /dev/null -
}

rustup_has_target() {
  [ -d "$(rustc --print sysroot)/lib/rustlib/$1/lib" ]
}

# Debian 12's runc is sufficient; building runc with seccomp needs the library's headers.
runc_or_seccomp() {
  pkg-config --exists libseccomp || at_least "$(runc --version | sed -n 's/^runc version //p')" 1.1
}

# Installs missing packages, or fails.
install_packages() {
  local names=("${packages[@]%%:*}") as_root=()
  [ -z "$only_check" ] || return
  [ "$(id -u)" = 0 ] || as_root=(sudo)
  command -v apt-get >/dev/null || return
  [ "$(id -u)" = 0 ] || command -v sudo >/dev/null || return
  say "installing ${names[*]}"
  apt_install() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${names[@]}" >"$log" 2>&1; }
  local log
  log=$(mktemp)
  if apt_install || { "${as_root[@]}" apt-get update -qq >"$log" 2>&1 && apt_install; }; then
    rm -f "$log"
    return
  fi
  cat "$log" >&2
  rm -f "$log"
  return 1
}

check_machine
check_rust
need gcc "a C compiler (cc)" sh -c 'command -v cc'
if [ "$mode" = local ]; then
  need libc6-dev "the C library's headers" links
else
  need libc6-dev "the C library's headers and static library" links_statically
  need binutils "readelf" sh -c 'command -v readelf'
  need python3 "python3" python3 --version
  need python3-venv "python3's venv" python3 -c 'import ensurepip, venv'
  need util-linux "flock" sh -c 'command -v flock'
fi
if [ "$mode" = demo ] || [ "$mode" = guest ]; then
  check_go
  need iproute2 "ip" sh -c 'PATH=$PATH:/sbin:/usr/sbin command -v ip'
  need util-linux "unshare and nsenter" sh -c 'command -v unshare && command -v nsenter'
  need apt "apt-get, which brings the images' packages" sh -c 'command -v apt-get'
  need dpkg "dpkg-deb" sh -c 'command -v dpkg-deb'
  need python3-pip "pip for python3" python3 -m pip --version
  need pkg-config "pkg-config" sh -c 'command -v pkg-config'
  need libseccomp-dev "libseccomp's headers" runc_or_seccomp
fi
if [ "$mode" = guest ]; then
  need qemu-system-x86 "qemu-system-x86_64" sh -c 'command -v qemu-system-x86_64'
  need mmdebstrap "mmdebstrap" sh -c 'command -v mmdebstrap'
  need debian-archive-keyring "the keys of Debian's packages" test -e /usr/share/keyrings/debian-archive-keyring.gpg
  need e2fsprogs "mke2fs" sh -c 'PATH=$PATH:/sbin:/usr/sbin command -v mke2fs'
  need util-linux "setpriv" sh -c 'command -v setpriv'
  [ "$(id -u)" = 0 ] || need uidmap "newuidmap" sh -c 'command -v newuidmap'
fi
if [ "$mode" = arm64 ] || [ "$mode" = emulate ]; then
  rustup_has_target aarch64-unknown-linux-gnu ||
    missing+=("Rust's library for arm64: rustup target add aarch64-unknown-linux-gnu")
  need gcc-aarch64-linux-gnu "a C compiler for arm64" sh -c 'command -v aarch64-linux-gnu-gcc'
  need libc6-dev-arm64-cross "the C library's headers and static library for arm64" links_statically_for_arm64
  need binutils-aarch64-linux-gnu "strip for arm64" sh -c 'command -v aarch64-linux-gnu-strip'
fi
if [ "$mode" = emulate ]; then
  need qemu-user-static "qemu-aarch64-static" sh -c 'command -v qemu-aarch64-static'
fi
if [ "$mode" = dmem ]; then
  for program in make flex bison bc xz; do
    need "${program/%xz/xz-utils}" "$program" sh -c "command -v $program"
  done
fi
if [ ${#packages[@]} -gt 0 ] && { [ ${#missing[@]} -gt 0 ] || ! install_packages; }; then
  for entry in "${packages[@]}"; do
    missing+=("${entry#*:}: install it (Debian and Ubuntu: apt-get install ${entry%%:*})")
  done
fi
if [ ${#missing[@]} -gt 0 ]; then
  printf 'missing: %s\n' "${missing[@]}" >&2
  exit 1
fi
