# Print the last line of output of the run each second, with a + before it. While a run of another folder is in
# progress, report that first. A point from time to time shows that the connection works. The report of the run is last.
last=;
quiet=0;
tell() {
  if [ "$1" = "$last" ]; then
    quiet=$((quiet + 1));
  else
    quiet=0;
    last=$1;
    echo "+$1";
  fi;
  [ "$((quiet % 10))" = 9 ] && { echo . || exit 1; };
};
find_run;
held=;
if [ -z "$run" ]; then :; elif has_ended; then :; elif is_held; then held=1; fi;
other=;
[ -n "$held" ] || find_other;
while [ -n "$other" ]; do
  tell "$(others_work)";
  { flock -w 1 7; } 7<"$other/lock" && break;
  find_other;
done;
find_run;
while [ -d "$run" ]; do
  tell "$(tail -n 1 "$run/log" 2>/dev/null | head -c 2000)";
  { flock -w 1 7; } 7<"$run/lock" && break;
  has_ended && break;
done;
one_by_one;
report;
