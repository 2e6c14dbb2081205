# Runs in user-mode Linux, as a service of systemd: starts containers with the hooks of a claim, and compares what the
# kernel lets them charge with the claim's limit. Each line for the transcript begins with `dmem: `.
#
# The root's files are on the host; what hooks and containers share is on tmpfs, as on a node.
export PATH=/usr/sbin:/usr/bin
readonly POD=0123abcd-1111-2222-3333-444455556666
readonly CGROUPS=/sys/fs/cgroup RECORDS=/run/vgpu/driver-limits HOOK=/var/lib/vgpu/release/vgpu-driver-limit
readonly REGION=nvidia/00000000:01:00.0/vidmem
# MiB of a claim of 1 GiB with the tolerance of 64 MiB.
readonly LIMIT=1088
read -r GPU </vgpu/gpu
NODE="--nvml /driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1 --soft-gpu /run/soft-gpu"
failed=0

say() { echo "dmem: $*"; }
ok() { # WHAT EXPECTED FOUND
  if [ "$2" = "$3" ]; then say "ok: $1: ${3:-none}"; else
    failed=$((failed + 1))
    say "FAILED: $1: ${3:-none}, not ${2:-none}"
  fi
}
has() { # WHAT WORDS FOUND
  case $3 in
    *"$2"*) say "ok: $1: $3" ;;
    *) ok "$1" "a text with $2" "$3" ;;
  esac
}

# === Cgroups

# The limit, or what is in use, of the first GPU in a cgroup, in MiB: `of FILE FOLDER`. Nothing if the cgroup has no such file.
of() {
  local value
  value=$(sed -n "s#^$REGION ##p" "$2/$1" 2>/dev/null)
  case $value in
    '' | max) echo "$value" ;;
    *) echo "$((value / 1048576))" ;;
  esac
}

# Takes the controllers away from a cgroup's children, and from all below.
disable() {
  local below controller
  for below in "$1"/*/; do
    [ ! -d "$below" ] || disable "${below%/}"
  done
  for controller in dmem misc; do
    echo "-$controller" >"$1/cgroup.subtree_control" 2>/dev/null
  done
}

# Returns true if a cgroup's children have dmem.
enabled() {
  case " $(cat "$1/cgroup.subtree_control") " in *' dmem '*) echo yes ;; *) echo no ;; esac
}

# Removes what is left of a pod, as kubelet does.
remove_pod() {
  local below
  systemctl stop "kubepods-pod$(echo $POD | tr - _).slice" kubepods.slice 2>/dev/null
  for below in "$CGROUPS"/kubepods/*/*/ "$CGROUPS"/kubepods/*/ "$CGROUPS"/kubepods/; do
    [ ! -d "$below" ] || rmdir "$below"
  done
}

# === Containers

# start NAME RUNTIME MANAGER CLAIM COMMAND: runs a container to its end, and prints what it printed.
start() {
  local cgroup option='' bundle=/run/bundles/$1
  case $3 in
    cgroupfs) cgroup=/kubepods/pod$POD/$1 ;;
    systemd) cgroup=kubepods-pod$(echo $POD | tr - _).slice:vgpu:$1 option=--systemd-cgroup ;;
  esac
  mkdir -p "$bundle"
  sed "s#@CGROUP@#$cgroup#; s#@COMMAND@#$5#" "/vgpu/$4.json" >"$bundle/config.json"
  "$2" --root "/run/$2" $option run --bundle "$bundle" "$1" 2>"$bundle/stderr" || sed "s/^/$1: /" "$bundle/stderr" >&2
}

# The cgroup of a container that runs: leaf NAME RUNTIME
leaf() {
  local pid
  pid=$("$2" --root "/run/$2" state "$1" | sed -n 's/^ *"pid": *\([0-9]*\).*/\1/p')
  echo "$CGROUPS$(sed -n 's/^0:://p' "/proc/$pid/cgroup")"
}

until_there() { # FILE: waits for a minute
  local tries=0
  while [ ! -e "/run/shared/$1" ] && [ $tries -lt 600 ]; do
    tries=$((tries + 1))
    sleep 0.1
  done
}

checked() { # the states that a check prints: the container's and its pod's
  "$HOOK" check --records "$RECORDS" $NODE | sed 's/.*"state":"\([a-z-]*\)".*"pod":"\([a-z]*\)".*/\1 \2/'
}

# === Tests

probe() {
  has "probe: who limits cgroups here" '"driverLimit":"dmem"' "$("$HOOK" probe --gpu "$GPU" $NODE 2>&1)"
  has "the same from another namespace of mounts, as the plugin's" '"driverLimit":"dmem"' \
    "$(unshare --mount "$HOOK" enter 1 "$HOOK" probe --gpu "$GPU" $NODE 2>&1)"
  ok "cgroups of probes that are left" '' "$(cd $CGROUPS && echo vgpu-probe-*/ | sed 's#vgpu-probe-\*/##')"
}

# A container alone: what it gets, and again at its next start.
alone() { # RUNTIME MANAGER
  local with="$1, $2" name=$1-$2
  ok "$with: the root passes dmem on before the first container" no "$(enabled $CGROUPS)"
  ok "$with: MiB that the container's first program is granted" $LIMIT "$(start "$name" $1 $2 claim-1 mib)"
  ok "$with: the root passes dmem on" yes "$(enabled $CGROUPS)"
  ok "$with: MiB after it was started again" $LIMIT "$(start "$name" $1 $2 claim-1 mib)"
  ok "$with: the other hook's list of libraries" /dev/vgpu/.lib/libvgpu-preload.so "$(start "$name" $1 $2 claim-1 list)"
}

