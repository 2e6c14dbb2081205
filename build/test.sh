#!/usr/bin/env bash
# Runs all tests, stage by stage; a failed stage does not stop the next. The output ends with the time of each stage,
# the twenty slowest tests, the skipped and the failed ones, and as its last line
# `N passed, N failed, N skipped` over all stages. The exit status is 0 if none failed.
#
# A test that cannot run here (no stage and no test skips silently):
#   calls `vgpu_skip::skip(test, reason)` (build/skip), which appends a line to the file that VGPU_SKIP_LOG names and
#   prints it on stderr, and returns. libtest calls such a test passed; here it is listed as skipped.
#   Tests with `#[ignore = "reason"]` are skipped tests too. Without VGPU_SKIP_LOG there is only the line on stderr.
#   A stage that cannot run is one skipped test.
#
# `test.sh STAGE...` runs only these stages: fmt scripts tools programs tests circles clippy unit conformance dist e2e
# alone, and miri, which takes minutes and only runs by name (`make miri`). `test.sh quick` (`make unit`) runs
# everything that needs neither a cluster nor a build of Kubernetes: tests that compare with a Go program use a cached
# one, else they are skipped.
#
# Stages that mostly wait run beside stages that compute:
#
#   tools       Go ──────────┐
#   programs    Rust ──────┬─┴► e2e-machine ─► e2e-scheduler, ... (a process each, with a cluster of its own) ─┐
#                          ├────► dist (compile) ─► released ──────────────────────────────────────────────────┤
#   fmt scripts            └► tests (compile) ─► circles clippy conformance ───────────────────────────────────┼─► alone
#                                        └──► unit (programs of tests, several at a time) ─────────────────────┘
#
# Programs whose tests measure time are the stage `alone`: nothing runs beside them, and their tests run one by one.
# The clusters' tests that measure time come after them, as the part `quiet`.
#
# Times: libtest measures each test (program.sh) from its start to its end, beside the other tests of its program.
# Cluster tests, which run one at a time, and doc-tests print no times: for these, `~` marks the time since the
# previous test's line. For the first test this includes everything before it: the start of the cluster, the compiler.
. "$(dirname "$0")/env.sh"
. "$root/build/crates.sh"
as_caller "$@"
cd "$root"

logs=$(mktemp -d)
declare -A beside=() # process groups of stages in the background
# Background stages are asked to end, and have a minute to remove their cluster.
end_beside() {
  local group until=$((SECONDS + 60))
  for group in "${beside[@]}"; do
    kill -- "-$group" 2>/dev/null || true
  done
  for group in "${beside[@]}"; do
    while [ $SECONDS -lt $until ] && kill -0 -- "-$group" 2>/dev/null; do sleep 0.2; done
  done
}
trap 'end_beside; rm -rf "$logs"' EXIT
# After `set -m`, bash no longer runs the trap above when a signal ends it.
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
: >"$logs/skips.ignored"
: >"$logs/times"
gently=() # prefix of stages that run beside the cluster's tests
compiling=() # prefix of compilers, at low priority: otherwise each step of a cluster would wait
parts=(machine scheduler controller observed quota translating) # parts of the cluster's tests: e2e/tests/cluster/main.rs
at_once=3 # parts at a time; with more, they wait for each other's CPU time
side_by_side=3 # test programs at a time
slow=(vgpu_kubelet_plugin gpu_check clients accuracy real_files) # started first
alone=(compute time) # programs that measure time
released=(libc dissect) # programs that need the release itself, which runs on the oldest systems, or the library with switches
programs_are_built='' tests_are_built=''
passed=0 failed=0 skipped=0
failures=()
durations=()

# A stage that is one check as a whole.
plain() {
  "$@" 2>&1 | tee "$logs/$stage"
}

# Compiles every test, runs the doc-tests, and leaves the programs in the queue.
compile() {
  mkdir -p "$logs/queue"
  VGPU_TEST_QUEUE=$logs/queue CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER=$root/build/program.sh \
    "${compiling[@]}" cargo test --workspace --no-fail-fast 2>&1 | timed | tee "$logs/$stage"
}

