#!/usr/bin/env bash
# check-dist.sh [DIST [SYMBOLS [ARCH]]]: checks the promises of every release artefact in its ELF headers.
#
# SYMBOLS is the folder of unstripped copies (dist.sh); without it they are not checked.
# ARCH: amd64 or arm64; without it this machine's.
# Prints one line for each broken promise, with the file and the finding; exits with 1 if there is any.
. "$(dirname "$0")/env.sh"
. "$root/build/arch.sh"

arch_use "${3:-$(arch_own)}"
dist=${1:-$root/dist} symbols=${2:-}
findings=0

finding() { # FILE TEXT
  echo "check-dist.sh: $1: $2" >&2
  findings=$((findings + 1))
}

needed() { readelf -dW "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'; }
soname() { readelf -dW "$1" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p'; }
flags() { readelf -dW "$1" | grep -E '\((FLAGS|FLAGS_1|SYMBOLIC)\)' || true; }
exports() {
  readelf -W --dyn-syms "$1" |
    awk '$7 != "UND" && ($5 == "GLOBAL" || $5 == "WEAK" || $5 == "UNIQUE") && ($6 == "DEFAULT" || $6 == "PROTECTED") {print $8}' |
    sed 's/@.*//' | sort -u
}
build_id() { readelf -nW "$1" 2>/dev/null | sed -n 's/.*Build ID: \([0-9a-f]\{40\}\)$/\1/p'; }
glibc_versions() { readelf -W --version-info "$1" | sed -n 's/.*Name: GLIBC_\([A-Z0-9.]*\) .*/\1/p' | sort -uV; }

# Shortens a list that may be long.
some() {
  awk 'NR <= 5 {printf "%s%s", s, $0; s = " "} END {if (NR > 5) printf " ... (%d in all)", NR}'
}

check_present() { # FILE
  [ -s "$dist/$1" ] || { finding "$1" "missing: run \`make dist\`"; return 1; }
  readelf -h "$dist/$1" 2>/dev/null | grep "Machine: .*$ARCH_READELF" >/dev/null || { finding "$1" "not an ELF file for $VGPU_ARCH"; return 1; }
  check_pages "$1"
}

# The kernel maps whole pages. On arm64 they have up to 64 KiB. The loader makes the whole pages of RELRO read-only, and
# leaves out the last one if RELRO ends within it.
check_pages() { # FILE
  local least=0x1000 segments align end
  [ "$VGPU_ARCH" != arm64 ] || least=0x10000
  segments=$(readelf -lW "$dist/$1" | awk '$1 == "LOAD" {print $NF}')
  for align in $segments; do
    [ $((align)) -ge $((least)) ] || finding "$1" "a segment is aligned to $align, less than a page of $least: link it with -z max-page-size"
  done
  case $1 in *.so | *.so.*) ;; *) return ;; esac
  for end in $(readelf -lW "$dist/$1" | awk '$1 == "GNU_RELRO" {print $3 "+" $6}'); do
    [ $(((end) % least)) -eq 0 ] ||
      finding "$1" "RELRO ends at $(printf '%#x' $((end))), within a page of $least: link it with -z common-page-size"
  done
}

# A user's stack trace has a build ID and offsets. Without the build ID, nobody knows to which file the offsets belong.
check_build_id() { # FILE
  local id twin
  id=$(build_id "$dist/$1")
  [ -n "$id" ] || { finding "$1" "has no build-id: link it with --build-id=sha1"; return; }
  [ -n "$symbols" ] || return 0
  twin=$symbols/${1##*/}
  [ "$(build_id "$twin")" = "$id" ] || finding "$1" "$twin is not its twin, by their build-ids: run \`make dist\`"
  readelf -SW "$twin" 2>/dev/null | grep -w '.symtab' >/dev/null || finding "$1" "$twin has no symbols: do not strip what cargo builds"
}

check_glibc() { # FILE
  local bad
  bad=$(glibc_versions "$dist/$1" | while read -r v; do
    [ "$(printf '%s\n2.17\n' "$v" | sort -V | tail -n 1)" = 2.17 ] || echo "GLIBC_$v"
  done | some)
  [ -z "$bad" ] || finding "$1" "needs $bad, newer than GLIBC_2.17"
  # A name without a version exists in no glibc up to 2.17; the loader would report that only on old systems.
  bad=$(readelf -W --dyn-syms "$dist/$1" | awk '$7 == "UND" && $5 != "WEAK" && $8 != "" && $8 !~ /@/ {print $8}' | some)
  [ -z "$bad" ] || finding "$1" "needs $bad of no known glibc version"
}

check_needed() { # FILE ALLOWED...
  local file=$1 name
  shift
  for name in $(needed "$dist/$file"); do
    case " $* " in
      *" $name "*) ;;
      *) finding "$file" "needs $name; allowed: ${*:-nothing}" ;;
    esac
  done
}

