#!/usr/bin/env bash
# Formatting, lints and import circles of everything, the conformance package (a workspace of its own) included.
# lint.sh fmt | clippy | circles runs one of them. `lint.sh lints` is clippy for tests that are compiled with its driver
# (build/test.sh): nothing is compiled again, cargo repeats what the driver said.
. "$(dirname "$0")/env.sh"
. "$root/build/crates.sh"
as_caller "$@"
cd "$root"

packages=("$root/Cargo.toml")
[ ! -f cdi/conformance/Cargo.toml ] || packages+=("$root/cdi/conformance/Cargo.toml")

crates_take
for what in ${1:-fmt circles clippy}; do
  if [ "$what" = circles ]; then
    # Circles that may stay are in allowed.yaml, each with its reason.
    # With the features of the whole workspace, as the tests are built, so that nothing is compiled for it alone.
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
