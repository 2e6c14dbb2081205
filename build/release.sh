#!/usr/bin/env bash
# release.sh: packs dist/ into release/ for the commit that is checked out. docs/release.md is the checklist around it.
# release.sh check: packs a second time in another folder, and compares the bytes.
# release.sh check FOLDER: also compares with the release/ of another clone.
# release.sh notes: prints the CHANGELOG's section of this version, for the release's page.
# release.sh push REGISTRY: pushes images and chart, and signs them there. Plain HTTP only if REGISTRY is on loopback.
#
# VGPU_ARCH=both release.sh: for amd64 and arm64. The same VGPU_ARCH for check.
#
#   images/*.tar                   OCI layouts: an index, a manifest for each architecture, and layers; images.txt has digests
#   dra-driver-vgpu-V.tgz          the chart, with these digests
#   dra-driver-vgpu-V-ARCH.tar.gz  dist/ ; -symbols: the unstripped copies
#   vgpu-V-ARCH.tar.gz, vgpu.yaml  the CLI for krew, and its manifest
#   sbom/*.cdx.json                the crates in each program and library (CycloneDX)
#   SHA256SUMS, .sigstore.json     of all of these, and its signature; cosign.pub
#
# Variables:
#   COSIGN_KEY      a private key's file (cosign generate-key-pair), never in the clone; COSIGN_PASSWORD. Without: unsigned.
#   VGPU_SOURCE     https:// URL of the sources, for labels and the krew manifest
#   VGPU_REGISTRY   becomes the chart's images.registry; without: whoever installs the chart names it
#
# Times of all files are the commit's. Refuses changes that are not committed: the release would not be the commit's.
. "$(dirname "$0")/env.sh"
. "$root/build/arch.sh"
as_caller "$@"
cd "$root"

export VGPU_DIST=$root/dist # of vgpu-e2e, whatever the caller names
readonly MOST=$((40 << 20)) # bytes of the plugin's image, for one architecture
own=$(arch_own)
case ${VGPU_ARCH:-$own} in
  "$own") architectures=$own ;;
  both) architectures=$(arch_list) ;;
  *) fail "VGPU_ARCH: $VGPU_ARCH: a release is for $own, or for both" ;;
esac
readonly UNKNOWN=https://example.invalid/dra-driver-vgpu
# The crates of the shipped programs and libraries, for the SBOM.
readonly CRATES=(kubelet-plugin driver cli e2e/client kubelet-plugin/cdi-hook kubelet-plugin/driver-limit vgpu-core/shim vgpu-core/preload)
signing=(--key "${COSIGN_KEY:-}" --tlog-upload=false --use-signing-config=false --yes)

loud() {
  echo "release.sh: WARNING: $*" >&2
}

committed() {
  [ -z "$(git status --porcelain)" ] || fail "the clone has changes that are not committed: commit or remove them (git status)"
  version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
  revision=$(git rev-parse HEAD)
  SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
  export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC
  local key have tag
  for key in version appVersion; do
    have=$(sed -n "s/^$key: *//p" deploy/helm/dra-driver-vgpu/Chart.yaml)
    [ "$have" = "$version" ] || fail "deploy/helm/dra-driver-vgpu/Chart.yaml: $key is $have, and Cargo.toml has $version: write the same"
  done
  tag=$(git tag --points-at HEAD 'v*')
  case $tag in
    "v$version") grep -q "^## \[$version\]" CHANGELOG.md || fail "CHANGELOG.md has no section [$version]: rename [Unreleased]" ;;
    '') loud "the commit has no tag v$version: this is a trial" ;;
    *) fail "the commit's tag is $tag, and Cargo.toml has version $version: write the same" ;;
  esac
}