check_soname() { # FILE SONAME-or-empty
  local have
  have=$(soname "$dist/$1")
  [ "$have" = "$2" ] || finding "$1" "SONAME is '${have:-none}', not '${2:-none}'"
}

check_exports_all() { # FILE LIST...: every name of the lists
  local file=$1 lost
  shift
  lost=$(comm -23 <(sed 's/#.*//' "$@" | awk 'NF {print $1}' | sort -u) <(exports "$dist/$file") | some)
  [ -z "$lost" ] || finding "$file" "does not export $lost"
}

backstop_names="__asan_default_options __tsan_default_options __tsan_default_suppressions dlopen dlmopen dlsym dlvsym"

check_exports_only() { # FILE NAME...
  local file=$1 have
  shift
  have=$(exports "$dist/$file")
  [ "$have" = "$(printf '%s\n' "$@" | sort -u)" ] || finding "$file" "exports '$(echo "$have" | some)', not exactly '$*'"
}

check_flag() { # FILE FLAG WHY
  flags "$dist/$1" | grep -w "$2" >/dev/null || finding "$1" "lacks the flag $2 ($3)"
}

check_static() { # FILE
  local interpreter
  interpreter=$(readelf -lW "$dist/$1" | sed -n 's/.*interpreter: \(.*\)\]/\1/p')
  [ -z "$interpreter" ] || finding "$1" "is not static: it asks for $interpreter"
  check_needed "$1"
}

# names NAME.txt: the path of a list of public names.
names() {
  local list="$root/vgpu-core/shim/names/$1"
  [ -s "$list" ] || finding "$1" "the list of public names is missing: $list"
  echo "$list"
}

readonly LIBC="libc.so.6 $ARCH_LOADER libdl.so.2 libpthread.so.0"
# shellcheck disable=SC2086 # LIBC is a list of words
{
  cuda=$(names cuda.txt)
  nvml=$(names nvml.txt)

  for program in vgpu-kubelet-plugin vgpu-controller vgpu vgpu-client vgpu-driver-limit; do
    check_present $program || continue
    check_build_id $program
    check_glibc $program
    check_needed $program $LIBC libm.so.6 librt.so.1
  done

  check_present vgpu-cdi-hook && check_build_id vgpu-cdi-hook && check_static vgpu-cdi-hook

  if check_present libvgpu.so; then
    check_build_id libvgpu.so
    ! grep -F VGPU_DISSECT "$dist/libvgpu.so" >/dev/null || finding libvgpu.so "can be switched off by VGPU_DISSECT: build it without the feature dissect"
    check_glibc libvgpu.so
    check_needed libvgpu.so $LIBC
    check_soname libvgpu.so ""
    check_flag libvgpu.so SYMBOLIC "link it with -Bsymbolic, or a program's own cuInit takes the place of ours"
    check_flag libvgpu.so NODELETE "link it with -z nodelete, or thread-local storage dangles after dlclose"
    check_exports_all libvgpu.so ${cuda:+"$cuda"} ${nvml:+"$nvml"} /dev/null
  fi

  if check_present libvgpu-preload.so; then
    check_build_id libvgpu-preload.so
    check_glibc libvgpu-preload.so
    check_needed libvgpu-preload.so
    check_exports_only libvgpu-preload.so $backstop_names
  fi

  if check_present libvgpu-hami.so; then
    check_needed libvgpu-hami.so
    check_exports_only libvgpu-hami.so $backstop_names
    cmp -s <(tail -c $(($(stat -c %s "$dist/libvgpu.so") + 16)) "$dist/libvgpu-hami.so" | head -c -16) "$dist/libvgpu.so" ||
      finding libvgpu-hami.so "does not end with libvgpu.so: run \`make dist\`"
  fi

  for entry in "libcuda.so.1:$cuda" "libnvidia-ml.so.1:$nvml"; do
    file=soft-gpu/${entry%%:*}
    check_present "$file" || continue
    check_glibc "$file"
    check_needed "$file" $LIBC libm.so.6 librt.so.1
    check_soname "$file" "${entry%%:*}"
    check_exports_all "$file" "${entry#*:}"
  done
}
[ $findings -eq 0 ]
