#!/usr/bin/env bash
# In the root of check.sh: starts Slurm, and then recipe.sh as an ordinary user.
set -euo pipefail
hostname slurm
mount -t sysfs -o ro sysfs /sys
ip link set lo up
# Slurm resolves an address only if the machine has one besides 127.0.0.1.
ip address add 127.0.0.2/8 dev lo
echo "127.0.0.1 localhost slurm" >/etc/hosts
# Devices that stand for GPUs: slurmd wants a device for each.
mkdir /opt/gpus
for n in {0..7}; do mknod "/opt/gpus/$n" c 1 3; done
mkdir -p /var/lib/slurm/{slurmctld,n0,n1} /var/log/slurm /run/munge
chown -R slurm: /var/lib/slurm /var/log/slurm
chown munge: /run/munge
useradd --create-home --shell /bin/bash tester

runuser -u munge -- munged 2>/var/log/munged.log || { cat /var/log/munged.log; exit 1; }
slurmctld
for node in n0 n1; do slurmd -N "$node" 2>/dev/null || { tail "/var/log/slurm/$node.log"; exit 1; }; done
for _ in $(seq 60); do
  [ "$(sinfo --noheader --Node --states=idle | wc -l)" = 2 ] && break
  sleep 0.5
done
[ "$(sinfo --noheader --Node --states=idle | wc -l)" = 2 ] || { sinfo; tail -n 8 /var/log/slurm/*.log; exit 1; }
echo "-- $(slurmd -V): $(sinfo --noheader --format='%D nodes, %T, %G')"
runuser -l tester -c 'bash /opt/rollout/recipe.sh' || { tail -n 8 /var/log/slurm/*.log; exit 1; }
