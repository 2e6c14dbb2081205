#!/bin/sh
# cargo's runner for test programs (build/test.sh): runs one so that it prints the time of each test, or, where
# VGPU_TEST_QUEUE names a folder, leaves in it how to run the program. build/queue.sh runs those of a folder side by side.
#
# libtest calls that option unstable and takes it from a stable toolchain's programs only with RUSTC_BOOTSTRAP=1. The
# variable is set for the program and not for cargo, so nothing is compiled otherwise because of it. A program that does
# not know the option (another harness, a libtest that no longer has it) runs without.
case $1 in
  */deps/*) ;;
  *)
    # Doc-tests start themselves again, one process a test. rustdoc says where they are, but not through a runner.
    RUSTDOC_DOCTEST_BIN_PATH=$1 exec "$@"
    ;;
esac
if [ -n "${VGPU_TEST_QUEUE:-}" ]; then
  name=${1##*/}
  # cargo sets variables for each program and runs it in its package's folder. VGPU_SKIP_LOG and VGPU_DIST are
  # those of the stage that runs it.
  VGPU_TEST_PROGRAM=$1 VGPU_TEST_FOLDER=$PWD sh -c 'unset VGPU_TEST_QUEUE VGPU_SKIP_LOG VGPU_DIST; export -p' >"$VGPU_TEST_QUEUE/.$name" &&
    mv "$VGPU_TEST_QUEUE/.$name" "$VGPU_TEST_QUEUE/$name"
  exit
fi
if RUSTC_BOOTSTRAP=1 "$1" -Z unstable-options --report-time --list >/dev/null 2>&1; then
  RUSTC_BOOTSTRAP=1 exec "$@" -Z unstable-options --report-time
fi
exec "$@"
