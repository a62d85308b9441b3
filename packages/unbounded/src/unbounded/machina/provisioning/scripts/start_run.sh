# Unpack the archive on stdin and start it as a run. A run of the same name that has ended, or one of any Machine in
# progress, is reported instead.
# $3: the seconds to wait for its end.
for tool in bash tar flock setsid timeout tail; do
  command -v "$tool" >/dev/null || { echo "$tool is not installed on this host" >&2; exit 1; };
done;
umask 022;
[ -d "$top" ] || mkdir -p "$top" || exit 1;
umask 077;
read_boot;
new=$here/new-$$-$this;
[ -e "$new" ] && rm -rf "$new";
tidy() { rm -rf "$new"; };
trap tidy EXIT;
trap "exit 1" HUP INT TERM PIPE;
mkdir -p "$new" || exit 1;
timeout 120 tar -xomf - -C "$new" || exit 1;
[ -f "$new/whole" ] || { echo "what was sent did not arrive whole" >&2; exit 1; };
one_by_one;
find_run;
if [ -n "$run" ]; then
  if has_ended; then
    if [ "$name" = "$2" ]; then report; exit 0; fi;
  elif is_held; then
    report;
    exit 0;
  fi;
fi;
other=;
# A reset decides itself which runs it stops.
[ "$1" = reset ] || find_other;
if [ -n "$other" ]; then
  say running "${other##*/run-}" "$seconds";
  others_work;
  exit 0;
fi;
for each in "$here"/run-*; do [ -e "$each" ] && rm -rf "$each"; done;
sweep;
run=$here/run-$2;
mv "$new" "$run" || exit 1;
trap - EXIT;
cd "$run" || exit 1;

# In a unit of its own with systemd: processes of a login session may end with it.
unit=unbounded-install-$2;
if [ -d /run/systemd/system ] && systemd-run --quiet --collect --unit="$unit" /usr/bin/env bash "$run/run.sh" >/dev/null 2>said; then
  tries=0;
  until [ -s started ] || [ "$tries" -ge 100 ]; do tries=$((tries + 1)); sleep 0.1; done;
else
  exec 8>>lock;
  if flock -n 8; then
    setsid bash "$run/run.sh" locked </dev/null >/dev/null 2>&1 9>&- &
  fi;
  exec 8>&-;
fi;
exec 9>&-;
# From here on nothing ends this shell before its report; an exec that cannot open its file would.
[ "$3" = 0 ] || { flock -w "$3" 7; } 7<lock;
report;
