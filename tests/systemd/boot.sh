#!/usr/bin/env bash
# The first process of the container of check.sh: mounts what systemd expects, and becomes systemd.
#   boot.sh ROOT FILE
# Writes its process id, as the machine sees it, into FILE.
set -euo pipefail
root=$1
# /proc is still the machine's.
read -r pid _ </proc/self/stat
echo "$pid" >"$2"

mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero full random urandom tty; do
  touch "$root/dev/$device"
  mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"

cd "$root"
pivot_root . mnt
umount -l mnt
# `container` tells systemd not to expect hardware.
exec env -i container=rollout PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd
