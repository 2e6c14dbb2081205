# Sourced: names of a processor architecture, in Kubernetes' spelling. vgpu-core/abi/src/arch.rs has those that programs
# need; its test reads this table.
# shellcheck shell=bash

# Columns: Kubernetes and OCI, the kernel (uname -m), glibc's loader, readelf's machine.
ARCHITECTURES='
amd64  x86_64   ld-linux-x86-64.so.2   X86-64
arm64  aarch64  ld-linux-aarch64.so.1  AArch64
'

# arch_use NAME: sets VGPU_ARCH, ARCH_KERNEL, ARCH_LOADER, ARCH_READELF, ARCH_TRIPLE (Rust's) and ARCH_GNU (the prefix of
# Debian's cross tools and its folder of libraries). Fails for a name that is not in the table.
arch_use() {
  read -r VGPU_ARCH ARCH_KERNEL ARCH_LOADER ARCH_READELF < <(grep "^$1 " <<<"$ARCHITECTURES") ||
    fail "VGPU_ARCH: $1: write $(awk 'NF {printf "%s, ", $1}' <<<"$ARCHITECTURES")or both"
  ARCH_TRIPLE=$ARCH_KERNEL-unknown-linux-gnu ARCH_GNU=$ARCH_KERNEL-linux-gnu
  export VGPU_ARCH # of programs that the script starts
}

# arch_own: prints the architecture of this machine.
arch_own() {
  awk -v kernel="$(uname -m)" '$2 == kernel {print $1}' <<<"$ARCHITECTURES"
}

# arch_list: prints what the variable VGPU_ARCH asks for, one a line: nothing is this machine's own, `both` is all.
arch_list() {
  case ${VGPU_ARCH:-} in
    '') arch_own ;;
    both) awk 'NF {print $1}' <<<"$ARCHITECTURES" ;;
    *) (arch_use "$VGPU_ARCH" && echo "$VGPU_ARCH") ;;
  esac
}

# arch_dist ARCHITECTURE: prints the folder of its artefacts.
arch_dist() {
  if [ "$1" = "$(arch_own)" ]; then echo "$root/dist"; else echo "$root/dist-$1"; fi
}
