#!/usr/bin/env bash
# queue.sh FOLDER JOBS [PROGRAM...]: runs the test programs that build/program.sh stored in FOLDER, JOBS at a time, the
# named ones first. Prints each program's output in one piece when it has ended. Exit status 1 if any failed.
#
# Tests spend most of their time waiting, so more programs run at a time than there are cores. A program that dies
# without a result is reported as one failed test with the program's name.
set -euo pipefail

# run ENTRY: runs one program.
run() {
  local rc=0 name=${1##*/} out
  name=${name%-*}
  out=$1.out
  (
    # shellcheck disable=SC1090 # what program.sh wrote
    . "$1"
    cd "$VGPU_TEST_FOLDER" && exec "$program" "$VGPU_TEST_PROGRAM"
  ) >"$out" 2>&1 </dev/null || rc=$?
  if [ $rc -ne 0 ] && ! grep '^test result: FAILED' "$out" >/dev/null; then
    printf '\ntest %s ended with exit status %s ... FAILED\n' "$name" $rc
    printf 'test result: FAILED. 0 passed; 1 failed; 0 ignored; it died\n'
  fi >>"$out"
  # In one piece, because other programs end at the same time.
  (
    flock 9
    printf '\n     Running %s (%s)\n' "$name" "$1"
    cat "$out"
  ) 9>"${1%/*}/.lock"
  [ $rc -eq 0 ] # not the status itself: xargs stops after a 255
}

program=$(cd "$(dirname "$0")" && pwd)/program.sh
if [ "$1" = --run ]; then
  run "$2"
  exit
fi
folder=$1 jobs=$2
shift 2
first=("$@")
{
  for name in "${first[@]}"; do
    find "$folder" -name "$name-*" ! -name '*.out' -type f
  done
  find "$folder" ! -name '.*' ! -name '*.out' -type f | sort
} | awk '!seen[$0]++' | xargs -r -d '\n' -n 1 -P "$jobs" "$0" --run || exit 1
