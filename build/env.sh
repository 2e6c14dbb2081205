# Sourced by the scripts of this folder: defines folders, and a PATH that finds the toolchains.
#
# sudo resets PATH and HOME, so a toolchain in the caller's ~/.cargo is searched by name.
# shellcheck shell=bash
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/dra-driver-vgpu
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target}

home_of_sudo_user() {
  [ -n "${SUDO_USER:-}" ] && getent passwd "$SUDO_USER" | cut -d: -f6
}

for folder in "$HOME/.cargo/bin" "$(home_of_sudo_user || true)/.cargo/bin" /usr/local/go/bin; do
  case ":$PATH:" in
    *":$folder:"*) ;;
    *) [ -d "$folder" ] && PATH=$PATH:$folder ;;
  esac
done
export PATH

# Prints one line on stderr and exits.
fail() {
  echo "${0##*/}: $*" >&2
  exit 1
}

say() {
  echo "==> $*"
}

# `sudo make ...` in a clone of an ordinary user: continues as that user, so that root owns no file in the clone or the
# cache. sudo resets the environment; variables that the user set for us are passed on.
as_caller() {
  if [ "$(id -u)" = 0 ] && [ -n "${SUDO_UID:-}" ] && [ "$SUDO_UID" != 0 ] && [ "$(stat -c %u "$root")" = "$SUDO_UID" ]; then
    local name keep=()
    for name in $(compgen -e); do
      case $name in
        KEEP | CLUSTER | DEBIAN | KUBERNETES | KUBERNETES_VERSION | CONTAINERD_VERSION | VGPU_* | XDG_CACHE_HOME | CARGO_TARGET_DIR | RUSTUP_* | GO* | *_proxy | *_PROXY) keep+=("$name=${!name}") ;;
      esac
    done
    exec sudo -H -u "#$SUDO_UID" env -u SUDO_UID PATH="$PATH" "${keep[@]}" "$0" "$@"
  fi
}
