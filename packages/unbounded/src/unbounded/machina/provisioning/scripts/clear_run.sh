# Remove the files and the output of a run that has ended; its exit status stays. A run in progress is not changed.
if [ -d "$here" ]; then
  one_by_one;
  find_run;
  sweep;
  ended=;
  if [ -z "$run" ]; then :; elif has_ended; then ended=1; elif is_held; then :; else ended=1; fi;
  if [ -n "$ended" ]; then forget_secrets; rm -f "$run/log" "$run/log.old" "$run/said"; fi;
fi;
say cleared;
