# One run, in a process of its own on the host: run.sh [locked]. install.sh, its environment and config.json are beside it.
cd "${0%/*}" || exit 1
umask 077
export PATH="$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
if [ "${1:-}" != locked ]; then
  exec 8>>lock
  flock -w 20 8 || exit 0 # it is in progress already
fi
[ ! -s exit ] || exit 0

printf '%-8s\n' '' >exit # reserves space for its end, as the disk may be full by then
read -r boot </proc/sys/kernel/random/boot_id
read -r up _ </proc/uptime
IFS='=' read -r _ limit <environment # its first line
printf '%s %s %s\n' "$boot" "${up%%.*}" "$limit" >started

KEPT=524288 # bytes, of each of two files
MOST=4096   # of a line

# keep: store the end of the input, in lines of limited length.
keep() {
  local line size=0
  exec 3>>log || exec 3>/dev/null
  while IFS= read -r -n "$MOST" line || [ -n "$line" ]; do
    printf '%s\n' "$line" >&3
    size=$((size + ${#line} + 1))
    if [ "$size" -ge "$KEPT" ]; then
      mv log log.old
      exec 3>>log || exec 3>/dev/null
      size=0
    fi
  done
}

forget_secrets() {
  rm -f config.json environment install.sh run.sh uninstall.sh said whole "$@"
}

child=
stopped=
trap 'stopped=1; [ -z "$child" ] || kill -TERM "$child" 2>/dev/null' TERM INT HUP
trap forget_secrets EXIT

coproc KEEPER {
  exec 8>&- 2>/dev/null # what holds on to its output does not hold the lock
  LC_ALL=C
  keep
}
exec 7>&"${KEEPER[1]}" 6<&"${KEEPER[0]}"
eval "exec ${KEEPER[1]}>&- ${KEEPER[0]}<&-"
(
  . ./environment
  export UNBOUNDED_AGENT_CONFIG_FILE="$PWD/config.json"
  exec timeout -k 20 "$limit" bash "$PWD/install.sh" </dev/null
) >&7 2>&1 7>&- 6<&- &
child=$!
exec 7>&-
[ -z "$stopped" ] || kill -TERM "$child" 2>/dev/null
while :; do
  wait "$child"
  status=$?
  [ "$status" -gt 128 ] && kill -0 "$child" 2>/dev/null || break
done

# 137: it was killed, as it did not end on SIGTERM. Before the limit the kernel has killed it, out of memory.
[ "$status" != 137 ] || [ "$SECONDS" -lt "$limit" ] || status=124

# Its output is complete before its end is written; but a process left behind may keep the output open.
read -r -t 3 -u 6

said=()
[ "$status" != 0 ] || said=(log log.old)
forget_secrets "${said[@]}"
trap - EXIT
[ -z "$stopped" ] || exit 1 # it was stopped, or the host shuts down: it has not ended by itself
printf '%-8s\n' "$status" 1<>exit
