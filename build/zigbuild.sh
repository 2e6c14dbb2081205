# Sourced: installs `cargo zigbuild` in the versions of zigbuild.txt into the cache outside the clone.
#
# The folder is keyed by zigbuild.txt and appears by one rename, so an interrupted download leaves nothing
# that a later run would trust, and two concurrent runs do not conflict.
# shellcheck shell=bash

zigbuild_ready() {
  local key dir tmp
  key=$(sha256sum "$root/build/zigbuild.txt" | cut -c1-16)
  dir=$cache/zigbuild-$key
  if [ ! -x "$dir/bin/cargo-zigbuild" ]; then
    say "fetching ziglang and cargo-zigbuild (once, into $dir)"
    mkdir -p "$cache"
    tmp=$(mktemp -d "$cache/.zigbuild-XXXXXX")
    if ! zigbuild_install "$tmp"; then
      rm -rf "$tmp"
      fail "cannot install ziglang and cargo-zigbuild (build/zigbuild.txt) from PyPI with pip: see the lines above"
    fi
    rm -rf "$tmp/venv"
    mv -T "$tmp" "$dir" 2>/dev/null || rm -rf "$tmp" # a concurrent run was faster
  fi
  PATH=$dir/bin:$PATH
  export PATH CARGO_ZIGBUILD_ZIG_PATH=$dir/ziglang/zig
}

# zigbuild_install FOLDER: uses a venv's pip, or python3's own if venv is missing.
zigbuild_install() {
  local python=python3
  if python3 -m venv "$1/venv" >/dev/null 2>&1; then
    python=$1/venv/bin/python
  fi
  "$python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
    --target "$1" -r "$root/build/zigbuild.txt" >&2
}
