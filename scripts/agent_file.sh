#!/bin/sh
# The agent in one file: this head, and behind its last line the release as a tar.gz. It unpacks itself once, into a
# folder that is named after the digest of what it holds, and runs from there with the arguments it was given.
# The folder is below /usr/local/lib/unbounded-agent/unpacked for root, below ~/.cache/unbounded-agent for others, and
# below unbounded-agent/ in UNBOUNDED_AGENT_UNPACK_DIR where that is set, which may hold other things as well. /tmp is
# not used: it may be mounted noexec.
set -eu
digest=@DIGEST@
lines=@LINES@

give_up() {
  echo "unbounded-agent: $1" >&2
  exit 1
}

if [ -n "${UNBOUNDED_AGENT_UNPACK_DIR:-}" ]; then
  place=${UNBOUNDED_AGENT_UNPACK_DIR%/}/unbounded-agent
elif [ "$(id -u)" = 0 ]; then
  place=/usr/local/lib/unbounded-agent/unpacked
else
  place=${XDG_CACHE_HOME:-${HOME:?no home directory; set UNBOUNDED_AGENT_UNPACK_DIR}/.cache}/unbounded-agent
fi
release=$place/$digest

# is_ours NAME: a release, which is named after its digest, or what an unpacking left that was cut off.
is_ours() {
  case "$1" in
    .unfinished-*[!0-9]* | .unfinished-) return 1 ;;
    .unfinished-*) [ ! -d "/proc/${1#.unfinished-}" ] ;;
    *[!0-9a-f]*) return 1 ;;
    *) [ ${#1} = 64 ] && [ "$1" != "$digest" ] ;;
  esac
}

# forget_unused: earlier releases that nothing runs from. Whatever else lies there is left alone.
forget_unused() {
  running=$(readlink /proc/[0-9]*/exe 2>/dev/null || :)
  for one in "$place"/* "$place"/.unfinished-*; do
    is_ours "${one##*/}" && [ -d "$one" ] || continue
    case "$running" in
      *"$one/"*) ;;
      *) rm -rf "$one" ;;
    esac
  done
}

unpack() {
  mkdir -p "$place" || give_up "$place cannot be made; set UNBOUNDED_AGENT_UNPACK_DIR"
  [ -O "$place" ] || give_up "$place belongs to another user: nothing is written there"
  chmod 0700 "$place"
  forget_unused
  fresh=$place/.unfinished-$$
  rm -rf "$fresh"
  mkdir -m 0700 "$fresh"
  trap 'rm -rf "$fresh"' EXIT
  trap 'exit 143' TERM
  trap 'exit 130' INT
  tail -n "+$((lines + 1))" "$0" >"$fresh/release.tar.gz" || give_up "no space left in $place?"
  found=$(sha256sum "$fresh/release.tar.gz")
  [ "${found%% *}" = "$digest" ] || give_up "$0 is damaged: what it holds has the sha256 ${found%% *}, not $digest"
  tar -xzf "$fresh/release.tar.gz" -C "$fresh" --no-same-owner || give_up "$0 cannot be unpacked to $fresh"
  rm "$fresh/release.tar.gz"
  sync -f "$fresh" 2>/dev/null || sync
  mv -T "$fresh" "$release" 2>/dev/null || [ -d "$release" ] || give_up "$fresh cannot be renamed to $release"
  rm -rf "$fresh"
  trap - EXIT TERM INT
}

[ -x "$release/unbounded-agent/unbounded-agent" ] || unpack
for one in "$place" "$release"; do
  [ -O "$one" ] || give_up "$one belongs to another user: it is not run"
done
exec "$release/unbounded-agent/unbounded-agent" "$@"
