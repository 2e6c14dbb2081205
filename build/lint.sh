#!/usr/bin/env bash
# Formatting, lints and import circles of everything, the conformance package (a workspace of its own) included.
# lint.sh fmt | clippy | circles runs one of them.
. "$(dirname "$0")/env.sh"
as_caller "$@"
cd "$root"

packages=("$root/Cargo.toml")
[ ! -f cdi/conformance/Cargo.toml ] || packages+=("$root/cdi/conformance/Cargo.toml")

for what in ${1:-fmt circles clippy}; do
  if [ "$what" = circles ]; then
    # Circles that may stay are in allowed.yaml, each with its reason.
    cargo run --quiet -p vgpu-circles -- build/circles/allowed.yaml "${packages[@]}"
    continue
  fi
  for manifest in "${packages[@]}"; do
    case $what in
      fmt) cargo fmt --all --manifest-path "$manifest" --check ;;
      clippy) cargo clippy --workspace --all-targets --manifest-path "$manifest" -- -D warnings ;;
      *) fail "$what: not one of fmt, circles, clippy" ;;
    esac
  done
done
