# The build of node images, which each images/node-DISTRIBUTION/build starts: build_node DISTRIBUTION SUITE ARGUMENT...
# Callers have set -euo pipefail, and define give_up.

common=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$common/debian.sh"
. "$common/foreign.sh"
. "$common/node.sh"
use="use: build [--arch amd64|arm64] OUT"

say() { printf 'build: %4d s  %s\n' "$SECONDS" "$1" >&2; }

# get_tools FOLDER ARCH: puts on the PATH what the build runs and this system lacks.
get_tools() {
  local machine triple compiler
  machine=$(machine_of "$2")
  triple=${machine//_/-}-linux-gnu # as packages have it
  wanted_tools "$2"
  [ "$machine" = "$(uname -m)" ] || command -v "$machine-linux-gnu-gcc" >/dev/null ||
    wanted+=(gcc-12-"$triple" cpp-12-"$triple" binutils-"$triple" libgcc-12-dev-"$2"-cross libc6-dev-"$2"-cross
      linux-libc-dev-"$2"-cross libisl23 libmpc3 libmpfr6 libgmp10)
  say "from Debian's archive: ${wanted[*]:-nothing}"
  get_wanted "$1"
  compiler=$1/parts/usr/bin/$machine-linux-gnu-gcc
  [ ! -e "$compiler-12" ] || {
    printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s-12 "$@"\n' "$1/parts/usr/lib/$(uname -m)-linux-gnu" "$compiler" >"$compiler"
    chmod 0755 "$compiler"
  }
}

# make_root ARCH SUITE ROOT SOURCES: the distribution with the packages of nodes.
make_root() {
  local packages
  packages=$(IFS=, && echo "${node_packages[*]}")
  run_mmdebstrap --variant=minbase --include="$packages" --arch="$1" \
    --essential-hook='printf "path-exclude=/usr/share/%s/*\n" man locale doc >"$1/etc/dpkg/dpkg.cfg.d/unread"' \
    --customize-hook='rm -f "$1"/etc/dpkg/dpkg.cfg.d/unread' "$2" "$3" "$4"
}

build_node() {
  local from=$1 suite=$2 given=("${@:3}") arch out='' work machine
  shift 2
  arch=$(dpkg --print-architecture) || give_up "dpkg is missing"
  while [ $# -gt 0 ]; do
    case $1 in
      --arch)
        [ $# -gt 1 ] || give_up "--arch wants amd64 or arm64; $use"
        arch=$2
        shift
        ;;
      -*) give_up "$1 is not known; $use" ;;
      *) [ -z "$out" ] || give_up "one folder is wanted; $use" && out=$1 ;;
    esac
    shift
  done
  [ -n "$out" ] || give_up "name a folder; $use"
  [ "$arch" = amd64 ] || [ "$arch" = arm64 ] || give_up "--arch $arch: amd64 or arm64; $use"
  [ "$(id -u)" = 0 ] || give_up "this needs root: files of the image belong to its own users"
  for tool in apt-get dpkg perl python3 zstd tar; do
    command -v "$tool" >/dev/null || give_up "$tool is missing"
  done
  machine=$(machine_of "$arch")
  runs_here "$machine" || own_users "${given[@]}"
  own_mounts "${given[@]}"

  export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$common" log -1 --format=%ct 2>/dev/null || echo 0)}
  mkdir -p "$out"
  out=$(cd "$out" && pwd)
  work=$out/.work
  rm -rf "$work" "$out/oci" "$out"/sandbox-*
  trap "forget '$work'" EXIT
  in_memory "$work" 2500
  use_"${from,,}" "$arch"
  [ "$from" != Ubuntu ] || get_ubuntu_keys "$work/keys"
  debian_sources "$suite" "$work/asked" >"$work/sources.list"
  use_debian
  get_tools "$work" "$arch"
  runs_here "$machine" || emulate "$machine" "$(command -v "qemu-$machine-static")"

  say "sandbox image"
  "$common/../sandbox/build" --arch "$arch" "$out"
  say "packages of $from $suite for $arch"
  make_root "$arch" "$suite" "$work/root" "$work/sources.list"
  make_node "$work/root" "$out/sandbox-$arch.tar"

  say "OCI layout of $(du -sm "$work/root" | cut -f 1) MB"
  tar -C "$work/root" --format=posix --pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime --xattrs \
    --xattrs-include='*' --numeric-owner --sort=name --mtime="@$SOURCE_DATE_EPOCH" --clamp-mtime --exclude='./dev/*' \
    -cf "$work/root.tar" .
  "$common/oci-layout" --architecture "$arch" --tar --level "${LEVEL:-9}" "$work/root.tar" "$out/oci"
  say "done: $(du -sm "$out/oci" | cut -f 1) MB in $out/oci"
}
