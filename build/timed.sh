#!/bin/sh
# Runs a test program of `cargo test` so that it prints the time of each test.
#
# libtest calls that option unstable and takes it from a stable toolchain's programs only with RUSTC_BOOTSTRAP=1. The
# variable is set for the program and not for cargo, so nothing is compiled otherwise because of it. A program that does
# not know the option (another harness, a libtest that no longer has it) runs without.
case $1 in
  */deps/*)
    if RUSTC_BOOTSTRAP=1 "$1" -Z unstable-options --report-time --list >/dev/null 2>&1; then
      RUSTC_BOOTSTRAP=1 exec "$@" -Z unstable-options --report-time
    fi
    ;;
  *)
    # Doc-tests start themselves again, one process a test. rustdoc says where they are, but not through a runner.
    export RUSTDOC_DOCTEST_BIN_PATH="$1"
    ;;
esac
exec "$@"