# Runs the queued programs JOBS at a time, the named ones first.
queued() { # FOLDER JOBS PROGRAM...
  "${gently[@]}" build/queue.sh "$@" 2>&1 | timed | tee "$logs/$stage"
}

# The cluster's tests: all, a part of them, or those with this word in their names.
clusters() { # [PART [WORD]]
  VGPU_E2E_PART=${1:-} "$CARGO_TARGET_DIR/cluster-tests" "${@:2}" 2>&1 | timed | tee "$logs/$stage"
}

# A stage of many checks: the tests of each program that `cargo test` runs, one program after another.
libtest() {
  CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER=$root/build/program.sh \
    "${gently[@]}" cargo test "$@" --no-fail-fast 2>&1 | timed | tee "$logs/$stage"
}

# Moves the time from each test's line into $logs/times: seconds, program, test.
timed() {
  local line program='' last=$EPOCHREALTIME seconds
  while IFS= read -r line || [ -n "$line" ]; do
    case $line in
      *' Running '*'('*')')
        program=${line##*/}
        program=${program%-*}
        last=$EPOCHREALTIME
        ;;
      *' Doc-tests '*)
        program="doc-tests of ${line##* }"
        last=$EPOCHREALTIME
        ;;
      'test '*' ... '*)
        if [[ $line =~ ^(.*)\ \<([0-9.]+)s\>$ ]]; then
          line=${BASH_REMATCH[1]} seconds=${BASH_REMATCH[2]}
        else
          seconds="$(((${EPOCHREALTIME/./} - ${last/./}) / 1000))"
          seconds="$((seconds / 1000)).$(printf %03d $((seconds % 1000)))~"
        fi
        last=$EPOCHREALTIME
        printf '%s %s %s\n' "$seconds" "$program:" "${line#test }" >>"$logs/times"
        ;;
    esac
    printf '%s\n' "$line"
  done
}

# The tests in an interpreter that finds undefined behaviour and races.
interpreted() {
  RUSTUP_AUTO_INSTALL=0 cargo +nightly miri test --no-fail-fast "$@" 2>&1 | tee "$logs/$stage"
}

skips_of() { # STAGE: its tests write their skips to a file of its own
  export VGPU_SKIP_LOG=$logs/skips.$1
  : >"$VGPU_SKIP_LOG"
}

# Sets $cpu: the seconds of CPU that this shell's ended children have used so far, daemons of clusters not among them.
read_cpu() {
  times >"$logs/cpu.$1" # a subshell would print its own children's
  cpu=$(awk 'END {for (at = 1; at <= NF; at++) {split($at, time, /[ms]/); sum += 60 * time[1] + time[2]} printf "%d\n", sum}' "$logs/cpu.$1")
}

# begin STAGE KIND COMMAND...: starts it in the background, in a process group of its own that ends with this script.
# run_stage shows its output and counts its tests.
begin() {
  local stage=$1
  shift
  : >"$logs/$stage.out"
  set -m
  (
    rc=0
    skips_of "$stage"
    SECONDS=0
    "$@" >"$logs/$stage.out" 2>&1 </dev/null || rc=$?
    read_cpu "$stage"
    echo "$SECONDS s, beside others; $cpu s of CPU" >"$logs/$stage.seconds"
    echo "$rc" >"$logs/$stage.rc"
  ) &
  beside[$stage]=$!
  set +m
}

# Shows the output of $stage until it has ended, and returns its status.
follow() {
  tail -n +1 -f --pid="${beside[$stage]}" "$logs/$stage.out"
  [ -s "$logs/$stage.rc" ] || fail "$stage was killed before it ended: there may be too little memory; build/test.sh $stage runs it alone"
  unset "beside[$stage]"
  return "$(cat "$logs/$stage.rc")"
}

