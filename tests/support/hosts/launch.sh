#!/bin/bash
# launch.sh NAME ROOTFS FOLDER BRIDGE CGROUP...: boots a host until it is powered off; a reboot inside boots it again. It
# moves itself, and with it the host, into the cgroups. When its standard input ends, the host is killed: whoever wanted
# it is gone. The disk is mounted in a namespace that ends with the host.
set -eu
name=$1 rootfs=$2 folder=$3 bridge=$4
shift 4
if [ "${MOUNTS_OF:-}" != "$name" ]; then
  for group in "$@"; do
    echo $$ >"$group/cgroup.procs"
  done
  MOUNTS_OF=$name exec unshare --mount -- bash "$0" "$name" "$rootfs" "$folder" "$bridge" "$@"
fi
unset MOUNTS_OF
exec 3<&0 </dev/null
(while read -r _ <&3; do :; done; echo 1 >"$1/cgroup.kill") &
exec 3<&-
mount -t overlay "$name" -o "lowerdir=$rootfs,upperdir=$folder/upper,workdir=$folder/work" "$folder/root"
devices=()
for device in /dev/fuse /dev/net/tun; do
  [ ! -e "$device" ] || devices+=("--bind=$device")
done
# After a cut the kernel takes the old interface away a moment later, or, where much is going on, many seconds; until
# then nspawn ends at once, with status 1.
status=133 tries=0
while [ "$status" = 133 ] || { [ "$status" = 1 ] && [ $((SECONDS - begun)) -lt 10 ] && [ "$tries" -lt 100 ]; }; do
  [ "$status" = 133 ] && tries=0 || { tries=$((tries + 1)); sleep 0.5; }
  if [ "$tries" = 10 ]; then # nobody is behind it any more; nspawn cuts long names and puts a hash behind them
    left=$(ip -o link show master "$bridge" | cut -d ' ' -f 2 | cut -d @ -f 1 | grep "^vb-${name:0:8}" || true)
    [ "$(wc -w <<<"$left")" != 1 ] || ip link delete "$left" || true
  fi
  status=0 begun=$SECONDS
  SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 SYSTEMD_NSPAWN_API_VFS_WRITABLE=network systemd-nspawn --quiet \
    --directory="$folder/root" --machine="$name" --hostname="$name" --register=no --keep-unit --capability=all \
    --system-call-filter='add_key keyctl bpf' --resolv-conf=off --timezone=off --link-journal=no "${devices[@]}" \
    --network-bridge="$bridge" --bind="$folder/machines:/var/lib/machines" --console=read-only \
    --boot systemd.log_target=journal || status=$?
done
echo "the host ended with status $status"
