# Print the state of the run of a Machine, and the last $2 lines of its output. With "follow" as $3, also what comes until
# the end of a run in progress. A successful run keeps no output.
[ -d "$here" ] || { say none; exit 0; };
find_run;
[ -n "$run" ] || { say none; exit 0; };
tell_state() {
  held=;
  if has_ended; then say finished "$name" "$status";
  elif is_held; then held=1; say running "$name" "$seconds";
  else say interrupted "$name"; fi;
};
size_of_log() { size=0; [ -e "$run/log" ] && size=$(wc -c <"$run/log"); };
tell_state;
if [ -z "$held" ] || [ "$3" = once ]; then
  cat "$run/log.old" "$run/log" 2>/dev/null | tail -n "$2";
  exit 0;
fi;
size_of_log;
head -c "$size" "$run/log" 2>/dev/null | tail -n "$2";
while [ -n "$held" ]; do
  sleep 1;
  held=;
  if has_ended; then :; elif is_held; then held=1; fi;
  at=$size;
  size_of_log;
  [ "$size" -ge "$at" ] || at=0;
  tail -c "+$((at + 1))" "$run/log" 2>/dev/null | head -c "$((size - at))";
done;
tell_state;
