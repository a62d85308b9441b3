#!/usr/bin/env bash
# emulated.sh ROOT COMMAND...: runs a command of an arm64 root file system, under emulation as builds of images do it.
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
shift
work=$(mktemp -d)
trap 'forget "$work"' EXIT
runs_here aarch64 || {
  wanted=(qemu-user-static)
  get_wanted "$work"
  emulate aarch64 "$(command -v qemu-aarch64-static)"
}
mount --rbind /dev "$root/dev"
chroot "$root" "$@"
