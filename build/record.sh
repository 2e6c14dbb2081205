#!/usr/bin/env bash
# record.sh: records docs/fifth-pod.svg, in which a fifth pod waits for a GPU and starts. By hand, after changes of what is shown;
# no test runs it. Needs asciinema (PyPI) on the PATH and npx (svg-term-cli, npm), a cluster (docs/demo.md) and dist/ (VGPU_DIST).
#
# `record.sh play FOLDER` is what is recorded: it types the commands and runs them.
. "$(dirname "$0")/env.sh"
dist=${VGPU_DIST:-$root/dist}
export VGPU_DIST=$dist
out=$root/docs/fifth-pod.svg

pods() {
  cat <<'YAML'
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: half}
spec:
  spec:
    devices:
      requests:
      - name: gpu
        exactly:
          deviceClassName: vgpu
          capacity: {requests: {memory: 38Gi, cores: 50}}
YAML
  local pod
  for pod in 1 2 3 4 5; do
    cat <<YAML
---
apiVersion: v1
kind: Pod
metadata: {name: train-$pod}
spec:
  terminationGracePeriodSeconds: 1
  resourceClaims: [{name: gpu, resourceClaimTemplateName: half}]
  containers:
  - name: main
    image: dra-driver-vgpu/client:dev
    command: [/usr/bin/vgpu-client, hold]
    resources: {claims: [{name: gpu}]}
YAML
  done
}

# Types a command and runs it. Word by word, because each write is a picture in the SVG.
typed() {
  local word words
  printf '\033[1;32m$\033[0m '
  read -ra words <<<"$1"
  for word in "${words[@]}"; do
    printf '%s ' "$word"
    sleep 0.2
  done
  echo
  eval "$1" || true
  sleep "${2:-2}"
}

play() {
  cd "$1"
  PATH=$1:$PATH
  typed "grep -E 'memory:|name: train' five-pods.yaml    # each pod: half of a GPU" 2
  typed 'kubectl apply -f five-pods.yaml' 4
  typed 'kubectl get pods' 3
  typed 'kubectl vgpu explain pod/train-5' 5
  typed 'kubectl vgpu top --nodes' 4
  typed 'kubectl delete pod train-1' 1
  typed 'kubectl wait pod/train-5 --for=condition=Ready' 1
  typed 'kubectl get pods' 2
  typed 'kubectl exec train-5 -- vgpu-client check' 5
}

record() {
  local helm kubectl tool
  # Not local: the trap needs them.
  program=$CARGO_TARGET_DIR/debug/vgpu-e2e
  cluster=recording
  for tool in asciinema npx; do
    command -v "$tool" >/dev/null || fail "$tool is missing: pip install asciinema; npx comes with Node.js"
  done
  "$root/build/e2e.sh" --cluster "$cluster" up
  work=$(mktemp -d)
  trap '"$program" --cluster "$cluster" down; rm -rf "$work"' EXIT
  export KUBECONFIG=/var/lib/vgpu-e2e/$cluster/kubeconfig
  helm=("$cache"/tools/helm-*/helm)
  kubectl=("$cache"/tools/kubernetes-*/kubectl)
  ln -s "$dist/vgpu" "$work/kubectl-vgpu"
  ln -s "${kubectl[0]}" "$work/kubectl"
  pods >"$work/five-pods.yaml"
  "${helm[0]}" install dra-driver-vgpu "$root/deploy/helm/dra-driver-vgpu" -n dra-driver-vgpu --create-namespace --wait \
    --set images.registry=docker.io,images.pullPolicy=Never,images.tag=dev \
    --set driverRoot=/var/lib/soft-gpu/driver,softGpu.state=/var/lib/soft-gpu/state
  until [ "$("$work/kubectl" get resourceslices -o name | wc -l)" -gt 0 ]; do sleep 1; done
  asciinema rec --quiet --overwrite --cols 118 --rows 30 --idle-time-limit 5 -c "$0 play $work" "$work/cast"
  (cd "$work" && npx --yes svg-term-cli@2 --in cast --out recording.svg --window --no-cursor)
  mv "$work/recording.svg" "$out"
  say "$out: $(wc -c <"$out") bytes"
}

case ${1:-} in
  play) play "$2" ;;
  '') record ;;
  *) fail "$1: write nothing, or play FOLDER" ;;
esac