# The tools' folders come first in PATH.
tools() {
  local folders key
  "$root/build/prerequisites.sh" demo
  cargo build --quiet --workspace --bin vgpu-e2e --bin vgpu-client --test cluster # the options of e2e.sh
  vgpu_e2e=$CARGO_TARGET_DIR/debug/vgpu-e2e
  folders=$("$vgpu_e2e" tools --release) || exit
  key=$(sed -n 's/^cargo-cyclonedx=//p' e2e/versions)
  if [ ! -x "$cache/cargo-cyclonedx-$key/bin/cargo-cyclonedx" ]; then
    say "building cargo-cyclonedx $key (once, 2 minutes)"
    env -u CARGO_TARGET_DIR cargo install --quiet --locked --version "=$key" --root "$cache/cargo-cyclonedx-$key" cargo-cyclonedx
  fi
  PATH=$(tr '\n' : <<<"$folders")$cache/cargo-cyclonedx-$key/bin:$PATH
}

# packed FILE FOLDER NAME...: the same bytes for the same contents.
packed() {
  local file=$1 from=$2
  shift 2
  tar --sort=name --format=gnu --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
    -C "$from" -cf - "$@" | gzip -n9 >"$file"
}

# symbols_of ARCHITECTURE: the folder of its unstripped copies (dist.sh).
symbols_of() {
  if [ "$1" = "$own" ]; then echo "$CARGO_TARGET_DIR/symbols"; else echo "$CARGO_TARGET_DIR/symbols-$1"; fi
}

images() { # TO
  local created source=${VGPU_SOURCE:-$UNKNOWN} file digest
  created=$(date -u -d "@$SOURCE_DATE_EPOCH" +%FT%TZ)
  local also=() architecture
  for architecture in $architectures; do
    [ "$architecture" = "$own" ] || also+=(--also "$architecture=$(arch_dist "$architecture")")
  done
  "$vgpu_e2e" release-images "$1/images" "${also[@]}" --version "$version" --revision "$revision" --created "$created" --source "$source" |
    while read -r file digest; do
      file=${file##*/}
      echo "dra-driver-vgpu/${file%.tar} $digest"
    done >"$1/images.txt"
  [ -s "$1/images.txt" ] || fail "no image was made: see the lines above"
  local size
  size=$(($(stat -c %s "$1/images/kubelet-plugin.tar") / $(wc -w <<<"$architectures")))
  [ "$size" -le "$MOST" ] || fail "images/kubelet-plugin.tar: $size bytes, at most $MOST: find what made it grow"
  # Layers are not compressed: a registry, a node's download and its disk see the same size.
  echo "images/kubelet-plugin.tar: $((size / 1024)) KiB, at most $((MOST / 1024)) KiB"
}

# The image of a key of images.digests.
image_of() {
  case $1 in
    plugin) echo dra-driver-vgpu/kubelet-plugin ;;
    softGpu) echo dra-driver-vgpu/soft-gpu ;;
    *) echo "dra-driver-vgpu/$1" ;;
  esac
}

chart() { # TO WORK
  local work=$2 values=$2/dra-driver-vgpu/values.yaml key image digest keys
  cp -r deploy/helm/dra-driver-vgpu "$work"
  cp LICENSE "$work/dra-driver-vgpu"
  keys=$(sed -n '/^  digests:/,/^  [a-z]/s/^    \([a-zA-Z]*\): ""/\1/p' "$values")
  for key in $keys; do
    image=$(image_of "$key")
    digest=$(sed -n "s|^$image ||p" "$1/images.txt")
    [ -n "$digest" ] || fail "deploy/helm/dra-driver-vgpu/values.yaml: images.digests.$key: the release has no image $image"
    sed -i "/^  digests:/,/^  [a-z]/s|^    $key: \"\"|    $key: $digest|" "$values"
  done
  sed -i "s|^  architectures: .*|  architectures: [$(tr '\n' ' ' <<<"$architectures" | sed 's/ *$//; s/ /, /g')]|" "$values"
  [ -z "${VGPU_REGISTRY:-}" ] || sed -i "s|^  registry: \"\"|  registry: $VGPU_REGISTRY|" "$values"
  # Helm checks the chart and leaves out what is not part of it, but writes the time of day into the archive.
  helm package --destination "$work" "$work/dra-driver-vgpu" >/dev/null
  rm -r "$work/dra-driver-vgpu"
  tar -xmzf "$work/dra-driver-vgpu-$version.tgz" -C "$work"
  packed "$1/dra-driver-vgpu-$version.tgz" "$work" dra-driver-vgpu
  # The rendered chart names each image by its digest, and takes VGPU_REGISTRY as it is.
  local registry=(--set images.registry=registry.invalid) registry_named=${VGPU_REGISTRY:-registry.invalid}
  [ -z "${VGPU_REGISTRY:-}" ] || registry=()
  helm template x "$1/dra-driver-vgpu-$version.tgz" --kube-version 1.37.0 "${registry[@]}" >"$work/rendered" ||
    fail "helm cannot render the chart${VGPU_REGISTRY:+ with VGPU_REGISTRY=$VGPU_REGISTRY}: see the lines above"
  for image in kubelet-plugin controller; do
    digest=$(sed -n "s|^dra-driver-vgpu/$image ||p" "$1/images.txt")
    grep -qF "${registry_named%/}/dra-driver-vgpu/$image@$digest" "$work/rendered" ||
      fail "the chart does not name $image@$digest: values.yaml needs a line for it in images.digests"
  done
}

