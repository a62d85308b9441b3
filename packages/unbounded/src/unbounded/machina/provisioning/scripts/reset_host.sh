# Remove the agent and its node from this host: by the agent itself if it works. An install in progress is stopped first.
# A host of another Machine, or one that is about to become another Machine, is not changed.
#
#   RESET_MACHINE, RESET_UID  the Machine to remove
#   UNBOUNDED_HOST_ROOT       a folder that stands for / (files alone; for tests)
export PATH="$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ANOTHER=65 # exit status: this host is another Machine; a retry does not help
here=$(cd "${UNBOUNDED_AGENT_CONFIG_FILE%/*}" && pwd -P)
top=${here%/*/*}
etc=${UNBOUNDED_HOST_ROOT:-}/etc/unbounded/agent

# named FILE KEY: print the first name under this key.
named() {
  [ ! -f "$1" ] || grep -oE "\"$2\"[[:space:]]*:[[:space:]]*\"[^\"]*\"" "$1" | head -n 1 | cut -d '"' -f 4
}

# refuse_another_machine: by the files of the agent; a damaged file names no Machine.
refuse_another_machine() {
  local name
  for name in "$(named "$etc/config.json" MachineName)" "$(named "$etc/kube1-applied-config.json" machine)" \
    "$(named "$etc/kube2-applied-config.json" machine)"; do
    [ -n "$name" ] && [ "$name" != "$RESET_MACHINE" ] || continue
    echo "this host is Machine $name"
    exit "$ANOTHER"
  done
}

is_held() { # RUN
  [ -e "$1/lock" ] && ! flock -n "$1/lock" true
}

# is_at_work RUN: a process that holds the lock after the end or beyond the limit of the run was left behind by it.
is_at_work() {
  local status='' up='' most='' now
  is_held "$1" || return 1
  [ ! -s "$1/exit" ] || read -r status _ <"$1/exit"
  [ -z "$status" ] || return 1
  [ ! -s "$1/started" ] || read -r _ up most <"$1/started"
  read -r now _ </proc/uptime
  now=${now%%.*}
  [ "$((now - ${up:-$now}))" -le "$((${most:-0} + 120))" ]
}

# refuse_beside_another: the owner of the result of an installation is known only after its end.
refuse_beside_another() {
  local run folder name
  for run in "$top"/*/run-*; do
    folder=${run%/*}
    [ "$run" != "$here" ] && [ "${folder##*/}" != "$RESET_UID" ] && is_at_work "$run" || continue
    name=$(named "$run/config.json" MachineName)
    echo "error: an installation for ${name:+Machine $name, }UID ${folder##*/}, is at work on this host"
    exit 1
  done
}

# holders RUN: print the processes that have its lock open and whose parents have not; their children end with them.
holders() {
  local fd pid parent
  for fd in /proc/[0-9]*/fd/8; do
    [ "$(readlink "$fd" 2>/dev/null)" = "$1/lock" ] || continue
    pid=${fd#/proc/}
    pid=${pid%%/*}
    parent=$(awk '/^PPid:/ {print $2}' "/proc/$pid/status" 2>/dev/null)
    [ "$(readlink "/proc/$parent/fd/8" 2>/dev/null)" = "$1/lock" ] || echo "$pid"
  done
}

stop_run() {
  local run pid
  for run in "$top/$RESET_UID"/run-*; do
    is_held "$run" || continue
    echo "stopping the installation that is at work"
    for pid in $(holders "$run"); do kill -TERM "$pid" 2>/dev/null; done
    flock -w 60 "$run/lock" true || echo "the installation does not stop"
  done
}

refuse_another_machine
refuse_beside_another
stop_run
if command -v unbounded-agent >/dev/null && timeout 60 unbounded-agent version >/dev/null 2>&1; then
  unbounded-agent reset </dev/null
  status=$?
else
  echo "no agent works on this host: removing its known files"
  bash ./uninstall.sh </dev/null
  status=$?
fi
[ "$status" != 0 ] || rm -f /usr/local/bin/unbounded-agent-install.sh /etc/systemd/system/unbounded-agent-install.service
exit "$status"
