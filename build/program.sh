#!/bin/sh
# cargo's runner for test programs (build/test.sh). Runs a program so that it prints the time of each test. If
# VGPU_TEST_QUEUE names a folder, it instead stores there how to run the program, and build/queue.sh runs the programs
# of the folder side by side.
#
# libtest treats that option as unstable and accepts it in programs of a stable toolchain only with RUSTC_BOOTSTRAP=1.
# The variable is set for the program and not for cargo, so it does not affect compilation. A program that does not
# know the option (another harness, a libtest without it) runs without it.
case $1 in
  */deps/*) ;;
  *)
    # Doc-tests start themselves again, with one process per test. rustdoc passes the path, but not through a runner.
    RUSTDOC_DOCTEST_BIN_PATH=$1 exec "$@"
    ;;
esac
if [ -n "${VGPU_TEST_QUEUE:-}" ]; then
  name=${1##*/}
  # cargo sets variables for each program and runs it in its package's folder. VGPU_SKIP_LOG and VGPU_DIST come from
  # the stage that runs it.
  VGPU_TEST_PROGRAM=$1 VGPU_TEST_FOLDER=$PWD sh -c 'unset VGPU_TEST_QUEUE VGPU_SKIP_LOG VGPU_DIST; export -p' >"$VGPU_TEST_QUEUE/.$name" &&
    mv "$VGPU_TEST_QUEUE/.$name" "$VGPU_TEST_QUEUE/$name"
  exit
fi
if RUSTC_BOOTSTRAP=1 "$1" -Z unstable-options --report-time --list >/dev/null 2>&1; then
  RUSTC_BOOTSTRAP=1 exec "$@" -Z unstable-options --report-time
fi
exec "$@"
