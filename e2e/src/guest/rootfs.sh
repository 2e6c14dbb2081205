# Run by rootfs.rs in an empty folder, as root of its own namespaces: creates vmlinuz, initrd.img and disk.img there.
# SUITE PACKAGES BYTES USER UID [MIRROR]
set -eu
suite=$1 packages=$2 bytes=$3 user=$4 uid=$5
shift 5

mmdebstrap --quiet --mode=root --format=directory --variant=minbase --include="$packages" "$suite" root "$@"

chroot root useradd --create-home --shell /bin/bash --uid "$uid" "$user"
echo "$user ALL=(ALL) NOPASSWD: ALL" >root/etc/sudoers.d/user
chmod 440 root/etc/sudoers.d/user
echo vgpu-guest >root/etc/hostname
echo 127.0.0.1 localhost vgpu-guest >root/etc/hosts
echo /dev/vda / ext4 defaults 0 1 >root/etc/fstab
# There is no network for fetching updates.
rm -f root/etc/systemd/system/timers.target.wants/*

# The user's login on the second serial port. Each line is a command; its output is followed by a record separator and
# its status.
cat >root/usr/local/bin/commands <<'END'
#!/bin/bash
stty raw -echo
printf '\036ready\n'
while IFS= read -r line; do
  bash -lc "$line" </dev/null 2>&1
  printf '\036%d\n' $?
done
END
chmod 755 root/usr/local/bin/commands
cat >root/etc/systemd/system/commands.service <<END
[Unit]
After=multi-user.target
[Service]
ExecStart=/usr/local/bin/commands
User=$user
PAMName=login
StandardInput=tty
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS1
[Install]
WantedBy=multi-user.target
END
ln -s ../commands.service root/etc/systemd/system/multi-user.target.wants/commands.service

cp root/boot/vmlinuz-* vmlinuz
cp root/boot/initrd.img-* initrd.img
mke2fs -q -t ext4 -d root disk.img "$((bytes / 1024))k"
rm -rf root
