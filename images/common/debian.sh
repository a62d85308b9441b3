# Getting Debian packages without installing them: from the archive that this system uses, or from DEBIAN_ARCHIVE (and
# DEBIAN_SECURITY_ARCHIVE); DEBIAN_KEYRING is the file of their keys. Callers have set -euo pipefail, and define give_up.

# use_debian, use_ubuntu ARCH: which packages the functions below get. For Ubuntu the variables are UBUNTU_ARCHIVE and so
# on; where neither they nor this system name an archive, it is Ubuntu's own.
use_debian() {
  distribution=Debian components=main public='' public_security=''
  keyring=${DEBIAN_KEYRING:-/usr/share/keyrings/debian-archive-keyring.gpg} keyring_package=debian-archive-keyring
}

use_ubuntu() {
  distribution=Ubuntu components="main universe"
  public=http://archive.ubuntu.com/ubuntu public_security=http://security.ubuntu.com/ubuntu
  [ "$1" = amd64 ] || public=http://ports.ubuntu.com/ubuntu-ports public_security=http://ports.ubuntu.com/ubuntu-ports
  keyring=${UBUNTU_KEYRING:-/usr/share/keyrings/ubuntu-archive-keyring.gpg} keyring_package=ubuntu-keyring
}

# get_ubuntu_keys DIR: the file of Ubuntu's keys, which systems of other distributions lack, from the package of the release
# of 24.04, whose content is pinned.
get_ubuntu_keys() {
  local package=ubuntu-keyring_2023.11.28.1_all.deb
  local sha256=36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8
  [ -z "${UBUNTU_KEYRING:-}" ] && [ ! -r "$keyring" ] || return 0
  mkdir -p "$1"
  /usr/lib/apt/apt-helper download-file "${UBUNTU_ARCHIVE:-$public}/pool/main/u/ubuntu-keyring/$package" "$1/$package" \
    "SHA256:$sha256" >&2 || give_up "$keyring is missing (package ubuntu-keyring), and $package could not be downloaded"
  dpkg -x "$1/$package" "$1"
  keyring=$1$keyring
}

use_debian

# own_mounts ARGUMENT...: starts the caller's script again with mounts of its own, which are gone with it however it ends.
own_mounts() {
  [ "${OWN_MOUNTS:-}" != "$$" ] || return 0
  unshare --mount true 2>/dev/null || return 0
  OWN_MOUNTS=$$ exec unshare --mount "$BASH" "$0" "$@"
}

# free_mb: the memory that is free here, of the system and of what a container may have (PROC and CGROUP, for tests).
free_mb() {
  local cgroup=${CGROUP:-/sys/fs/cgroup} system limit=max
  system=$(awk '/^MemAvailable/ { print int($2 / 1024) }' "${PROC:-/proc}/meminfo")
  [ ! -r "$cgroup/memory.max" ] || read -r limit <"$cgroup/memory.max"
  if [ "$limit" != max ]; then # the cache of files counts as used there, and goes when it is in the way
    limit=$(((limit - $(cat "$cgroup/memory.current") + $(awk '$1 == "inactive_file" { print $2 }' "$cgroup/memory.stat")) >> 20))
    [ "$limit" -ge "$system" ] || system=$limit
  fi
  echo "$system"
}

# in_memory FOLDER MB: makes a folder whose files are in memory, where nobody waits for the disk to sync them, if there is
# enough of it for two such builds, as another may begin at the same time; else it is one on the disk.
in_memory() {
  mkdir -p "$1"
  [ "${OWN_MOUNTS:-}" = "$$" ] || return 0
  [ "$(free_mb)" -gt $(($2 * 2)) ] || return 0
  mount -t tmpfs -o "mode=0755,size=${2}m" build "$1" 2>/dev/null || true
}

# forget FOLDER: takes it away, in memory or not, also while a file in it is open.
forget() {
  umount --lazy "$1" 2>/dev/null || true
  rm -rf "$1"
}

