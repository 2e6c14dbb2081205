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
mount -t tmpfs -o mode=0755 tmpfs "$root/dev"
mkdir -m 1777 "$root/dev/shm"
mkdir "$root/dev/pts"
mount --bind /dev/pts "$root/dev/pts"
for node in null zero full random urandom tty; do bind "/dev/$node" "/dev/$node"; done
ln -s /proc/self/fd "$root/dev/fd"
chmod 1777 "$root/tmp"
for folder; do bind "$folder" "$folder"; done
mount -t tmpfs -o mode=0755 run "$root/run"
# The plugin has a tmpfs for each share.
mkdir "$work/share"
mount -t tmpfs -o mode=0755 vgpu "$work/share"
cp -p "$shares/share/limits" "$shares/share/ledger" "$work/share"
mkdir "$root/dev/vgpu"
mount -t tmpfs -o mode=0755,nosuid,nodev,noexec vgpu "$root/dev/vgpu"
bind "$work/share" /dev/vgpu/share
mount -o remount,bind,ro,noexec,nosuid,nodev "$root/dev/vgpu/share"
mount --bind "$work/share/ledger" "$root/dev/vgpu/share/ledger"
bind "$state" /run/soft-gpu
for name in libcuda.so.1 libnvidia-ml.so.1; do bind "$driver/$name" "/dev/vgpu/.driver/$name"; done
bind "$preload" /dev/vgpu/.lib/libvgpu-preload.so
bind "$shim" /dev/vgpu/.lib/libcuda.so.1
for folder in /usr/lib/x86_64-linux-gnu /usr/lib64; do
  for name in libcuda.so libcuda.so.1 libnvidia-ml.so.1; do bind "$shim" "$folder/$name"; done
done
printf '{"ociVersion": "1.1.0", "root": {"path": "%s"}}' "$root" >"$work/bundle/config.json"
printf '{"ociVersion": "1.1.0", "id": "c1", "status": "creating", "pid": 1, "bundle": "%s"}' "$work/bundle" |
  "$hook" preload --library /dev/vgpu/.lib/libvgpu-preload.so --report "$work/report" \
    --file .lib/libvgpu-preload.so --file .lib/libcuda.so.1 \
    --file .driver/libcuda.so.1 --file .driver/libnvidia-ml.so.1
if [ -e "$work/report" ]; then
  cat "$work/report" >&2
  exit 1
fi
exec chroot "$root" /bin/sh -c 'echo ready; read line'
