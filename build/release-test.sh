#!/usr/bin/env bash
# release-test.sh [signatures]: what a user does with release/, from a registry on loopback: pull, verify, install, upgrade, roll
# back, on a cluster of its own. Takes 2 to 4 minutes once the tools are built; not part of `make test`. `signatures`: without a
# cluster.
#
# FROM=FOLDER: installs the release/ of another version or commit first, and upgrades from it. Otherwise the same images are
# upgraded to, in a chart with another version.
#
# Signs with a key pair that it makes and removes. Exits with 3 if no cluster can be created here; the part without one has
# then passed.
#
# Prints how long the plugin takes to be Ready. The node has none of the driver's images before, so this includes the pull.
#
# The nodes have a network of their own, so a second registry runs on the node's loopback, with the same files and without
# the right to write: one address is then good for helm and for the node.
. "$(dirname "$0")/env.sh"
as_caller "$@"
cd "$root"

[ -s release/images.txt ] || fail "release/ is missing: run \`make release\`"
first=${FROM:-release}
[ -s "$first/images.txt" ] || fail "FROM=$FROM: the folder has no images.txt; name the release/ of another clone"
"$root/build/prerequisites.sh" demo
cargo build --quiet --workspace --bin vgpu-e2e --bin vgpu-client --test cluster # the options of e2e.sh
vgpu_e2e=$CARGO_TARGET_DIR/debug/vgpu-e2e
folders=$("$vgpu_e2e" tools --release) || exit
PATH=$(tr '\n' : <<<"$folders")$PATH
version=$(cd release && echo dra-driver-vgpu-*.tgz)
version=${version#dra-driver-vgpu-} version=${version%.tgz}
next=${version%.*}.$((${version##*.} + 1)) # the same images under another version
export CLUSTER=${CLUSTER:-release-test} COSIGN_PASSWORD=''
work=$(mktemp -d "$CARGO_TARGET_DIR/release-test-XXXXXX")
registries=() cluster=''

finish() {
  local pid
  for pid in "${registries[@]}"; do kill "$pid" 2>/dev/null || true; done
  [ -z "$cluster" ] || "$vgpu_e2e" down # also ends the node's registry
  wait
  rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

free_port() {
  python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# registry NAME READONLY PREFIX...: starts one on $address; PREFIX runs it on a node.
registry_on() {
  local file=$work/$1.yaml
  cat >"$file" <<YAML
version: 0.1
log: {level: error, accesslog: {disabled: true}}
storage: {filesystem: {rootdirectory: $work/registry}, maintenance: {readonly: {enabled: $2}}}
http: {addr: "$address"}
YAML
  "${@:3}" "$(command -v registry)" serve "$file" >"$work/$1.log" 2>&1 &
  registries+=($!)
}

# answers NAME PREFIX...: waits for the registry, which PREFIX runs on a node.
answers() {
  "${@:2}" python3 - "$address" <<'PY' || fail "the registry $1 on $address does not answer: $(cat "$work/$1.log")"
import sys, time, urllib.request
for _ in range(100):
    try:
        urllib.request.urlopen(f"http://{sys.argv[1]}/v2/", timeout=1)
        sys.exit(0)
    except OSError:
        time.sleep(0.1)
sys.exit(1)
PY
}

# refused WHAT COMMAND...: the command must fail.
refused() {
  local what=$1
  shift
  if "$@" >"$work/said" 2>&1; then
    cat "$work/said" >&2
    fail "$what was accepted"
  fi
  echo "refused, as it should be: $what"
}

address=127.0.0.1:$(free_port)
say "a registry on $address"
registry_on ours false
answers ours

say "push and sign"
(cd "$work" && cosign generate-key-pair --output-key-prefix right >/dev/null 2>&1 && cosign generate-key-pair --output-key-prefix wrong >/dev/null 2>&1)
COSIGN_KEY=$work/right.key build/release.sh push "$address"

say "verify"
checks=(--insecure-ignore-tlog --allow-http-registry)
verify() { # KEY IMAGE
  cosign verify --key "$work/$1.pub" "${checks[@]}" "$2" >"$work/verified" 2>&1 || { cat "$work/verified" >&2; return 1; }
}
while read -r image digest; do
  verify right "$address/$image@$digest"
  refused "the wrong key for $image" verify wrong "$address/$image@$digest"
done <release/images.txt
verify right "$address/charts/dra-driver-vgpu:$version"
refused "the wrong key for the chart" verify wrong "$address/charts/dra-driver-vgpu:$version"
mkdir "$work/pulled"
helm pull --plain-http "oci://$address/charts/dra-driver-vgpu" --version "$version" --destination "$work/pulled" >/dev/null 2>&1
cmp "$work/pulled"/*.tgz release/dra-driver-vgpu-"$version".tgz
cp release/SHA256SUMS "$work/sums"
cosign sign-blob --key "$work/right.key" --tlog-upload=false --use-signing-config=false --yes --bundle "$work/sums.json" "$work/sums" >/dev/null
blob() { # KEY
  cosign verify-blob --key "$work/$1.pub" --insecure-ignore-tlog --bundle "$work/sums.json" "$work/sums" >/dev/null
}
blob right
refused "the wrong key for SHA256SUMS" blob wrong
echo >>"$work/sums"
refused "a changed SHA256SUMS" blob right
(cd release && sha256sum --quiet -c SHA256SUMS)
[ "${1:-}" != signatures ] || { say "passed, without a cluster"; exit; }

if [ -n "${FROM:-}" ]; then
  say "push the images of $FROM"
  # The chart names images by their digests, so the tag says nothing.
  while read -r image digest; do
    oras cp --no-tty --from-oci-layout --to-plain-http "$FROM/images/${image##*/}.tar@$digest" "$address/$image:from"
  done <"$FROM/images.txt"
fi

say "a cluster"
rc=0
"$vgpu_e2e" preflight >"$work/said" 2>&1 || rc=$?
[ $rc = 0 ] || { cat "$work/said" >&2; exit $rc; }
cluster=1
"$vgpu_e2e" up --pull-driver | tee "$work/up"
KUBECONFIG=$(sed -n 's/^export KUBECONFIG=//p' "$work/up")
export KUBECONFIG
registry_on node true "$vgpu_e2e" exec --
answers node "$vgpu_e2e" exec --

ours=(--namespace dra-driver-vgpu)
values=(--set "images.registry=$address,driverRoot=/var/lib/soft-gpu/driver,softGpu.state=/var/lib/soft-gpu/state")
kubectl() { "$vgpu_e2e" kubectl "$@"; }
ready() {
  kubectl "${ours[@]}" rollout status daemonset/dra-driver-vgpu-plugin --timeout=90s
  kubectl "${ours[@]}" rollout status deployment/dra-driver-vgpu-controller --timeout=90s
}
chart=(dra-driver-vgpu "oci://$address/charts/dra-driver-vgpu" --plain-http "${ours[@]}")
installed=("${chart[@]}" --version "$version")
[ -z "${FROM:-}" ] || installed=(dra-driver-vgpu "$FROM"/dra-driver-vgpu-[0-9]*[0-9].tgz "${ours[@]}")

# runs FOLDER: the pods have the images of this release.
runs() {
  local image digest
  kubectl "${ours[@]}" get pods -o jsonpath='{.items[*].spec.containers[*].image}' >"$work/said"
  for image in kubelet-plugin controller; do # of the others no pod of the chart runs here
    digest=$(sed -n "s|^dra-driver-vgpu/$image ||p" "$1/images.txt")
    grep -qF "$address/dra-driver-vgpu/$image@$digest" "$work/said" || fail "no pod runs $image@$digest: $(cat "$work/said")"
  done
}

# since NANOSECONDS: for people, in seconds.
since() {
  local tenths=$((($(date +%s%N) - $1) / 100000000))
  echo "$((tenths / 10)).$((tenths % 10)) s"
}

# Without --wait, because Helm looks every two seconds only.
say "install ${FROM:-$version}"
start=$(date +%s%N)
helm install "${installed[@]}" --create-namespace "${values[@]}"
kubectl "${ours[@]}" rollout status daemonset/dra-driver-vgpu-plugin --timeout=90s
echo "from \`helm install\` to the plugin's DaemonSet Ready, its image pulled: $(since "$start")"
ready
echo "to the controller Ready: $(since "$start")"
runs "$first"
if [ -z "${FROM:-}" ]; then
  say "the first pod, pasted from the chart's notes"
  helm get notes dra-driver-vgpu "${ours[@]}" | sed -n '/^kubectl apply/,/^kubectl delete/p' >"$work/pasted"
  grep -qF "$address/$(sed -n 's|\(dra-driver-vgpu/client\) |\1@|p' release/images.txt)" "$work/pasted" ||
    fail "the notes do not name the released image client: $(cat "$work/pasted")"
  # shellcheck source=/dev/null
  . "$work/pasted"
fi
kubectl apply -f deploy/examples/fraction
pods=(pod/fraction-1 pod/fraction-2) # not all: the ninth waits
kubectl wait --for=jsonpath='{.status.phase}'=Running "${pods[@]}" --timeout=90s
kubectl get "${pods[@]}" -o jsonpath='{.items[*].metadata.uid}' >"$work/before"

say "upgrade to $next, and back"
tar -xzf "release/dra-driver-vgpu-$version.tgz" -C "$work"
helm package "$work/dra-driver-vgpu" --version "$next" --app-version "$next" --destination "$work" >/dev/null
helm push --plain-http "$work/dra-driver-vgpu-$next.tgz" "oci://$address/charts"
helm upgrade "${chart[@]}" --wait --timeout 120s --version "$next" "${values[@]}" --set plugin.logLevel=debug,controller.logLevel=debug
ready
runs release
# The ninth gets its share from the upgraded plugin.
kubectl delete pod fraction-8
kubectl wait --for=jsonpath='{.status.phase}'=Running pod/fraction-9 --timeout=90s
kubectl exec fraction-1 -- vgpu-client check
helm rollback dra-driver-vgpu "${ours[@]}" --wait --timeout 120s
ready
runs "$first"
kubectl get "${pods[@]}" -o jsonpath='{.items[*].metadata.uid}' >"$work/after"
cmp "$work/before" "$work/after" || fail "the pods with shares are not those from before the upgrade"
kubectl wait --for=jsonpath='{.status.phase}'=Running "${pods[@]}" pod/fraction-9 --timeout=10s
helm history dra-driver-vgpu "${ours[@]}"
say "passed"
