#!/usr/bin/env bash
# Formatting, lints and import circles of everything, including the conformance package (a workspace of its own).
# lint.sh fmt | clippy | circles runs one of them. `lint.sh lints` is clippy for tests compiled with its driver
# (build/test.sh): it compiles nothing again, cargo repeats the driver's messages.
. "$(dirname "$0")/env.sh"
. "$root/build/crates.sh"
as_caller "$@"
cd "$root"

packages=("$root/Cargo.toml")
[ ! -f cdi/conformance/Cargo.toml ] || packages+=("$root/cdi/conformance/Cargo.toml")

crates_take
for what in ${1:-fmt circles clippy}; do
  [ "$what" != fmt ] || python3 build/long-functions.py | tail -n 1
  if [ "$what" = circles ]; then
    # allowed.yaml lists the circles that may stay, each with its reason. Built with the features of the whole
    # workspace, like the tests, so that nothing is compiled only for this.
    cargo build --quiet --workspace --bin vgpu-circles
    "$CARGO_TARGET_DIR/debug/vgpu-circles" build/circles/allowed.yaml "${packages[@]}"
    continue
  fi
  for manifest in "${packages[@]}"; do
    case $what in
      fmt) cargo fmt --all --manifest-path "$manifest" --check ;;
      clippy) cargo clippy --workspace --all-targets --manifest-path "$manifest" -- -D warnings ;;
      lints)
        : "${RUSTC_WORKSPACE_WRAPPER:?is not set: build/test.sh sets it to clippy-driver, if there is one (rustup component add clippy)}"
        said=$(cargo test --workspace --no-run --color=never --manifest-path "$manifest" 2>&1) || { printf '%s\n' "$said"; exit 1; }
        ! grep -q '^\(warning\|error\)' <<<"$said" || { printf '%s\n' "$said"; fail "the compiler or clippy warned"; }
        ;;
      *) fail "$what: not one of fmt, circles, clippy, lints" ;;
    esac
  done
done
