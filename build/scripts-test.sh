#!/usr/bin/env bash
# Tests this folder's scripts: each promise that check-dist.sh checks is broken once and must be reported;
# prerequisites.sh must report missing programs, check-docs.py dead links, missing runbooks and events, and check-crates.py the
# differences between a table of crates and the crates. Then checks the scripts and documents of this repository.
. "$(dirname "$0")/env.sh"
. "$root/build/crates.sh"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad=0

# expect TEXT OUTPUT: OUTPUT has a line that contains TEXT.
expect() {
  grep -qF -- "$1" <<<"$2" && return
  echo "scripts-test.sh: expected a line with '$1' in:" >&2
  echo "$2" >&2
  bad=1
}

# library NAME SOURCE FLAGS...
library() {
  local to=$work/dist/$1 source=$2
  shift 2
  mkdir -p "${to%/*}"
  cc -x c -shared -fPIC -o "$to" - "$@" <<<"$source"
}

# cut_relro LIBRARY: RELRO ends 8 bytes earlier than the linker wrote.
cut_relro() {
  python3 - "$work/dist/$1" <<'PYTHON'
import struct, sys
file = open(sys.argv[1], "r+b")
header = file.read(64)
start, size, count = struct.unpack_from("<Q", header, 32)[0], *struct.unpack_from("<HH", header, 54)
for at in range(start, start + size * count, size):
    file.seek(at)
    entry = bytearray(file.read(size))
    if struct.unpack_from("<I", entry)[0] == 0x6474E552:  # PT_GNU_RELRO
        struct.pack_into("<Q", entry, 40, struct.unpack_from("<Q", entry, 40)[0] - 8)
        file.seek(at)
        file.write(entry)
PYTHON
}

broken_artefacts_are_named() {
  local out
  mkdir -p "$work/dist"
  library libvgpu.so 'const char *off = "VGPU_DISSECT"; int nothing; int memory_of_tomorrow(void); double cos(double); double f(double x) { return cos(x) + memory_of_tomorrow(); }' -lm -Wl,--build-id=sha1 -Wl,-soname,libcuda.so.1
  library libvgpu-preload.so 'int puts(const char *); void dlsym(void) {} void cuInit(void) { puts(""); }' -Wl,--build-id=none
  library soft-gpu/libcuda.so.1 'int fcntl64(int, int, ...); int cuInit(void) { return fcntl64(0, 0); }' -Wl,-soname,other.so -Wl,-z,max-page-size=2048
  cut_relro soft-gpu/libcuda.so.1
  cc -x c -o "$work/dist/vgpu-cdi-hook" - <<<'int main(void) { return 0; }'
  echo text >"$work/dist/vgpu"
  library ../symbols/libvgpu.so 'int other;' -s
  if out=$(build/check-dist.sh "$work/dist" "$work/symbols" 2>&1); then
    echo "scripts-test.sh: check-dist.sh passed a folder of broken artefacts" >&2
    bad=1
  fi
  expect 'libvgpu.so: needs libm.so.6; allowed: libc.so.6' "$out"
  expect "libvgpu.so: SONAME is 'libcuda.so.1', not 'none'" "$out"
  expect 'libvgpu.so: lacks the flag SYMBOLIC' "$out"
  expect 'libvgpu.so: lacks the flag NODELETE' "$out"
  expect 'libvgpu.so: does not export cu' "$out"
  expect 'libvgpu.so: can be switched off by VGPU_DISSECT' "$out"
  expect 'libvgpu-preload.so: has no build-id' "$out"
  expect 'is not its twin, by their build-ids' "$out"
  expect 'has no symbols' "$out"
  expect 'libvgpu-preload.so: needs libc.so.6; allowed: nothing' "$out"
  expect "libvgpu-preload.so: exports 'cuInit dlsym', not exactly '__asan_default_options __tsan_default_options __tsan_default_suppressions dlopen dlmopen dlsym dlvsym'" "$out"
  expect 'soft-gpu/libcuda.so.1: needs GLIBC_2.28, newer than GLIBC_2.17' "$out"
  expect 'libvgpu.so: needs memory_of_tomorrow of no known glibc version' "$out"
  expect "soft-gpu/libcuda.so.1: SONAME is 'other.so', not 'libcuda.so.1'" "$out"
  expect 'soft-gpu/libnvidia-ml.so.1: missing: run `make dist`' "$out"
  expect 'vgpu-cdi-hook: is not static: it asks for /lib64/ld-linux-x86-64.so.2' "$out"
  expect 'vgpu-cdi-hook: needs libc.so.6; allowed: nothing' "$out"
  expect 'vgpu: not an ELF file for amd64' "$out"
  expect 'soft-gpu/libcuda.so.1: a segment is aligned to 0x800, less than a page of 0x1000' "$out"
  expect 'soft-gpu/libcuda.so.1: RELRO ends at 0x1ff8, within a page of 0x1000: link it with -z common-page-size' "$out"
  expect 'vgpu-kubelet-plugin: missing' "$out"
  out=$(build/check-dist.sh "$work/dist" '' arm64 2>&1) || true
  expect 'libvgpu.so: not an ELF file for arm64' "$out"
}

