#!/usr/bin/env bash
# Formatting and lints of everything, the conformance package (a workspace of its own) included.
# lint.sh fmt | clippy runs one of the two.
. "$(dirname "$0")/env.sh"
as_caller "$@"
cd "$root"

packages=("$root/Cargo.toml")
[ ! -f cdi/conformance/Cargo.toml ] || packages+=("$root/cdi/conformance/Cargo.toml")

for what in ${1:-fmt clippy}; do
  for manifest in "${packages[@]}"; do
    case $what in
      fmt) cargo fmt --all --manifest-path "$manifest" --check ;;
      clippy) cargo clippy --workspace --all-targets --manifest-path "$manifest" -- -D warnings ;;
      *) fail "$what: not one of fmt, clippy" ;;
    esac
  done
done