# A pod of two containers with one claim, and one with another claim, while the first holds all that it can get.
together() { # RUNTIME MANAGER
  local with="$1, $2" name=$1-$2 leaf pod disabled
  rm -f /run/shared/*
  start "$name-first" $1 $2 claim-1 hold >/run/first &
  until_there holds
  leaf=$(leaf "$name-first" $1)
  pod=${leaf%"/${leaf#*pod"$POD"/}"}
  [ $2 = cgroupfs ] || pod=$(dirname "${leaf%/container}")
  ok "$with: dmem.max, dmem.min and dmem.current of the container, MiB" "$LIMIT 0 $LIMIT" \
    "$(of dmem.max "$leaf") $(of dmem.min "$leaf") $(of dmem.current "$leaf")"
  ok "$with: dmem.max and dmem.current of the pod, MiB" "$LIMIT $LIMIT" \
    "$(of dmem.max "$pod") $(of dmem.current "$pod")"
  ok "$with: MiB for a program that joins it by exec" 0 \
    "$("$1" --root "/run/$1" exec "$name-first" /bin/sh /in-container.sh mib)"
  ok "$with: MiB for a second container of the claim" 0 "$(start "$name-second" $1 $2 claim-1 mib)"
  ok "$with: a check finds the limits" "held held" "$(checked)"

  disable "$pod"
  disabled="$(of dmem.max "$leaf")"
  ok "$with: dmem.max of the container after -dmem in its pod" '' "$disabled"
  ok "$with: a check sets it again" "set-again held" "$(checked)"
  ok "$with: dmem.max of the container, MiB" $LIMIT "$(of dmem.max "$leaf")"
  ok "$with: the next check" "held held" "$(checked)"
  # The memory that it holds stays charged to the pod alone.
  : >/run/shared/again
  until_there held

  ok "$with: MiB for a container with another claim" $LIMIT "$(start "$name-other" $1 $2 claim-2 mib)"
  ok "$with: dmem.max of the pod, MiB" $((2 * LIMIT)) "$(of dmem.max "$pod")"
  : >/run/shared/end
  wait
  ok "$with: MiB of the first container, and more after -dmem" "$LIMIT 0" "$(tr '\n' ' ' </run/first | sed 's/ $//')"
}

# A claim whose files are gone: the container must not start.
gone() { # RUNTIME MANAGER
  local with="$1, $2" name=$1-$2-gone claim
  claim=$(sed -n 's#.*/run/vgpu/claims/\([0-9a-f-]*\)".*#\1#p' /vgpu/claim-2.json | sed 1q)
  mv "/run/vgpu/claims/$claim/s1/limits" /run/kept
  rm -f "/run/vgpu/claims/$claim/not-started.vgpu-driver-limit"
  ok "$with: a claim whose limits file is gone starts nothing" '' "$(start "$name" $1 $2 claim-2 mib)"
  mv /run/kept "/run/vgpu/claims/$claim/s1/limits"
  # crun does not pass on what a hook prints: the plugin makes an event of the claim's file.
  case $1 in
    runc) has "$with: and says why" "$claim" "$(grep -o 'vgpu-driver-limit: .*again' "/run/bundles/$name/stderr")" ;;
    crun) has "$with: and names the hook" vgpu-driver-limit "$(cat "/run/bundles/$name/stderr")" ;;
  esac
  has "$with: and the claim's directory has the reason" "container $name: " \
    "$(cat "/run/vgpu/claims/$claim/not-started.vgpu-driver-limit")"
}

# Programs of the software GPU, which reads the same limit: the library's comes first, and who goes around it meets the kernel's.
walls() { # RUNTIME MANAGER
  local with="$1, $2" name=$1-$2-cuda
  has "$with: an honest program sees the share" '"total":1073741824' "$(start "$name" $1 $2 claim-1 check)"
  has "$with: 1 GiB and a granule with the library" OUT_OF_MEMORY "$(start "$name" $1 $2 claim-1 'alloc 1075838976')"
  has "$with: the same without it, within the tolerance" '"allocated":1075838976' \
    "$(start "$name" $1 $2 claim-1 'around 1075838976')"
  has "$with: 2 GiB without it" OUT_OF_MEMORY "$(start "$name" $1 $2 claim-1 'around 2147483648')"
}

left() {
  local with="$1, $2"
  remove_pod
  ok "$with: a check after the pod has ended prints" '' "$(checked)"
  ok "$with: records of pods" '' "$(ls $RECORDS)"
  ok "$with: MiB in use of the GPU" 0 "$(of dmem.current $CGROUPS)"
}

mount -t tmpfs tmpfs /tmp
mkdir -p /run/shared /run/bundles /run/dbus /run/vgpu
cp -a /vgpu/soft-gpu /run/soft-gpu
for share in /vgpu/claims/*/s1; do
  of_node=/run$share
  mkdir -p "$of_node"
  mount -t tmpfs vgpu "$of_node"
  cp -a "$share/." "$of_node"
done
dbus-daemon --system --fork --nopidfile
kill -USR1 1 # systemd connects to the bus

say "$(uname -sr); $(systemctl --version | sed 1q | cut -d' ' -f1,2); $(runc --version | sed 1q); $(crun --version | sed 1q)"
say "controllers of the root: $(cat $CGROUPS/cgroup.controllers)"
say "dmem.capacity of the root: $(tr '\n' ' ' <$CGROUPS/dmem.capacity)"
probe
for runtime in runc crun; do
  for manager in cgroupfs systemd; do
    disable $CGROUPS
    alone $runtime $manager
    together $runtime $manager
    gone $runtime $manager
    walls $runtime $manager
    left $runtime $manager
  done
done
[ $failed -gt 0 ] || say "all passed"
