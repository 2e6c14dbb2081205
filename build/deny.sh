#!/usr/bin/env bash
# Compares the dependencies of both workspaces with deny.toml: licences, sources, and for shipped programs banned
# crates.
. "$(dirname "$0")/env.sh"
as_caller "$@"
cd "$root"

cargo deny --version >/dev/null 2>&1 || fail "cargo-deny is missing: cargo install cargo-deny --locked (minutes)"
check() { # MANIFEST CHECK...
  local manifest=$1
  shift
  cargo deny --log-level error --locked --manifest-path "$manifest" --config "$root/deny.toml" check "$@"
}
check Cargo.toml licenses bans sources
# Only a test. Its jsonschema depends on a second TLS stack, so it is a workspace of its own.
check cdi/conformance/Cargo.toml licenses sources
