#!/usr/bin/env bash
# emulated.sh ROOT: runs programs of an arm64 root file system under emulation, as the build of node images does; at the end
# the program of its sandbox image, which has to end by itself when it is told to.
set -euo pipefail

give_up() {
  echo "emulated: $1" >&2
  exit 1
}

common=$(cd "$(dirname "$0")/../../images/common" && pwd)
. "$common/debian.sh"
. "$common/foreign.sh"
runs_here aarch64 || own_users "$@"
own_mounts "$@"
root=$1
work=$(mktemp -d)
trap 'forget "$work"' EXIT
runs_here aarch64 || {
  debian_start "$work/apt" bookworm
  debian_unpack "$work/parts" qemu-user-static
  emulate aarch64 "$work/parts/usr/bin/qemu-aarch64-static"
}
chroot "$root" /usr/bin/uname -m
chroot "$root" /usr/bin/systemctl --version
chroot "$root" /usr/sbin/iptables-legacy --version # conntrack and nft ask the kernel, as QEMU does not
chroot "$root" /usr/sbin/ethtool --version
chroot "$root" /usr/bin/socat -V
mkdir "$work/image"
tar -xf "$root/usr/share/unbounded/sandbox.tar" -C "$work/image"
for blob in "$work"/image/blobs/sha256/*; do
  tar -xf "$blob" -C "$root" pause 2>/dev/null || true
done
chroot "$root" /pause &
pause=$!
sleep 2
kill "$pause"
status=0
wait "$pause" || status=$?
echo "pause: $status"