sbom() { # TO WORK
  local crate name
  mkdir -p "$1/sbom" "$2/sources"
  git archive HEAD | tar -x -C "$2/sources" # cargo-cyclonedx writes beside each Cargo.toml
  for crate in "${CRATES[@]}"; do
    (cd "$2/sources/$crate" && env -u CARGO_TARGET_DIR cargo cyclonedx --quiet --format json --target "$(arch_use "$own" && echo "$ARCH_TRIPLE")" --no-build-deps)
    for name in "$2/sources/$crate"/*.cdx.json; do
      sed "s|$2/sources|/dra-driver-vgpu|g" "$name" >"$1/sbom/${name##*/}"
    done
  done
}

krew() { # TO WORK
  local archive source=${VGPU_SOURCE:-$UNKNOWN} architecture sum
  sed -e '/^#/d' -e '/^  platforms:/q' -e "s|{{VERSION}}|$version|; s|{{SOURCE}}|$source|" deploy/krew/vgpu.yaml >"$1/vgpu.yaml"
  for architecture in $architectures; do
    archive=vgpu-$version-linux-$architecture.tar.gz
    mkdir "$2/cli-$architecture"
    cp "$(arch_dist "$architecture")/vgpu" LICENSE "$2/cli-$architecture"
    packed "$1/$archive" "$2/cli-$architecture" LICENSE vgpu
    sum=$(sha256sum "$1/$archive" | cut -d' ' -f1)
    sed -e '1,/^  platforms:/d' -e "s|{{ARCH}}|$architecture|; s|{{URL}}|$source/releases/download/v$version/$archive|" \
      -e "s|{{SHA256}}|$sum|" deploy/krew/vgpu.yaml >>"$1/vgpu.yaml"
  done
  validate-krew-manifest -manifest "$1/vgpu.yaml" -skip-install >"$2/krew.log" 2>&1 || {
    cat "$2/krew.log" >&2
    fail "validate-krew-manifest refuses vgpu.yaml: see the lines above"
  }
}

# pack TO: everything but the signature, in a new folder.
pack() {
  local to=$1 work=$CARGO_TARGET_DIR/release-work
  rm -rf "$to" "$work"
  mkdir -p "$to/images" "$work"
  say "images"
  images "$to"
  say "chart"
  chart "$to" "$work"
  say "SBOM"
  sbom "$to" "$work"
  say "archives"
  local architecture
  for architecture in $architectures; do
    packed "$to/dra-driver-vgpu-$version-linux-$architecture.tar.gz" "$(arch_dist "$architecture")" .
    packed "$to/dra-driver-vgpu-$version-linux-$architecture-symbols.tar.gz" "$(symbols_of "$architecture")" .
  done
  krew "$to" "$work"
  (cd "$to" && find . -type f ! -name SHA256SUMS -printf '%P\0' | sort -z | xargs -0 sha256sum >SHA256SUMS)
  rm -rf "$work"
}

