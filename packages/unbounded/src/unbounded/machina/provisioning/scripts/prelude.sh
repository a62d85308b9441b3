# The beginning of each command on a host. $1: the folder of a Machine, $2: the name of a run.
#
# These files become one line of a login shell that may be any, and each command is public on its host: so there is no
# secret in them, no single quote, backslash or exclamation mark, and each line can stand before the next with a space.
# Programs are called where the shell cannot do it: with a hundred hosts at once on one system, as in tests, each counts.
#
#   turn                 held by the command that is at work on this host
#   FOLDER/new-PID-BOOT/ what is being sent, by the shell of that pid in that boot
#   FOLDER/run-ATTEMPT/  one run; the next one takes its place. Of installations one runs at a time, of all folders
#     config.json environment install.sh run.sh   taken away when it ends
#     log log.old   what it says
#     started       boot id, seconds since boot, seconds that it may take
#     exit          its status, when it has ended; spaces before
#     lock          held by the run and all that it has started
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin;
umask 077;
top=${UNBOUNDED_INSTALL_DIR:-/var/lib/unbounded/install};
here=$top/$1;
say() { echo "unbounded-install: $*"; };

# one_by_one: nobody else begins, looks or clears until this shell ends, whichever Machine it is for.
one_by_one() {
  exec 9>>"$top/turn" && flock -w 20 9 || { echo "$top is held by somebody else" >&2; exit 1; };
};

read_boot() { read -r this </proc/sys/kernel/random/boot_id; };

# is_coming: whether the shell that unpacks into $1 is there. In another boot somebody else may have its pid.
is_coming() {
  by=${1##*/new-};
  [ "${by#*-}" = "$this" ] && [ -d "/proc/${by%%-*}" ];
};

# sweep: takes away what shells that are gone have left, and what is secret in it.
sweep() {
  read_boot;
  for each in "$here"/new-*; do
    if [ -e "$each" ]; then is_coming "$each" || rm -rf "$each"; fi;
  done;
};

# find_run: $run is the folder of the run that there is; else empty.
find_run() {
  run=;
  for each in "$here"/run-*; do [ -d "$each" ] && run=$each; done;
  name=${run##*/run-};
};

# has_ended: $status is how.
has_ended() {
  status=;
  [ -s "$run/exit" ] && read -r status rest <"$run/exit";
  [ -n "$status" ];
};

# is_held: somebody is at work on the run, $seconds since it began. It lets go after its end is written. What holds the
# lock for longer than a run can take is something that it has left behind.
is_held() {
  boot=;
  up=;
  most=;
  [ -s "$run/started" ] && read -r boot up most <"$run/started";
  read -r now rest </proc/uptime;
  now=${now%%.*};
  seconds=$((now - ${up:-$now}));
  [ -e "$run/lock" ] || return 1;
  if { flock -n 7; } 7<"$run/lock"; then return 1; fi;
  [ "$seconds" -le "$((${most:-0} + 120))" ];
};

# find_other: $other is the run of another folder that is at work on this host, $seconds since it began; else empty.
find_other() {
  other=;
  for each in "$top"/*/run-*; do
    [ "${each%/*}" = "$here" ] && continue;
    run=$each;
    if has_ended; then continue; fi;
    if is_held; then other=$each; break; fi;
  done;
};

# others_work: whose it is, and nothing of what it says: its secrets are not known to whoever reads this.
others_work() {
  whose=${other%/run-*};
  whose=${whose##*/};
  if [ "$whose" = reset ]; then whose="a reset"; else whose="an installation for another Machine (UID $whose)"; fi;
  echo "$whose has been at work on this host for $((seconds / 60)) min; it is waited for";
};

forget_secrets() {
  rm -f "$run/config.json" "$run/environment" "$run/install.sh" "$run/run.sh" "$run/uninstall.sh" "$run/whole";
};

# report: what is to be said about the run that there is.
report() {
  find_run;
  if [ -z "$run" ]; then say none; return; fi;
  held=;
  if has_ended; then :; elif is_held; then held=1; fi;
  if has_ended; then
    say finished "$name" "$status";
    [ -e "$run/log" ] && cat "$run/log.old" "$run/log" 2>/dev/null | tail -c 16384;
    return 0;
  fi;
  read_boot;
  if [ -n "$held" ]; then
    say running "$name" "$seconds";
    tail -n 1 "$run/log" 2>/dev/null | head -c 4096;
    return 0;
  fi;
  forget_secrets;
  if [ -z "$boot" ]; then say interrupted "$name" unstarted;
  elif [ "$boot" = "$this" ]; then say interrupted "$name" killed;
  else say interrupted "$name" restarted; fi;
};
