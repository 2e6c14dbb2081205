#!/usr/bin/env bash
# e2e.sh demo | down | images | tools: the cluster's own program (crate vgpu-e2e), which asks for root where it needs it.
. "$(dirname "$0")/env.sh"
as_caller "$@"
"$root/build/prerequisites.sh" demo
cd "$root"
cargo build --quiet --release -p vgpu-e2e
# exec: Ctrl-C reaches the program itself, which leaves the machine as it was.
exec "$CARGO_TARGET_DIR/release/vgpu-e2e" "$@"
