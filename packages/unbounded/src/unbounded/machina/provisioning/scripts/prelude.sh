# The beginning of each command on a host. $1: the folder of a Machine, $2: the name of a run.
#
# Each file becomes one line for any login shell, and the command line is public on its host. So a file contains no
# secret, no single quote, no backslash and no exclamation mark, and its lines can be joined with spaces. It calls programs
# only for what the shell cannot do: tests run a hundred hosts on one system.
#
#   turn                 lock of the command in progress on this host
#   FOLDER/new-PID-BOOT/ upload in progress, by the shell of that pid in that boot
#   FOLDER/run-ATTEMPT/  one run; the next one replaces it. One installation runs at a time, over all folders
#     config.json environment install.sh run.sh   removed when it ends
#     log log.old   its output
#     started       boot id, seconds since boot, limit in seconds
#     exit          its status after its end; spaces until then
#     lock          held by the run and the processes that it has started
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin;
umask 077;
top=${UNBOUNDED_INSTALL_DIR:-/var/lib/unbounded/install};
here=$top/$1;
say() { echo "unbounded-install: $*"; };

# one_by_one: take the lock of this host until this shell ends; commands for all Machines wait for it.
one_by_one() {
  exec 9>>"$top/turn" && flock -w 20 9 || { echo "another command holds $top" >&2; exit 1; };
};

read_boot() { read -r this </proc/sys/kernel/random/boot_id; };

# is_coming: whether the shell that unpacks into $1 still runs. After a reboot another process may have its pid.
is_coming() {
  by=${1##*/new-};
  [ "${by#*-}" = "$this" ] && [ -d "/proc/${by%%-*}" ];
};

# sweep: remove the uploads of shells that have ended, with their secrets.
sweep() {
  read_boot;
  for each in "$here"/new-*; do
    if [ -e "$each" ]; then is_coming "$each" || rm -rf "$each"; fi;
  done;
};

# find_run: set $run to the folder of the run; empty without one.
find_run() {
  run=;
  for each in "$here"/run-*; do [ -d "$each" ] && run=$each; done;
  name=${run##*/run-};
};

# has_ended: also sets $status.
has_ended() {
  status=;
  [ -s "$run/exit" ] && read -r status rest <"$run/exit";
  [ -n "$status" ];
};

# is_held: whether the run is in progress, $seconds since its start. A run releases the lock after it has written its end.
# A process that holds the lock for longer than the limit of a run was left behind by it.
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

# find_other: set $other to the run of another folder in progress on this host, and $seconds since its start; else empty.
find_other() {
  other=;
  for each in "$top"/*/run-*; do
    [ "${each%/*}" = "$here" ] && continue;
    run=$each;
    if has_ended; then continue; fi;
    if is_held; then other=$each; break; fi;
  done;
};

# others_work: print the owner of $other, and none of its output: the reader does not know which parts are secret.
others_work() {
  whose=${other%/run-*};
  whose=${whose##*/};
  if [ "$whose" = reset ]; then whose="a reset"; else whose="an installation for another Machine (UID $whose)"; fi;
  echo "$whose has been at work on this host for $((seconds / 60)) min; it is waited for";
};

forget_secrets() {
  rm -f "$run/config.json" "$run/environment" "$run/install.sh" "$run/run.sh" "$run/uninstall.sh" "$run/whole";
};

# report: print the state of the run.
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
