# Takes away what a run was started with and what it said; how it ended stays. Nothing happens to one that is at work.
if [ -d "$here" ]; then
  one_by_one;
  find_run;
  sweep;
  ended=;
  if [ -z "$run" ]; then :; elif has_ended; then ended=1; elif is_held; then :; else ended=1; fi;
  if [ -n "$ended" ]; then forget_secrets; rm -f "$run/log" "$run/log.old" "$run/said"; fi;
fi;
say cleared;