# system_archives [OPTION...]: where this system's apt has packages from: lines of origin, component and address.
system_archives() {
  apt-get "$@" indextargets --format '$(ORIGIN) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages'
}

# asked_archives DIR: the same of a system that keeps no lists, as images of containers do; they are got into DIR.
asked_archives() {
  local own=(-qq -o "Dir::State::Lists=$1/lists" -o "Dir::Cache=$1/cache"
    -o APT::Sandbox::User= -o Debug::NoLocking=true -o Acquire::Languages=none)
  mkdir -p "$1/lists/partial" "$1/cache/archives/partial"
  apt-get "${own[@]}" update >&2 || true # one of several archives may be enough
  system_archives "${own[@]}"
}

# archive_of ARCHIVES SECURITY: the distribution's own among them; SECURITY chooses the archive of security updates.
archive_of() {
  awk -v security="$2" -v origin="^$distribution" \
    '$1 ~ origin && $2 == "main" && ($3 ~ /security/) == security { print $3; exit }' <<<"$1"
}

# debian_sources SUITE DIR: lines for a sources.list; DIR is for what has to be asked for.
debian_sources() {
  local archives name=${distribution^^}_ARCHIVE name_security=${distribution^^}_SECURITY_ARCHIVE
  local main=${!name:-} security=${!name_security:-}
  [ -r "$keyring" ] || give_up "$keyring is missing (package $keyring_package)"
  archives=$(system_archives)
  [ -n "$main$archives" ] || archives=$(asked_archives "$2")
  [ -n "$main" ] || main=$(archive_of "$archives" 0)
  [ -n "$security" ] || security=$(archive_of "$archives" 1)
  [ -n "$main" ] || main=$public security=${security:-$public_security}
  [ -n "$main" ] || give_up "this system has no $distribution archive; name one in $name"
  echo "deb [signed-by=$keyring] $main $1 $components"
  [ -z "$security" ] || echo "deb [signed-by=$keyring] $security $1-security $components"
}

# debian_start DIR SUITE [ARCH]: apt options in the array APT, for an apt that knows only that suite and architecture, and
# keeps all it has in DIR.
debian_start() {
  mkdir -p "$1/lists/partial" "$1/cache/archives/partial"
  : >"$1/status" # what is installed here does not matter
  debian_sources "$2" "$1/system" >"$1/sources.list"
  APT=(-qq
    -o "Dir::Etc::SourceList=$1/sources.list" -o Dir::Etc::SourceParts=-
    -o "Dir::State::Lists=$1/lists" -o "Dir::Cache=$1/cache" -o "Dir::State::status=$1/status"
    -o Dir::Cache::pkgcache=pkgcache.bin -o Dir::Cache::srcpkgcache=srcpkgcache.bin # images of containers have apt keep none
    -o APT::Sandbox::User= -o Debug::NoLocking=true -o 'Acquire::Languages=none'
    -o APT::Update::Error-Mode=any) # else an archive that cannot be reached is a success
  [ -z "${3:-}" ] || APT+=(-o "APT::Architecture=$3" -o "APT::Architectures=$3")
  apt-get "${APT[@]}" update || give_up "apt-get update failed"
}

# debian_unpack ROOT PACKAGE...: the packages themselves, without what they depend on.
debian_unpack() {
  local root=$1 work
  shift
  work=$(mktemp -d)
  (cd "$work" && apt-get "${APT[@]}" download "$@") || give_up "apt-get could not download $*"
  mkdir -p "$root"
  for package in "$work"/*.deb; do
    dpkg -x "$package" "$root"
  done
  rm -rf "$work"
}

# depends_on PACKAGE: the first package that it depends on, which for a kernel is the kernel.
depends_on() {
  apt-cache "${APT[@]}" depends "$1" | awk '/Depends:/ { print $2; exit }'
}