sign() { # FOLDER
  if [ -z "${COSIGN_KEY:-}" ]; then
    loud "NOT SIGNED: COSIGN_KEY names no key. Do not publish this (docs/release.md)"
    return
  fi
  cosign public-key --key "$COSIGN_KEY" --outfile "$1/cosign.pub"
  cosign sign-blob "${signing[@]}" --bundle "$1/SHA256SUMS.sigstore.json" "$1/SHA256SUMS" >/dev/null
  chmod a+r "$1/cosign.pub" "$1/SHA256SUMS.sigstore.json" # cosign writes them for their owner only
}

# same ONE OTHER: compares all files but signatures, which differ each time, and sums of them.
same() {
  diff -rq -x '*.sigstore.json' -x cosign.pub "$1" "$2" >&2 || fail "the two releases differ: see the lines above"
}

build() {
  [ -n "${VGPU_SOURCE:-}" ] || loud "VGPU_SOURCE names no URL: labels and vgpu.yaml have $UNKNOWN"
  [ -z "${COSIGN_KEY:-}" ] || case $(realpath "$COSIGN_KEY") in
    "$root"/*) fail "COSIGN_KEY: $COSIGN_KEY is in the clone: keep the key elsewhere" ;;
  esac
  local architecture symbols
  for architecture in $architectures; do
    symbols=$(symbols_of "$architecture")
    [ -d "$symbols" ] || fail "$symbols is missing: run \`make dist\`, with VGPU_ARCH=both for both architectures"
    "$root/build/check-dist.sh" "$(arch_dist "$architecture")" "$symbols" "$architecture"
  done
  pack "$root/release"
  sign "$root/release"
  say "release/ has $version of $revision"
}

push() { # REGISTRY
  local registry=${1:?release.sh push REGISTRY, such as registry.example.com/team} image digest name plain=() plain_oras=() insecure=()
  case $registry in
    127.*:* | localhost:*) plain=(--plain-http) plain_oras=(--to-plain-http) insecure=(--allow-http-registry) ;;
  esac
  [ -n "${COSIGN_KEY:-}" ] || loud "NOT SIGNED: COSIGN_KEY names no key"
  while read -r image digest; do
    name=$registry/$image
    oras cp --no-tty --from-oci-layout "${plain_oras[@]}" "release/images/${image##*/}.tar:$version" "$name:$version"
    [ "$(oras resolve "${plain[@]}" "$name:$version")" = "$digest" ] || fail "$name:$version is not $digest in the registry"
    [ -z "${COSIGN_KEY:-}" ] || cosign sign "${signing[@]}" "${insecure[@]}" "$name@$digest"
  done <release/images.txt
  name=$registry/charts/dra-driver-vgpu
  helm push "${plain[@]}" "release/dra-driver-vgpu-$version.tgz" "oci://$registry/charts"
  digest=$(oras resolve "${plain[@]}" "$name:$version")
  [ -z "${COSIGN_KEY:-}" ] || cosign sign "${signing[@]}" "${insecure[@]}" "$name@$digest"
  say "pushed to $registry; the chart is oci://$name, version $version ($digest)"
}

case ${1:-} in
  '')
    committed
    tools
    build
    ;;
  check)
    committed
    tools
    pack "$CARGO_TARGET_DIR/release-again"
    same "$root/release" "$CARGO_TARGET_DIR/release-again"
    [ -z "${2:-}" ] || same "$root/release" "$2"
    say "the same bytes: images, chart, SBOM, archives"
    ;;
  push)
    committed
    tools
    push "${2:-}"
    ;;
  notes)
    committed
    [ -n "${VGPU_SOURCE:-}" ] || loud "VGPU_SOURCE names no URL: links to pages have $UNKNOWN"
    # A release's page is outside the repository, where links to its files need a whole address.
    awk -v "begin=## [$version]" 'index($0, "## ") == 1 {is = index($0, begin) == 1; next} is' CHANGELOG.md |
      sed "s|](\([A-Za-z][^):]*\))|](${VGPU_SOURCE:-$UNKNOWN}/blob/v$version/\1)|g"
    ;;
  *) fail "$1: write nothing, check [FOLDER], notes or push REGISTRY" ;;
esac