left_out() { # STAGE REASON
  say "$1"
  echo "skipped: $1: $2" >&2
  echo "$1: $2" >>"$logs/skips.ignored"
  skipped=$((skipped + 1))
}

count_of() { # WORD in `test result: ok. 3 passed; 0 failed; 1 ignored; ...`
  sed -n "s/^test result: .* \([0-9]*\) $1;.*/\1/p" "$logs/$stage" | awk '{n += $1} END {print n + 0}'
}

# run_stage STAGE KIND COMMAND...: runs it now, or waits for it if it was started in the background, and counts its
# tests.
run_stage() {
  stage=$1
  local rc=0 by_log failed_here name reason begun=$SECONDS used
  shift
  say "$stage"
  if [ -n "${beside[$stage]:-}" ]; then
    follow || rc=$?
    durations+=("$((SECONDS - begun)) $stage ($(cat "$logs/$stage.seconds"))")
  else
    skips_of "$stage"
    read_cpu "$stage"
    used=$cpu
    "$@" || rc=$?
    read_cpu "$stage"
    durations+=("$((SECONDS - begun)) $stage ($((cpu - used)) s of CPU)")
  fi
  by_log=$(sort -u "$logs/skips.$stage" | wc -l)
  if [ "$1" != plain ]; then
    # Tests that the interpreter ignores have run in the unit stage.
    [ "$1" = interpreted ] || sed -n "s/^test \(.*\) \.\.\. ignored\(, \(.*\)\)*$/\1: \3/p" "$logs/$stage" >>"$logs/skips.ignored"
    passed=$((passed + $(count_of passed) - by_log))
    skipped=$((skipped + by_log))
    [ "$1" = interpreted ] || skipped=$((skipped + $(count_of ignored)))
    failed_here=$(count_of failed)
    # With the reason, for readers who see only the end.
    while read -r name; do
      reason=$(awk -v test="$name" -f build/why.awk "$logs/$stage")
      failures+=("$stage: $name${reason:+: $reason}")
    done < <(sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' "$logs/$stage")
    # The stage did not compile, or died: there is no test to name.
    if [ $rc -ne 0 ] && [ "$failed_here" -eq 0 ]; then
      failed_here=1
      failures+=("$stage: cargo test exited with $rc")
    fi
    failed=$((failed + failed_here))
  elif [ $rc -eq 0 ]; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    failures+=("$stage: exited with $rc")
  fi
}

stage_fmt() { run_stage fmt plain build/lint.sh fmt; }
stage_scripts() { run_stage scripts plain build/scripts-test.sh; }
stage_circles() { run_stage circles plain "${compiling[@]}" build/lint.sh circles; }
# Clippy's driver, which is the compiler with lints, has compiled the tests: cargo repeats its messages, and compiles
# nothing again for them.
stage_clippy() { run_stage clippy plain "${compiling[@]}" build/lint.sh "$([ -n "$tests_are_built" ] && echo lints || echo clippy)"; }
# Also builds the library with switches: the release ends with minutes of a single thread.
build_release() {
  local rc=0 dissect
  VGPU_DIST='' "${compiling[@]}" build/dist.sh --dissect &
  dissect=$!
  VGPU_DIST='' "${compiling[@]}" build/dist.sh || rc=$?
  wait "$dissect" || rc=$?
  return $rc
}
stage_dist() {
  run_stage dist plain build_release
  [ -z "$tests_are_built" ] || VGPU_DIST=$root/dist of_queue released 1
}
stage_programs() {
  run_stage programs plain build/dist.sh --for-tests
  programs_are_built=1
}
# Kubernetes, Helm and others, which tests of the unit stage use too. Built in the background during the earlier
# stages: Go uses the core that a single large crate leaves idle.
build_tools() {
  # Without asking for a password: a background job has no terminal.
  build/e2e.sh preflight --without-asking && : >"$logs/wanted" && build/e2e.sh tools
}
stage_tools() {
  [ -n "${beside[tools]:-}" ] || begin tools plain build_tools
  until [ -e "$logs/wanted" ] || [ -e "$logs/tools.rc" ] || ! kill -0 "${beside[tools]}" 2>/dev/null; do sleep 0.2; done
  if [ ! -e "$logs/wanted" ] && [ "$(cat "$logs/tools.rc")" = 3 ]; then
    left_out tools "$(tail -n 1 "$logs/tools")"
    unset 'beside[tools]'
  else
    run_stage tools plain
  fi
}
stage_tests() {
  [ -n "$programs_are_built" ] || stage_programs
  run_stage tests compile
  aside alone "${alone[@]}"
  aside released "${released[@]}"
  tests_are_built=1
}
# Moves these programs from the queue to a stage of their own.
aside() { # STAGE PROGRAM...
  local to=$logs/queue.$1 name
  shift
  mkdir -p "$to"
  for name in "$@"; do
    if [ -n "$(find "$logs/queue" -name "$name-*" -print -exec mv -t "$to" {} +)" ]; then continue; fi
    failed=$((failed + 1))
    failures+=("tests: there is no program $name: test.sh names it as one of a stage of its own")
  done
}
# Runs the programs that were moved to this stage.
of_queue() { # STAGE JOBS
  run_stage "$1" queued "$logs/queue.$1" "$2"
  rm -r "$logs/queue.$1"
}
stage_unit() {
  [ -n "$tests_are_built" ] || stage_tests
  run_stage unit queued "$logs/queue" "$side_by_side" "${slow[@]}"
}
stage_alone() {
  [ -n "$tests_are_built" ] || stage_tests
  gently=()
  RUST_TEST_THREADS=1 of_queue alone 1
  ! is_wanted e2e || quiet
}
# The cluster's tests that need a quiet machine, with the released programs if those are built.
quiet() {
  local dist=$VGPU_DIST
  ! is_wanted dist || dist=$root/dist
  VGPU_DIST=$dist run_stage e2e-quiet clusters quiet
}
# Tests of unsafe code that need only memory and threads, without those that visit too many states or lanes.
stage_miri() {
  if RUSTUP_AUTO_INSTALL=0 cargo +nightly miri --version >/dev/null 2>&1; then
    run_stage miri interpreted -p vgpu-abi -p vgpu-core -p soft-gpu --lib -- \
      --skip two_writers_and_a_reaper --skip ledger::reap --skip the_dead_are_taken_out_beside_the_living
    left_out "miri of two_writers_and_a_reaper, ledger::reap, the_dead_are_taken_out_beside_the_living" "too many states for an interpreter; the unit stage runs them"
  else
    left_out miri "the nightly toolchain has no miri: rustup toolchain install nightly -c miri -c rust-src"
  fi
}
stage_conformance() { run_stage conformance libtest --manifest-path cdi/conformance/Cargo.toml; }
# One part of the cluster's tests, once there is room for it and the cluster's programs exist. Tests that compare the
# machine before and after come first, alone, because other clusters change the machine too.
part() { # PART PLACE
  local slot
  if [ "$1" != machine ]; then
    tail -f --pid="${beside[e2e-machine]}" /dev/null
    sleep "$2" # keeps their order: the longest first
  fi
  until
    for slot in $(seq "$at_once"); do
      exec 8>"$logs/slot.$slot"
      flock -n 8 && break
    done
  do sleep 0.5; done
  [ -z "${beside[tools]:-}" ] || tail -f --pid="${beside[tools]}" /dev/null
  clusters "$1" 8>&-
}
stage_e2e() {
  local name begun=
  for name in "${parts[@]}"; do
    [ -z "${beside[e2e-$name]:-}" ] || { run_stage "e2e-$name" libtest; begun=1; }
  done
  if [ -z "$begun" ]; then
    [ -n "$programs_are_built" ] || stage_programs
    run_stage e2e clusters
  elif ! is_wanted alone; then
    quiet
  fi
}

stages=("$@")
[ ${#stages[@]} -gt 0 ] || stages=(fmt scripts programs tests circles clippy conformance dist unit tools e2e alone)
if [ "${stages[*]}" = quick ]; then
  build/prerequisites.sh build
  stages=(fmt scripts programs tests circles clippy conformance dist unit alone)
  export VGPU_GO=cached
# If no cluster can be created, programs that only a cluster needs are not reported as missing, and not installed.
elif ! build/prerequisites.sh demo --only-check 2>/dev/null; then
  rc=0
  build/prerequisites.sh build
  build/e2e.sh preflight || rc=$?
  [ $rc -eq 3 ] || build/prerequisites.sh demo
fi
export VGPU_DIST=$CARGO_TARGET_DIR/test-dist
RUSTC_WORKSPACE_WRAPPER=$(rustc --print sysroot)/bin/clippy-driver
if [ -x "$RUSTC_WORKSPACE_WRAPPER" ]; then export RUSTC_WORKSPACE_WRAPPER; else unset RUSTC_WORKSPACE_WRAPPER; fi
# A fresh clone needs no incremental compilation. A clone in use keeps it, so that nothing is compiled again.
is_fresh=''
[ -d "$CARGO_TARGET_DIR/debug/incremental" ] || { export CARGO_INCREMENTAL=0; is_fresh=1; }
is_wanted() { case " ${stages[*]} " in *" $1 "*) ;; *) return 1 ;; esac }
! is_wanted tools || begin tools plain build_tools
for next in "${stages[@]}"; do
  declare -F "stage_$next" >/dev/null || fail "$next: not a stage; there are fmt scripts tools programs tests circles clippy unit conformance dist e2e alone miri"
  "stage_$next"
  case $next in
    programs)
      # If sudo asks for a password, it needs the terminal: the clusters' tests then run at the end, in one piece.
      if is_wanted e2e && { [ "$(id -u)" -eq 0 ] || sudo -k -n true 2>/dev/null; }; then
        place=0
        for part in "${parts[@]}"; do
          begin "e2e-$part" part "$part" "$place"
          place=$((place + 1))
        done
        gently=(nice -n 5) compiling=(chrt --idle 0)
      fi
      # Its last minutes use a single thread, so it starts beside all remaining stages.
      ! is_wanted dist || begin dist plain build_release
      ;;
    tests)
      ! is_wanted unit || begin unit queued "$logs/queue" "$side_by_side" "${slow[@]}"
      ;;
  esac
