# Sourced: keeps other people's compiled crates in the cache outside the clone, so that the next fresh clone does not
# compile them again.
#
# crates_take fills a target folder in which nothing was compiled yet; crates_keep stores the result of a full build.
# Cargo then decides itself what it can use. For crates of a registry it compares versions, features, profiles, flags
# and the compiler. For crates of this workspace it compares times, which mean nothing in another clone: they are left
# out.
#
# A folder of the cache is keyed by the compilers, the lock files and the profiles, and appears by one rename after it
# was copied completely. Cargo's records are copied last into a target folder, so that after an interrupted copy cargo
# compiles everything without a record again. Folders of other users are not used. The next full run removes folders
# that were not used for two weeks; if one is removed during a copy, this is like an interrupted copy. If the cache
# cannot be used, cargo compiles.
#
# crates_keep may be called with errexit off (`crates_keep || ...`): each of its steps handles its own failure.
# shellcheck shell=bash

crates_folder() {
  local key
  key=$({
    rustc -vV
    cc --version
    cat "$root/Cargo.lock" "$root/cdi/conformance/Cargo.lock" "$root/Cargo.toml" "$root/build/zigbuild.txt"
  } | sha256sum | cut -c1-16) || return 1
  echo "$cache/crates-$key"
}

# Cargo's folders of one profile each, recognised by their records of compiled crates.
crates_profiles() {
  find -H "$CARGO_TARGET_DIR" -maxdepth 5 -type d -name .fingerprint -printf '%P\n' 2>/dev/null | sed 's|/*\.fingerprint$||'
}

crates_take() {
  local from
  command -v flock >/dev/null || return 0
  from=$(crates_folder) || return 0
  [ -d "$from/records" ] && [ -O "$from" ] || return 0
  mkdir -p "$CARGO_TARGET_DIR"
  (
    flock 9
    [ -z "$(crates_profiles)" ] || exit 0
    say "taking compiled crates of others from $from"
    touch "$from" 2>/dev/null || true
    cp -a --reflink=auto "$from/built/." "$CARGO_TARGET_DIR/" && cp -a --reflink=auto "$from/records/." "$CARGO_TARGET_DIR/" ||
      echo "${0##*/}: cannot copy compiled crates from $from: they are compiled again" >&2
  ) 9>"$CARGO_TARGET_DIR/.crates.lock"
}

crates_keep() {
  local to new profile own
  find "$cache" -maxdepth 1 \( -name 'crates-*' -mtime +14 -o -name '.crates-*' -mtime +0 \) -exec rm -rf {} + 2>/dev/null
  to=$(crates_folder) || return 1
  # A build with the caller's flags would fill the cache with crates that nobody else uses.
  [ ! -d "$to" ] && [ -z "${RUSTFLAGS:-}${CARGO_ENCODED_RUSTFLAGS:-}" ] || return 0
  # Names of this workspace's packages.
  own=$(find "$root" -mindepth 1 -name target -prune -o -name Cargo.toml -print0 |
    xargs -0 awk 'FNR == 1 {found = 0} !found && /^name *=/ {gsub(/.*= *"|".*/, ""); print; found = 1}') || return 1
  [ -n "$own" ] || return 1
  say "keeping compiled crates of others in $to"
  mkdir -p "$cache" || return 1
  new=$(mktemp -d "$cache/.crates-XXXXXX") || return 1
  while read -r profile; do
    crates_copy "$CARGO_TARGET_DIR/$profile" "$new" "$profile" "$own" || { rm -rf "$new"; return 1; }
  done < <(crates_profiles)
  [ -d "$new/records" ] || { rm -rf "$new"; return 1; }
  mv -T "$new" "$to" 2>/dev/null || rm -rf "$new" # a concurrent run was faster
}

# Copies cargo's files of other packages. The names of all files of a package end in one hash.
crates_copy() { # FOLDER NEW PROFILE OWN
  mkdir -p "$2/built/$3" "$2/records/$3" || return 1
  (
    folders=()
    cd "$1" || exit 1
    for folder in .fingerprint build deps; do [ ! -d $folder ] || folders+=($folder); done
    find "${folders[@]}" -mindepth 1 -maxdepth 1 -printf '%p\n' >"$2/all" || exit 1
    : >"$2/records.list"
    own=$4 records=$2/records.list awk '
      BEGIN {count = split(ENVIRON["own"], names, "\n"); for (i = 1; i <= count; i++) is_own[names[i]] = 1}
      {
        name = $0
        sub(/.*\//, "", name)
        if (!match(name, /-[0-9a-f]+(\.|$)/)) next
        hash = substr(name, RSTART + 1, 16)
        if (/^\.fingerprint\//) {
          if (!(substr(name, 1, length(name) - 17) in is_own)) {other[hash] = 1; print > ENVIRON["records"]}
        } else path[NR] = $0 "\t" hash
      }
      END {for (i in path) {split(path[i], part, "\t"); if (part[2] in other) print part[1]}}' "$2/all" >"$2/built.list" || exit 1
    # Records first: another cargo may be compiling, and files without a record are not used.
    tr '\n' '\0' <"$2/records.list" | xargs -0r cp -a --reflink=auto --parents -t "$2/records/$3" || exit 1
    tr '\n' '\0' <"$2/built.list" | xargs -0r cp -a --reflink=auto --parents -t "$2/built/$3" || exit 1
    rm "$2/all" "$2/records.list" "$2/built.list"
  )
}
