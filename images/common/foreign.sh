# Running programs of another architecture by QEMU's user emulation, without a change to this system: the handler is
# registered in a user namespace of the build's own. Linux 6.7 and later have one for each namespace.
# Callers have set -euo pipefail, and define give_up.

handlers=/proc/sys/fs/binfmt_misc

# machine_of ARCH: the kernel's and the compilers' name of an architecture that Debian calls ARCH.
machine_of() {
  case $1 in
    amd64) echo x86_64 ;;
    arm64) echo aarch64 ;;
  esac
}

# runs_here MACHINE: programs of it run, as this is one, or as the system has a handler for them.
runs_here() {
  [ "$1" = "$(uname -m)" ] || [ -e "$handlers/qemu-$1" ]
}

# own_users ARGUMENT...: starts the caller's script again in a user namespace in which every user is itself, and ends with
# it. Devices cannot be made there.
own_users() {
  local gate child status=0
  [ -z "${OWN_USERS:-}" ] || return 0
  gate=$(mktemp -u)
  mkfifo -m 600 "$gate"
  OWN_USERS=1 unshare --user --mount "$BASH" -c 'read -r _ <"$0"; exec "$@"' "$gate" "$BASH" "$0" "$@" &
  child=$!
  trap 'kill "$child" 2>/dev/null' TERM INT
  until [ "$(readlink "/proc/$child/ns/user")" != "$(readlink /proc/self/ns/user)" ]; do
    kill -0 "$child" 2>/dev/null || give_up "this system has no user namespaces"
    sleep 0.02
  done
  for map in uid_map gid_map; do
    echo '0 0 4294967295' >"/proc/$child/$map"
  done
  echo >"$gate"
  rm "$gate"
  wait "$child" || status=$?
  exit "$status"
}

# emulate MACHINE QEMU: has the kernel run its programs by QEMU, a static one, in the namespace of own_users.
emulate() {
  local number
  case $1 in
    x86_64) number=3e ;;
    aarch64) number=b7 ;;
  esac
  mount -t binfmt_misc binfmt_misc "$handlers" 2>/dev/null ||
    give_up "programs of $1 do not run here: that needs Linux 6.7, or a handler for them (package qemu-user-static)"
  # The header of an executable, and with F the QEMU that is there now: what runs need not find its path
  printf ':qemu-%s:M::\\x7fELF\\x02\\x01\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x02\\x00\\x%s\\x00:%s:%s:F\n' "$1" "$number" \
    '\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff' "$2" >"$handlers/register" ||
    give_up "the kernel takes no handler for programs of $1"
}

# wanted_tools ARCH: what makes a root file system and runs its programs, and is missing here: packages, in the array wanted.
wanted_tools() {
  local machine
  machine=$(machine_of "$1")
  wanted=()
  command -v mmdebstrap >/dev/null || wanted+=(mmdebstrap)
  runs_here "$machine" || command -v "qemu-$machine-static" >/dev/null || wanted+=(qemu-user-static)
}

# get_wanted FOLDER: puts the packages of wanted on the PATH, from Debian's archive.
get_wanted() {
  [ ${#wanted[@]} -gt 0 ] || return 0
  debian_start "$1/apt" bookworm
  debian_unpack "$1/parts" "${wanted[@]}"
  PATH=$1/parts/usr/bin:$PATH
}

# run_mmdebstrap ARGUMENT...: as root, without what is not possible in the namespace of own_users.
run_mmdebstrap() {
  local skip=check/qemu # which asks a command of Debian's for the handler
  [ -z "${OWN_USERS:-}" ] || skip+=,chroot/mount/sys
  mmdebstrap --quiet --mode=root --skip="$skip" --aptopt='Acquire::Languages "none"' \
    --aptopt='APT::Install-Recommends "false"' --aptopt='APT::Sandbox::User ""' "$@" || give_up "mmdebstrap failed"
}