done

[ ! -d "$logs/queue.released" ] || left_out "tests of the release (${released[*]})" "build/test.sh tests dist runs them"
[ ! -d "$logs/queue.alone" ] || left_out "tests that measure time (${alone[*]})" "build/test.sh alone runs them"

echo
echo "seconds of each stage:"
printf '%s\n' "${durations[@]}" | awk '{seconds = $1; sub(/^[^ ]* /, ""); printf "%8d  %s\n", seconds, $0; sum += seconds} END {printf "%8d  all\n", sum}'
if [ -s "$logs/times" ]; then
  echo "the twenty slowest tests, seconds (~: since the test before it ended):"
  sort -rn "$logs/times" | awk 'NR <= 20 {seconds = $1; sub(/^[^ ]* /, ""); sub(/ \.\.\. ok$/, ""); printf "%9s  %s\n", seconds, $0}'
fi
echo
sort -u "$logs"/skips.* | sed 's/^/skipped: /'
[ ${#failures[@]} -eq 0 ] || printf 'failed: %s\n' "${failures[@]}"
# Only after everything was compiled from scratch; a clone in use contains more than that.
if [ -n "$is_fresh" ] && is_wanted tests && is_wanted conformance && is_wanted dist && [[ ${failures[*]-} != *'exited with'* ]]; then
  crates_keep || echo "test.sh: cannot keep compiled crates in $cache: the next clone compiles them again" >&2
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
