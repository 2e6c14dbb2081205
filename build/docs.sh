#!/usr/bin/env bash
# Builds the site of docs/ in target/docs with mkdocs and every check that it has: a page that docs/README.md does not
# list, a dead link or anchor ends it with status 1. The first run installs the programs of docs.txt from PyPI into the
# cache; later runs need no network. `docs.sh serve` shows the site on loopback and follows changes.
. "$(dirname "$0")/env.sh"
as_caller "$@"
cd "$root"

# Keyed by docs.txt, and complete once it has its last file, so an interrupted installation is begun again.
venv=$cache/docs-$(sha256sum build/docs.txt | cut -c1-16)
if [ ! -f "$venv/complete" ]; then
  say "fetching mkdocs (once, 150 MB, into $venv)"
  rm -rf "$venv"
  mkdir -p "$cache"
  python3 -m venv "$venv" || fail "python3 -m venv failed (Debian: apt-get install python3-venv)"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --only-binary :all: -r build/docs.txt ||
    fail "cannot install the programs of build/docs.txt from PyPI with pip: see the lines above"
  touch "$venv/complete"
fi
export NO_MKDOCS_2_WARNING=1 # an advertisement for its successor
case ${1:-build} in
  build) "$venv/bin/mkdocs" build --strict ;; # --quiet would hide the warnings from --strict
  serve) "$venv/bin/mkdocs" serve --strict --dev-addr 127.0.0.1:8000 ;;
  *) fail "$1: not one of build, serve" ;;
esac
say "target/docs/index.html"
