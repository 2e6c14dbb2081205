# ROOT WORK SHARES STATE SHIM PRELOAD DRIVER HOOK VISIBLE...
# Makes what a container runtime makes of the CDI spec (docs/architecture.md, "In the container"), in the mount
# and PID namespace in which this runs, and stays as its first process until its input ends.
image=$1 work=$2 shares=$3 state=$4 shim=$5 preload=$6 driver=$7 hook=$8
shift 8
mount -t tmpfs -o mode=0755 vgpu-loading "$work"
mkdir "$work/upper" "$work/work" "$work/root" "$work/bundle"
root=$work/root
mount -t overlay -o "lowerdir=$image,upperdir=$work/upper,workdir=$work/work" vgpu-loading "$root"
bind() { # FROM TO
  if [ -d "$1" ]; then mkdir -p "$root$2"; else
    mkdir -p "$root${2%/*}"
    rm -f "$root$2"
    : >"$root$2"
  fi
  mount --bind "$1" "$root$2"
}
mkdir -p "$root/proc" "$root/dev" "$root/tmp" "$root/etc" "$root/run"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
chmod 1777 "$root/tmp"
for folder; do bind "$folder" "$folder"; done
mount -t tmpfs -o mode=0755 run "$root/run"
bind "$shares/share" /run/vgpu/share
mount -o remount,bind,ro,noexec,nosuid,nodev "$root/run/vgpu/share"
mount --bind "$shares/share/ledger" "$root/run/vgpu/share/ledger"
bind "$state" /run/soft-gpu
for name in libcuda.so.1 libnvidia-ml.so.1; do bind "$driver/$name" "/usr/lib/vgpu/driver/$name"; done
bind "$preload" /usr/lib/vgpu/libvgpu-preload.so
for folder in /usr/lib/x86_64-linux-gnu /usr/lib64; do
  for name in libcuda.so libcuda.so.1 libnvidia-ml.so.1; do bind "$shim" "$folder/$name"; done
done
printf '{"ociVersion": "1.1.0", "root": {"path": "%s"}}' "$root" >"$work/bundle/config.json"
printf '{"ociVersion": "1.1.0", "id": "c1", "status": "creating", "pid": 1, "bundle": "%s"}' "$work/bundle" |
  "$hook" preload --library /usr/lib/vgpu/libvgpu-preload.so --report "$work/report"
if [ -e "$work/report" ]; then
  cat "$work/report" >&2
  exit 1
fi
exec chroot "$root" /bin/sh -c 'echo ready; read line'