# The summary of test.sh shows where and why a test failed.
the_reason_of_a_failed_test_is_found() {
  local out test
  cat >"$work/output" <<'OUTPUT'
test is_full ... FAILED
test other ... FAILED
test a::is_full ... FAILED

failures:

---- a::is_full stdout ----

---- is_full stdout ----

thread 'is_full' (7) panicked at src/room.rs:51:13:
no room for 20Gi
stack backtrace:

---- other stdout ----
thread 'other' (8) panicked at src/other.rs:7:1:
another reason

---- node::waits ----
waited 20 s for pod plain
OUTPUT
  out=$(for test in is_full other a::is_full node::waits; do echo "$test: $(awk -v test=$test -f build/why.awk "$work/output")"; done)
  expect 'is_full: src/room.rs:51:13: no room for 20Gi' "$out"
  expect 'other: src/other.rs:7:1: another reason' "$out"
  expect 'node::waits: waited 20 s for pod plain' "$out"
  if ! grep -qx 'a::is_full: ' <<<"$out"; then
    echo "scripts-test.sh: why.awk gave a test that said nothing another one's reason: $out" >&2
    bad=1
  fi
}

# Programs that cargo passes on run in their folder with their variables, side by side. A program that dies is a failed
# test.
queued_programs_run_and_a_dead_one_is_a_failed_test() {
  local out name rc=0 queue=$work/queue deps=$work/deps
  mkdir -p "$queue" "$deps" "$work/folder"
  printf '#!/bin/sh\n[ "$3" != --list ] || exit 0\necho "in ${PWD##*/}: $OF_CARGO, ${VGPU_SKIP_LOG:-no log}"\necho "test result: ok. 1 passed; 0 failed; 0 ignored;"\n' >"$deps/works-1"
  printf '#!/bin/sh\n[ "$3" != --list ] || exit 0\necho "test result: FAILED. 1 passed; 1 failed; 0 ignored;"\nexit 101\n' >"$deps/fails-2"
  printf '#!/bin/sh\n[ "$3" != --list ] || exit 0\nkill -KILL $$\n' >"$deps/dies-3"
  chmod +x "$deps"/*
  for name in works-1 fails-2 dies-3; do
    (cd "$work/folder" && VGPU_SKIP_LOG=of-the-compiler OF_CARGO="it's its own" VGPU_TEST_QUEUE=$queue "$root/build/program.sh" "$deps/$name")
  done
  out=$(env -u VGPU_SKIP_LOG build/queue.sh "$queue" 2 dies 2>&1) || rc=$?
  [ $rc -ne 0 ] || { echo "scripts-test.sh: queue.sh succeeded though programs failed" >&2 && bad=1; }
  expect "in folder: it's its own, no log" "$out"
  expect 'test result: FAILED. 1 passed; 1 failed;' "$out"
  expect 'test dies ended with exit status 137 ... FAILED' "$out"
  expect 'test result: FAILED. 0 passed; 1 failed; 0 ignored; it died' "$out"
  [ "$(grep -c ' Running ' <<<"$out")" = 3 ] || { echo "scripts-test.sh: expected three programs in: $out" >&2 && bad=1; }
}

# A PATH with an old Rust and an old Go, and without apt-get.
missing_prerequisites_are_named() {
  local out tool
  mkdir -p "$work/bin"
  for tool in bash sh env dirname uname cut sed sort head printf id getent cc as ld python3 pkg-config stat; do
    ln -sf "$(command -v $tool)" "$work/bin/$tool"
  done
  printf '#!/bin/sh\necho "rustc 1.63.0 (old)"\n' >"$work/bin/rustc"
  printf '#!/bin/sh\n[ "$2" = GOVERSION ] && echo go1.19.8 || echo local\n' >"$work/bin/go"
  ln -sf /bin/true "$work/bin/cargo"
  chmod +x "$work/bin/rustc" "$work/bin/go"
  if out=$(PATH=$work/bin HOME=$work SUDO_USER="" bash build/prerequisites.sh demo 2>&1); then
    echo "scripts-test.sh: prerequisites.sh passed a machine without readelf" >&2
    bad=1
  fi
  expect 'missing: Rust >= 1.89: ' "$out"
  expect 'rustc is 1.63.0' "$out"
  expect 'go is 1.19.8 with GOTOOLCHAIN=local' "$out"
  expect 'missing: readelf' "$out"
  expect 'missing: dpkg-deb' "$out"
  out=$(PATH=$work/bin HOME=$work SUDO_USER="" bash build/prerequisites.sh guest 2>&1) || true
  expect 'missing: qemu-system-x86_64: install it (Debian and Ubuntu: apt-get install qemu-system-x86)' "$out"
  expect 'missing: mmdebstrap: ' "$out"
  printf '#!/bin/sh\necho "error: no override and no default toolchain set" >&2\nexit 1\n' >"$work/bin/rustc"
  out=$(PATH=$work/bin HOME=$work SUDO_USER="" bash build/prerequisites.sh demo 2>&1) || true
  expect 'rustc --version: error: no override and no default toolchain set' "$out"
  # A share without a cluster needs neither Go nor Python nor sudo.
  rm -f "$work/bin/python3" "$work/bin/go"
  printf '#!/bin/sh\necho "rustc 1.89.0 (new)"\n' >"$work/bin/rustc"
  if ! out=$(PATH=$work/bin HOME=$work SUDO_USER="" bash build/prerequisites.sh local 2>&1); then
    echo "scripts-test.sh: prerequisites.sh wants more than Rust and a C compiler for a local share: $out" >&2
    bad=1
  fi
  rm -f "$work/bin/cc"
  out=$(PATH=$work/bin HOME=$work SUDO_USER="" bash build/prerequisites.sh local 2>&1) || true
  expect 'missing: a C compiler (cc)' "$out"
}

dead_links_and_commands_are_named() {
  local out tree=$work/tree
  mkdir -p "$tree"
  printf 'dist:\n' >"$tree/Makefile"
  printf '# A heading, of two\n\n[a](gone.md) [b](README.md#a-heading-of-two) [c](#nowhere) `[d](code)` `make dist` `make tea`\n' >"$tree/README.md"
  if out=$(python3 build/check-docs.py "$tree" 2>&1); then
    echo "scripts-test.sh: check-docs.py passed a document with dead links" >&2
    bad=1
  fi
  expect 'README.md: link to gone.md: no such file' "$out"
  expect 'README.md: link to #nowhere: no such heading' "$out"
  expect 'README.md: make tea: the Makefile has no such target' "$out"
  [ "$(wc -l <<<"$out")" = 3 ] || { echo "scripts-test.sh: expected three lines of: $out" >&2 && bad=1; }
  mkdir -p "$tree/docs" "$tree/deploy/dashboards" "$tree/driver/src" "$tree/kubelet-plugin/src"
  printf '# R\n' >"$tree/README.md"
  printf '# Runbooks\n\n## Known\n\n## Old\n' >"$tree/docs/runbooks.md"
  printf '  - alert: %s\n    runbook_url: docs/runbooks.md#%s\n' Known known Bare gone New new >"$tree/deploy/dashboards/alerts.yaml"
  printf '| page |\n|---|\n| [runbooks.md](runbooks.md) | |\n' >"$tree/docs/README.md"
  printf '| reason |\n|---|\n| `RoomMade` |\n| `NotMade` |\n' >"$tree/docs/events.md"
  printf "    fn reason(&self) -> &'static str {\n        \"RoomMade\"\n    }\n#[cfg(test)]\n\"OnlyATest\"\n" >"$tree/driver/src/notice.rs"
  printf 'Notice { reason: "GpuGone" }\n' >"$tree/kubelet-plugin/src/notices.rs"
  out=$(python3 build/check-docs.py "$tree" 2>&1) && bad=1
  expect 'deploy/dashboards/alerts.yaml: Bare: its runbook_url is not docs/runbooks.md#bare' "$out"
  expect 'docs/runbooks.md: no section on New' "$out"
  expect 'docs/runbooks.md: section old: no such alert' "$out"
  expect 'docs/events.md: event GpuGone of the code is missing' "$out"
  expect 'docs/events.md: event NotMade: the code has none' "$out"
  expect 'docs/README.md: no row for events.md' "$out"
  [ "$(wc -l <<<"$out")" = 6 ] || { echo "scripts-test.sh: expected six lines of: $out" >&2 && bad=1; }
  rm -r "$tree/docs" "$tree/deploy" # a promise that the code does not keep
  mkdir -p "$tree/docs" "$tree/cli" "$tree/deploy/helm"
  cp -r deploy/helm/dra-driver-vgpu "$tree/deploy/helm"
  cp -r cli/src "$tree/cli"
  sed 's/`vgpu-monitor`/`vgpu-gone`/; s/`VgpuUsage`//; s/`admission`//; s/`vgpu fit`/`vgpu gone`/; s/`127`/`128`/; s/](.*)/]/' docs/compatibility.md >"$tree/docs/compatibility.md"
  out=$(python3 build/check-docs.py "$tree" 2>&1) && bad=1
  for word in 'DeviceClasses: vgpu-monitor of the code is missing' 'DeviceClasses: vgpu-gone: the code has none' \
    'kinds: VgpuUsage of' 'chart values: admission of' 'commands: vgpu fit of' 'commands: vgpu gone: the' 'exit statuses: 128: the'; do
    expect "docs/compatibility.md: $word" "$out"
  done
  wrong_commands_are_named
  out=$(python3 build/check-docs.py "$root" 2>&1) || { echo "$out" >&2 && bad=1; }
}

# In $tree, which has a chart by now.
wrong_commands_are_named() {
  local out line
  cp docs/compatibility.md "$tree/docs/compatibility.md"
  sed -i 's/](.*)/]/' "$tree/docs/compatibility.md"
  cat >"$tree/README.md" <<'PAGE'
# R

`kubectl -n x lable node a b=c`, `build/gone.sh up`, `helm upgrade dra-driver-vgpu CHART --set plugin.nodeSelector.any=b`

```
no language
```

```console
no prompt
```

```sh
helm install dra-driver-vgpu deploy/helm/dra-driver-vgpu --set 'images.tag=a,plugin.share=4' \
  --set-string 'plugin.nodeSelector.dra\.vgpu/gpu=true' --set plugin.ignoredXids[0]=13,controller.tolerations[0].key=a \
  --values deploy/platforms/gone.yaml
```

```console
$ helm instal dra-driver-vgpu \
    | cat
kubectl nonsense
```

```sh
if kubectl get pods; then
```
PAGE
  out=$(python3 build/check-docs.py "$tree" 2>&1) && bad=1
  for line in "kubectl -n x lable node a b=c: kubectl has no command lable" 'build/gone.sh: no such script' \
    "block 'no language' has no language: write" "block 'no prompt' of a console has no line with" \
    "--set plugin.share: the chart's schema has no such value" 'deploy/platforms/gone.yaml: no such file' \
    'helm instal dra-driver-vgpu: helm has no command instal' 'bash: bash: line 2: syntax error: unexpected end of file'; do
    expect "README.md: $line" "$out"
  done
  [ "$(wc -l <<<"$out")" = 8 ] || { echo "scripts-test.sh: expected eight lines of: $out" >&2 && bad=1; }
}

crates_that_differ_from_the_table_are_named() {
  local out crates=$work/crates.json table=$work/table.md
  cargo metadata --no-deps --offline --format-version 1 >"$crates"
  printf '| folder | crate | depends on |\n|---|---|---|\n| x | gone | nothing |\n| cdi | vgpu-cdi | abi, api |\n' >"$table"
  cat >>"$table" <<'PICTURE'

## Crates

```
 shim   lost    allocator
  │       │       │
  └──┬────┼───────┘
  ┌──┴──┐ └─► ptx ◄─ cdi
  ▼     ▼
 abi   cel ──► quantity
```

Beside it: core.

PICTURE
  if out=$(python3 build/check-crates.py "$table" <"$crates" 2>&1); then
    echo "scripts-test.sh: check-crates.py passed a wrong table" >&2
    bad=1
  fi
  expect 'gone: depends on (no such crate); table: nothing' "$out"
  expect 'vgpu-cdi: depends on nothing; table: abi, api' "$out"
  expect 'vgpu-cdi-hook: depends on abi, hook; table: (no row)' "$out"
  expect 'picture: lost: no such crate' "$out"
  expect 'vgpu-api: neither in the picture nor in the paragraph below it' "$out"
  expect 'picture: shim has an arrow to cel, and does not depend on it' "$out"
  expect 'picture: cdi has an arrow to ptx, and does not depend on it' "$out"
  ! grep -E 'shim has an arrow to (ptx|quantity)|from shim to abi|allocator depends|vgpu-core: neither' <<<"$out" ||
    { echo "scripts-test.sh: check-crates.py follows a line of the picture to where it does not lead" >&2 && bad=1; }
  out=$(python3 build/check-crates.py docs/architecture.md <"$crates" 2>&1) || { echo "$out" >&2 && bad=1; }
}

# rustdoc reads a whole crate even if its documentation has no example, so crates without examples set `doctest =
# false`. Such a crate must then have none.
every_example_of_the_documentation_is_run() {
  local file folder out
  out=$(git ls-files '*.rs' | xargs awk '
    FNR == 1 {inside = 0}
    /^ *\/\/[\/!] *```/ {
      if (!inside && $0 ~ /``` *(rust.*|no_run|should_panic|compile_fail|edition.*)?$/) print FILENAME
      inside = !inside
    }' | while read -r file; do
    folder=${file%/src/*}
    ! grep -q '^doctest = false' "$folder/Cargo.toml" || echo "$file"
  done)
  [ -z "$out" ] && return
  echo "scripts-test.sh: these have examples that no test runs, for their Cargo.toml says \`doctest = false\`:" >&2
  echo "$out" >&2
  bad=1
}

# Other people's crates are kept, those of this workspace are not, and only an empty target folder is filled.
compiled_crates_are_kept_outside_the_clone() {
  local cache=$work/cache CARGO_TARGET_DIR=$work/built profile=triple/release kept name
  # file NAME...: creates files like cargo's of one profile.
  for name in .fingerprint/serde-json-00112233445566aa/lib build/serde-json-00112233445566aa/output deps/libserde_json-00112233445566aa.rlib \
    .fingerprint/vgpu-core-00112233445566bb/lib deps/libvgpu_core-00112233445566bb.rlib deps/time-00112233445566bb; do
    mkdir -p "$CARGO_TARGET_DIR/$profile/${name%/*}"
    echo "$name" >"$CARGO_TARGET_DIR/$profile/$name"
  done
  # After a failed copy, as on a full disk, nothing is kept.
  mkdir -p "$work/failing"
  printf '#!/bin/sh\n/bin/cp "$@"; exit 1\n' >"$work/failing/cp"
  chmod +x "$work/failing/cp"
  if PATH=$work/failing:$PATH crates_keep >/dev/null; then
    echo "scripts-test.sh: a copy that failed was kept" >&2 && bad=1
  fi
  [ -z "$(ls -A "$cache")" ] || { echo "scripts-test.sh: a copy that failed left $(ls -A "$cache")" >&2 && bad=1; }
  crates_keep >/dev/null
  # A linked target folder (on another disk) is not empty.
  ln -s "$work/built" "$work/linked"
  CARGO_TARGET_DIR=$work/linked
  [ "$(crates_profiles)" = "$profile" ] || { echo "scripts-test.sh: a linked target folder has profiles: $(crates_profiles)" >&2 && bad=1; }
  CARGO_TARGET_DIR=$work/fresh
  crates_take >/dev/null
  kept=$(cd "$work/fresh" && find . -type f -size +0 | sort | tr '\n' ' ')
  expect "./$profile/.fingerprint/serde-json-00112233445566aa/lib ./$profile/build/serde-json-00112233445566aa/output ./$profile/deps/libserde_json-00112233445566aa.rlib " "$kept"
  ! grep vgpu <<<"$kept" >/dev/null || { echo "scripts-test.sh: crates of the workspace were kept: $kept" >&2 && bad=1; }
  # A target folder with compiled crates is not changed.
  rm "$work/fresh/$profile/deps/libserde_json-00112233445566aa.rlib"
  crates_take >/dev/null
  [ ! -e "$work/fresh/$profile/deps/libserde_json-00112233445566aa.rlib" ] || { echo "scripts-test.sh: a target folder with something in it was filled" >&2 && bad=1; }
  # An interrupted copy leaves no records, so cargo compiles again.
  CARGO_TARGET_DIR=$work/cut
  rm -r "$(crates_folder)/records"
  crates_take >/dev/null
  [ ! -e "$work/cut/$profile" ] || { echo "scripts-test.sh: a cached folder without records was taken" >&2 && bad=1; }
}

# With pipefail, a reader that stops early (`head`, `grep -q`, `sed q`) kills its writer by SIGPIPE and so ends the
# script, but only if the output exceeds the pipe's buffer: so it may fail only on other machines.
no_pipe_ends_in_a_reader_that_stops_early() {
  local out
  out=$(grep -nE '\| *(head\b|grep +-[a-zA-Z]*[qm]|sed [^|]*[0-9;]q\b)' build/*.sh bench/*.sh gpu-check/*.sh |
    grep -v 'head -c -' | grep -vF 'grep -nE') || return 0
  echo "scripts-test.sh: read to the end of the input instead (awk 'NR <= 20', grep >/dev/null):" >&2
  echo "$out" >&2
  bad=1
}

# A release's page lies outside the repository.
the_notes_of_a_release_lead_into_its_tag() {
  local tree=$work/clone out
  mkdir -p "$tree/build" "$tree/deploy/helm/dra-driver-vgpu"
  cp build/env.sh build/arch.sh build/release.sh "$tree/build"
  printf '[workspace.package]\nversion = "0.3.0"\n' >"$tree/Cargo.toml"
  printf 'version: 0.3.0\nappVersion: 0.3.0\n' >"$tree/deploy/helm/dra-driver-vgpu/Chart.yaml"
  printf '## [Unreleased]\n\nlater\n\n## [0.3.0] - 2027-01-01\n\n- [page](docs/a.md#b), [site](https://example.com/c)\n\n## [0.2.0]\n\nearlier\n' >"$tree/CHANGELOG.md"
  git -C "$tree" init -q
  git -C "$tree" add .
  git -C "$tree" -c user.name=n -c user.email=e@example.com commit -qm one
  git -C "$tree" tag v0.3.0
  out=$(VGPU_SOURCE=https://git.example.com/team/x "$tree/build/release.sh" notes 2>&1) || bad=1
  [ "$out" = $'\n- [page](https://git.example.com/team/x/blob/v0.3.0/docs/a.md#b), [site](https://example.com/c)' ] || {
    echo "scripts-test.sh: release.sh notes printed:" >&2
    echo "$out" >&2
    bad=1
  }
}

cd "$root"
broken_artefacts_are_named
the_notes_of_a_release_lead_into_its_tag
no_pipe_ends_in_a_reader_that_stops_early
every_example_of_the_documentation_is_run
the_reason_of_a_failed_test_is_found
queued_programs_run_and_a_dead_one_is_a_failed_test
missing_prerequisites_are_named
dead_links_and_commands_are_named
crates_that_differ_from_the_table_are_named
compiled_crates_are_kept_outside_the_clone
[ $bad -eq 0 ] && echo "scripts-test.sh: ok"
