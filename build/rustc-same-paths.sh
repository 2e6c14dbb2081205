#!/bin/sh
# rustc-same-paths.sh RUSTC ARGUMENTS: Cargo's RUSTC_WORKSPACE_WRAPPER for dist.sh. Replaces the clone's folder and the target
# folder in debug information and panic messages, so that clones in two folders build the same bytes.
#
# Only this workspace's crates are compiled through it: with RUSTFLAGS, other people's crates could not be taken from the
# cache (crates.sh). Named without a folder, because Cargo hashes the wrapper's name into every symbol.
exec "$@" --remap-path-prefix="$VGPU_ROOT=/dra-driver-vgpu" --remap-path-prefix="$CARGO_TARGET_DIR=/dra-driver-vgpu/target"
