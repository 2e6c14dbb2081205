#!/usr/bin/env bash
# arm64.sh [FILTER]: compiles tests of the ledger, the library, the preload library and the software GPU for arm64, and runs
# them and a share (`vgpu run`) on an emulated processor. By hand: no part of `make test`. FILTER: only the test programs
# whose names contain it.
#
#   cargo, on this machine ─► target/aarch64-unknown-linux-gnu ─► a user namespace of its own: binfmt_misc, qemu-user
#
# Programs of arm64 start programs of arm64, so the kernel has to know the emulator. It is registered in a user namespace
# (Linux 6.7 or newer), which takes it along when it ends: the machine is not changed. glibc of arm64 is Debian's, for cross
# compilers.
#
# qemu-user has no part of some system calls. Tests that need one are skipped by name, with the call: LACKING.
# It emulates no weakly ordered memory: what this cannot find is a missing barrier. Nothing here is a real arm64 machine.
. "$(dirname "$0")/env.sh"
. "$root/build/arch.sh"

# Test program, test or all, what emulation lacks.
readonly LACKING='
container  all  ldd of arm64
transparent  programs_start  programs of arm64 in /bin
processes  a_forked_child_has_no_driver  madvise(MADV_WIPEONFORK)
processes  a_lock_outlives_closed_descriptors_and_dies_with_its_process_not_its_children  madvise(MADV_DONTFORK)
survival   forks::  madvise(MADV_DONTFORK and MADV_WIPEONFORK)
survival   resources::system_calls_that_a_filter_denies_refuse_or_do_without  seccomp
survival   resources::without_address_space_a_start_is_refused_and_nothing_is_lost  setrlimit(RLIMIT_AS)
vgpu_core  arbiter::pages::tests::a_page_that_is_cut_takes_no_part_and_ends_nobody  process_vm_readv
vgpu_core  arbiter::pages::tests::what_others_write_is_seen_at_the_next_look  process_vm_readv
vgpu_core  os::peek::tests::pieces_before_the_one_that_is_not_there_are_copied  process_vm_readv
vgpu_core  arbiter::tests::a_word_that_changes_all_the_time_ends_no_sleep_for_long  call that returns within 50 microseconds
'
readonly UNITS=(vgpu-abi vgpu-core soft-gpu)
readonly PROGRAMS=(artefact redirect transparent names container preload_elf handles devices numbering reserved out_of_memory two_walls
  exchange_storm survival single_step interface processes)
# Also with pages of 64 KiB. The emulator refuses to map empty files then, and so the software GPU's locks.
readonly WIDE=(redirect names)
readonly EMULATOR=/usr/bin/qemu-aarch64-static PREFIX=/usr/aarch64-linux-gnu

# Compiles the tests, and stores in a folder how to run each.
compile() { # QUEUE
  local units=() programs=() name
  for name in "${UNITS[@]}"; do units+=(-p "$name"); done
  for name in "${PROGRAMS[@]}"; do programs+=(--test "$name"); done
  export VGPU_TEST_QUEUE=$1 CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER=$root/build/program.sh
  local flags=(--quiet --target "$ARCH_TRIPLE" --config "target.$ARCH_TRIPLE.linker=\"$ARCH_GNU-gcc\"")
  cargo test "${flags[@]}" --lib "${units[@]}"
  cargo test "${flags[@]}" "${units[@]}" -p vgpu-preload "${programs[@]}"
}

# In the namespace: registers the emulator, and shows it the libraries where it looks for them.
register() {
  local work=$1 magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
  local mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
  mount -t tmpfs tmpfs "$work"
  mkdir "$work/upper" "$work/work" "$work/bin"
  ln -s "$(command -v "$ARCH_GNU-gcc")" "$work/bin/cc" # for tests that compile
  mount -t overlay -o "lowerdir=/etc,upperdir=$work/upper,workdir=$work/work" overlay /etc
  mkdir -p /etc/qemu-binfmt
  ln -sfn $PREFIX /etc/qemu-binfmt/aarch64
  mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
  echo ":vgpu-arm64:M::$magic:$mask:$EMULATOR:F" >/proc/sys/fs/binfmt_misc/register
}

run() { # ENTRY ARGUMENTS...
  local entry=$1
  shift
  # shellcheck disable=SC1090 # what program.sh wrote
  (. "$entry" && PATH=$namespace/bin:$PATH && cd "$VGPU_TEST_FOLDER" && exec "$VGPU_TEST_PROGRAM" "$@")
}

# Runs the queued programs one after the other.
run_all() { # QUEUE FILTER
  local entry name program test lack failed=() skips
  for entry in "$1"/*"$2"*; do
    name=${entry##*/} name=${name%-*} skips=()
    while read -r program test lack; do
      [ "$program" = "$name" ] || continue
      echo "skipped: $name $test: qemu-user has no $lack"
      skips+=(--skip "$test")
    done <<<"$LACKING"
    [[ ${skips[*]} != *"--skip all"* ]] || continue
    say "$name"
    run "$entry" "${skips[@]}" || failed+=("$name")
    [[ " ${WIDE[*]} " != *" $name "* ]] || {
      say "$name, with pages of 64 KiB"
      QEMU_PAGESIZE=65536 run "$entry" "${skips[@]}" || failed+=("$name with pages of 64 KiB")
    }
  done
  [ ${#failed[@]} -eq 0 ] || fail "failed on arm64: ${failed[*]}"
}

# A share of 1 GiB: 512 MiB fit, 1 GiB more do not.
run_share() {
  local out want=$'init 0\nalloc 0\nalloc 2'
  out=$("$VGPU_DIST/vgpu" run --memory 1Gi --soft-gpu -- "$CLIENT" init alloc:512MiB alloc:1GiB)
  [ "$out" = "$want" ] || fail "vgpu run --memory 1Gi: 512 MiB and 1 GiB more returned $out, not $want (2: out of memory)"
  say "vgpu run --memory 1Gi --soft-gpu: 512 MiB were granted, 1 GiB more refused"
}

arch_use arm64
export VGPU_DIST=$CARGO_TARGET_DIR/test-dist-arm64
readonly CLIENT=$CARGO_TARGET_DIR/$ARCH_TRIPLE/debug/gpu-client
if [ "${1:-}" = --in-namespace ]; then
  namespace=$2
  register "$namespace"
  run_share
  run_all "$3" "${4:-}"
  exit
fi
as_caller "$@"
"$root/build/prerequisites.sh" emulate
cd "$root"
"$root/build/dist.sh" --for-tests
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/queue" "$work/namespace"
compile "$work/queue"
unshare -Urm "$0" --in-namespace "$work/namespace" "$work/queue" "${1:-}"
