# Commands from this system's own Debian archive, unpacked below .venv/tools and not installed. Read by the scripts beside
# it that get them; before they call anything here they set
#   losing   what is left out where that is not possible; then it is said, and the script succeeds

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bin=$top/.venv/tools/bin
known=$top/.venv/tools/apt # what the archive has, asked for once and not by each script
fresh_min=60
me=$(basename "$0")
PATH=$bin:$PATH:/usr/sbin:/sbin

# without WHY: the end where it is not possible.
without() {
  echo "$me: $1; $losing" >&2
  exit 0
}

# debs_start: a scratch folder `work` that goes with the script, and in the array APT an apt that knows the archive.
debs_start() {
  command -v apt-get >/dev/null && command -v dpkg >/dev/null || without "there is no apt here"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  mkdir -p "$work/archives/partial" "$known/lists/partial" "$known/cache" "$bin"
  APT=(-qq -o "Dir::State::Lists=$known/lists" -o "Dir::Cache=$known/cache" -o "Dir::Cache::Archives=$work/archives"
    -o Dir::Cache::pkgcache=pkgcache.bin -o Dir::Cache::srcpkgcache=srcpkgcache.bin # images of containers have apt keep none
    -o APT::Sandbox::User= -o Debug::NoLocking=true -o Acquire::Languages=none)
  (
    flock 9 # the others wait here, and find it done
    [ -z "$(find "$known/asked" -mmin "-$fresh_min" 2>/dev/null)" ] || exit 0
    rm -f "$known/asked"
    # Without this mode an archive that cannot be reached is a success. What could be had may be all that is wanted; but
    # only what is whole is not asked for again.
    if apt-get "${APT[@]}" -o APT::Update::Error-Mode=any update; then whole=1; else whole=; fi
    apt-cache "${APT[@]}" gencaches && [ -n "$(apt-get "${APT[@]}" indextargets)" ] || exit 1
    [ -z "$whole" ] || touch "$known/asked"
  ) 9>"$known/lock" || without "apt-get update failed"
}

# debs_download PACKAGE...: these packages alone.
debs_download() {
  (cd "$work/archives" && apt-get "${APT[@]}" download "$@") || without "apt-get could not download $*"
}

# debs_download_whole PACKAGE...: with all that they need and this system does not have.
debs_download_whole() {
  apt-get "${APT[@]}" install --download-only --yes --no-install-recommends "$@" >/dev/null ||
    without "apt-get could not download $*"
}

# debs_closure PACKAGE...: the names of these and of all that they need but libc, which has to fit the loader of programs.
# What this system has installed is not left out: a program looks for its modules and data beside itself.
debs_closure() {
  : >"$work/nothing"
  apt-get "${APT[@]}" -o "Dir::State::status=$work/nothing" install --simulate --no-install-recommends "$@" |
    awk '$1 == "Inst" && $2 !~ /-dev$/ && $2 !~ /^libc6/ { print $2 }'
}

# on_system NAME: whether this system has a command of its own.
on_system() {
  local folder
  while read -r -d : folder; do
    [ "$folder" = "$bin" ] || [ ! -x "$folder/$1" ] || return 0
  done <<<"$PATH:"
  return 1
}

# debs_unpack TREE: all that was downloaded, in place of what was there.
debs_unpack() {
  local package
  rm -rf "$1" "$1.new"
  mkdir -p "$1.new"
  for package in "$work"/archives/*.deb; do
    dpkg -x "$package" "$1.new"
  done
  mv "$1.new" "$1"
}

# libraries_of TREE: the folders of its libraries, for LD_LIBRARY_PATH; libc stays the system's own, as it has to fit the
# loader of programs.
libraries_of() {
  find "$1" -name '*.so*' ! -name 'libc.so*' -printf '%h\n' | sort -u | paste -sd:
}

# wrap NAME PROGRAM LIBRARIES: the command NAME, which runs PROGRAM with its own libraries.
wrap() {
  printf '#!/bin/sh\nexport LD_LIBRARY_PATH="%s${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"\nexec "%s" "$@"\n' "$3" "$2" >"$bin/$1.new"
  chmod 0755 "$bin/$1.new"
  mv "$bin/$1.new" "$bin/$1"
  echo "$me: $1 is now in $bin"
}
