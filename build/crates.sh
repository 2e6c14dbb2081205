# Sourced: keeps what cargo compiled of other people's crates in the cache outside the clone, so that the next fresh clone
# does not compile it again. That is a fifth of what `make test` computes.
#
# crates_take fills a target folder in which nothing was compiled yet; crates_keep stores what a full build left.
# Cargo then decides itself what it can use. For crates of a registry it compares versions, features, profiles, flags and
# the compiler. For crates of this workspace it compares times, which say nothing in another clone: they are left out.
#
# A folder of the cache is keyed by the compiler and the lock files, and appears by one rename. Cargo's records are copied
# last, so that after a copy that was cut it compiles again what has no record. Two runs in one clone take turns. Folders
# that nothing has used for two weeks are removed; one that is removed while it is read is like a copy that was cut.
# shellcheck shell=bash

crates_folder() {
  local key
  key=$({ rustc -vV; cat "$root/Cargo.lock" "$root/cdi/conformance/Cargo.lock" "$root/Cargo.toml"; } | sha256sum | cut -c1-16)
  echo "$cache/crates-$key"
}

# Cargo's folders of one profile each: those with records of what was compiled.
crates_profiles() {
  find "$CARGO_TARGET_DIR" -maxdepth 5 -type d -name .fingerprint -printf '%P\n' 2>/dev/null | sed 's|/*\.fingerprint$||'
}

crates_take() {
  local from
  from=$(crates_folder)
  mkdir -p "$CARGO_TARGET_DIR"
  (
    flock 9
    [ -d "$from/records" ] && [ -z "$(crates_profiles)" ] || exit 0
    touch "$from"
    cp -a --reflink=auto "$from/built/." "$CARGO_TARGET_DIR/" && cp -a --reflink=auto "$from/records/." "$CARGO_TARGET_DIR/" ||
      echo "${0##*/}: cannot copy compiled crates from $from: they are compiled again" >&2
  ) 9>"$CARGO_TARGET_DIR/.crates.lock"
}

crates_keep() {
  local to new profile own
  to=$(crates_folder)
  [ ! -d "$to" ] || return 0
  mkdir -p "$cache"
  find "$cache" -maxdepth 1 -name 'crates-*' -mtime +14 -exec rm -rf {} +
  new=$(mktemp -d "$cache/.crates-XXXXXX")
  # Names of this workspace's packages.
  own=$(find "$root" -name target -prune -o -name Cargo.toml -print0 |
    xargs -0 awk 'FNR == 1 {found = 0} !found && /^name *=/ {gsub(/.*= *"|".*/, ""); print; found = 1}')
  while read -r profile; do
    crates_copy "$CARGO_TARGET_DIR/$profile" "$new" "$profile" "$own" || { rm -rf "$new"; return 1; }
  done < <(crates_profiles)
  mv -T "$new" "$to" 2>/dev/null || rm -rf "$new" # another run was faster
}

# Copies what cargo has of other packages. Its names of a package's files all end in the same hash.
crates_copy() { # FOLDER NEW PROFILE OWN
  mkdir -p "$2/built/$3" "$2/records/$3"
  (
    cd "$1"
    export own=$4
    find .fingerprint build deps -mindepth 1 -maxdepth 1 -printf '%p\n' | awk '
      BEGIN {count = split(ENVIRON["own"], names, "\n"); for (i = 1; i <= count; i++) is_own[names[i]] = 1}
      {
        name = $0
        sub(/.*\//, "", name)
        if (!match(name, /-[0-9a-f]+(\.|$)/)) next
        hash = substr(name, RSTART + 1, 16)
        if (/^\.fingerprint\//) {
          if (!(substr(name, 1, length(name) - 17) in is_own)) {other[hash] = 1; print > "/dev/stderr"}
        } else path[NR] = $0 "\t" hash
      }
      END {for (i in path) {split(path[i], part, "\t"); if (part[2] in other) print part[1]}}' 2>"$2/list" >"$2/files"
    tr '\n' '\0' <"$2/files" | xargs -0r cp -a --reflink=auto --parents -t "$2/built/$3"
    tr '\n' '\0' <"$2/list" | xargs -0r cp -a --reflink=auto --parents -t "$2/records/$3"
    rm "$2/list" "$2/files"
  )
}
