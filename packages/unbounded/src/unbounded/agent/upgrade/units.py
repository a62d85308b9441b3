"""The daemon's unit, the unit that rolls back to the last good release, and the timer that ends a trial.

The script of the rollback needs only sh, coreutils and systemctl, nothing of the agent. It reads the links and no state
file of the agent, so it works with every version that wrote those files.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from unbounded.agent.interfaces import Units
from unbounded.agent.paths import DAEMON_UNIT, RECOVERY_TIMER, RECOVERY_UNIT, HostPaths
from unbounded.kube.durable_files import link_durably, remove_durably, sync_directory, write_durably

WATCHDOG_S: Final = 30
_STARTED_BY: Final = {RECOVERY_TIMER: "timers.target.wants", DAEMON_UNIT: "multi-user.target.wants"}

# A crash loop has to reach the start limit for OnFailure= to take effect: four starts within 120 s, 2 s apart. systemd
# resolves the executable at each start, after ExecStartPre=, which may have pointed the link back.
_DAEMON: Final = """\
# Written by unbounded-agent; changes are overwritten.
[Unit]
Description=Agent of Unbounded on this host
Wants=network-online.target machines.target
After=network-online.target machines.target
ConditionPathExists={config}
StartLimitIntervalSec=120
StartLimitBurst=4
OnFailure={recovery}

[Service]
Type=notify
NotifyAccess=all
ExecStartPre=-{script} start
ExecStart={current} daemon
ExecStopPost=-{script} stopped
Restart=always
RestartSec=2
TimeoutStartSec=120
TimeoutStopSec=20
WatchdogSec={watchdog_s}

[Install]
WantedBy=multi-user.target
"""

_RECOVERY: Final = """\
# Written by unbounded-agent; changes are overwritten.
[Unit]
Description=Brings the last good unbounded-agent back
StartLimitIntervalSec=0

[Service]
Type=oneshot
ExecStart={script} recover
TimeoutStartSec=300
Restart=on-failure
RestartSec=10
"""

_TIMER: Final = """\
# Written by unbounded-agent while a release is on trial.
[Unit]
Description=Ends the trial of an unbounded-agent that is not proven in time

[Timer]
OnActiveSec={seconds}
AccuracySec=1s

[Install]
WantedBy=timers.target
"""


def unit_files(paths: HostPaths) -> Mapping[Path, tuple[str, int]]:
    """Return the permanent files: path, content and mode."""
    places = {
        "config": paths.config,
        "recovery": RECOVERY_UNIT,
        "script": paths.recovery_script,
        "current": paths.current,
        "watchdog_s": WATCHDOG_S,
    }
    return {
        paths.recovery_script: (recovery_script(paths), 0o755),
        paths.units / RECOVERY_UNIT: (_RECOVERY.format(**places), 0o644),
        paths.units / DAEMON_UNIT: (_DAEMON.format(**places), 0o644),
    }


def units_present(paths: HostPaths) -> bool:
    """Return whether all files have this version's content."""
    return all(_holds(path, text) for path, (text, _mode) in unit_files(paths).items())


def install_units(paths: HostPaths) -> bool:
    """Write the files that differ; return whether any did, so that a daemon-reload is due. The caller enables and
    starts.
    """
    changed = False
    for path, (text, mode) in unit_files(paths).items():
        if not _holds(path, text):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(path, text.encode(), mode=mode)
            changed = True
    return changed


def remove_units(paths: HostPaths) -> bool:
    """Remove all files and their links; return whether there were any, so that a daemon-reload is due."""
    links = [paths.units / folder / unit for unit, folder in _STARTED_BY.items()]
    files = [paths.units / RECOVERY_TIMER, *reversed(list(unit_files(paths)))]
    removed = [path for path in (*links, *files) if _remove(path)]
    return bool(removed)


def _remove(path: Path) -> bool:
    return path.parent.is_dir() and remove_durably(path)


def _holds(path: Path, text: str) -> bool:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text() == text
    return False


async def arm(paths: HostPaths, units: Units, *, seconds: int) -> None:
    """Start the timer of the rollback, which also survives a loss of power; `disarm` stops it."""
    _write_timer(paths, seconds)
    await units.reload()
    await units.restart(RECOVERY_TIMER)


def _write_timer(paths: HostPaths, seconds: int) -> None:
    timer, link = _timer_files(paths)
    link.parent.mkdir(parents=True, exist_ok=True)
    sync_directory(paths.units)
    write_durably(timer, _TIMER.format(seconds=seconds).encode(), mode=0o644)
    link_durably(link, f"../{RECOVERY_TIMER}")


async def disarm(paths: HostPaths, units: Units) -> None:
    """Stop the timer of the rollback, if it is armed."""
    if is_armed(paths):
        await units.stop(RECOVERY_TIMER)
        for path in reversed(_timer_files(paths)):
            _remove(path)
        await units.reload()


def is_armed(paths: HostPaths) -> bool:
    """Return whether the timer exists, or its remains after a loss of power."""
    return any(os.path.lexists(path) for path in _timer_files(paths))


def _timer_files(paths: HostPaths) -> tuple[Path, Path]:
    return paths.units / RECOVERY_TIMER, paths.units / _STARTED_BY[RECOVERY_TIMER] / RECOVERY_TIMER


MOST_STARTS: Final = 5  # of a release on trial: the limit for reboots and slow crashes
SIGNAL_FORMAT: Final = 1


def recovery_script(paths: HostPaths) -> str:
    """Return the script's text for the paths of a host."""
    places = {
        "current": paths.current,
        "last_good": paths.last_good,
        "signal": paths.upgrade_signal,
        "notes": paths.upgrade_notes,
        "lock": paths.release_lock,
        "daemon": DAEMON_UNIT,
        "timer": RECOVERY_TIMER,
        "most": MOST_STARTS,
        "format": SIGNAL_FORMAT,
    }
    assigned = "\n".join(f"{name}={shlex.quote(str(value))}" for name, value in places.items())
    return _SCRIPT.replace("@places@", assigned)


_SCRIPT: Final = r"""#!/bin/sh
# Brings the last good unbounded-agent back. Written by unbounded-agent; changes are overwritten.
#
#   start     before each start of the daemon: counts the starts of a release on trial
#   stopped   after each stop: notes why the daemon ended
#   recover   the recovery unit: the daemon failed, or its trial took too long
#
# A release is on trial as long as "current" and "last-good" are different links.
set -u
umask 077
LC_ALL=C
PATH=$PATH:/usr/sbin:/usr/bin:/sbin:/bin
export LC_ALL PATH

@places@
# Seconds between tries: systemd may be busy, and a daemon that fails for a reason outside has to wait for that.
tries=${UNBOUNDED_AGENT_RECOVERY_TRIES:-0 5 15 30 60}
pause=${UNBOUNDED_AGENT_RECOVERY_PAUSE:-30}

on_trial() {
    used=$(readlink "$current") || used=
    good=$(readlink "$last_good") || return 1
    [ "$used" != "$good" ] && [ -x "$last_good" ]
}

lock() {
    mkdir -p "${lock%/*}"
    exec 9>"$lock" && flock -w 10 9 # a process that was stopped with the lock must not block this
}

unlock() {
    exec 9>&-
}

synced() { # not every sync takes names
    sync "$1" 2>/dev/null || sync
}

put() { # a file, one line: whole or not at all, and for good
    fresh=$1.fresh
    printf '%s\n' "$2" >"$fresh" && synced "$fresh" && mv -f "$fresh" "$1" && synced "${1%/*}"
}

note() { # what a note says, fit to be said again
    [ -r "$notes/$1" ] && head -n 1 "$notes/$1" | tr -cd '[:print:]' | cut -c 1-400
}

reasons() { # how it ended last, and what troubled it
    ended=$(note ended)
    trouble=$(note trouble)
    wrote=$(note stderr)
    printf '%s' "${ended:+; it $ended}${trouble:+; $trouble}${wrote:+; it wrote last: $wrote}"
}

last_words() { # the end of what this run of the daemon wrote to stderr; credentials are hidden before it is cut
    [ -n "${INVOCATION_ID-}" ] || return
    timeout 5 journalctl --sync >/dev/null 2>&1
    timeout 5 journalctl --quiet --no-pager --output=cat --lines=100 _TRANSPORT=stdout \
        "_SYSTEMD_INVOCATION_ID=$INVOCATION_ID" 2>/dev/null | tr '\t' ' ' | tr -cd '[:print:]\n' | sed \
        -e '/^[A-Za-z0-9+/=]\{40,\}$/d' \
        -e 's/-----BEGIN.*/[hidden]/' \
        -e 's#://[^/@ ]*@#://[hidden]@#g' \
        -e 's#\(://[^? ]*\)?[^ "]*#\1?[hidden]#g' \
        -e 's/eyJ[A-Za-z0-9_-]*\.[A-Za-z0-9_.-]*/[hidden]/g' \
        -e 's/[a-z0-9]\{6\}\.[a-z0-9]\{16\}/[hidden]/g' \
        -e 's/\([Bb]earer\) [^ "]*/\1 [hidden]/g' \
        -e 's/\([Bb]asic\) [^ "]*/\1 [hidden]/g' \
        -e 's/\([Pp]assword["]\{0,1\} *[=:] *\)[^ ,}]*/\1[hidden]/g' \
        -e 's/\([Tt]oken["]\{0,1\} *[=:] *\)[^ ,}]*/\1[hidden]/g' \
        -e 's/\([Ss]ecret["]\{0,1\} *[=:] *\)[^ ,}]*/\1[hidden]/g' |
        tail -n 6 | tr -s '\n ' ' ' | tail -c 300
}

go_back() { # because of
    colour=${used%/*}
    colour=${colour##*/}
    if [ ! -e "$signal" ]; then
        mkdir -p "${signal%/*}"
        put "$signal" "$format $colour $1" # before the link: a recovered daemon is to know why
    fi
    ln -sfn "$good" "$current.fresh" && mv -fT "$current.fresh" "$current" && synced "${current%/*}"
    printf '%s\n' "unbounded-agent: back from $colour to the last good release: $1" >&2
}

start_daemon() {
    for wait in $tries; do
        sleep "$wait"
        systemctl reset-failed "$daemon" # its starts are counted anew
        systemctl restart --no-block "$daemon" && return
    done
    return 1
}

failed() {
    [ "$(systemctl show --property=ActiveState --value "$daemon")" = failed ]
}

case ${1-} in
start)
    lock
    if ! on_trial; then
        rm -f "$notes/starts"
    elif [ -e "$signal" ]; then
        go_back "its way back was cut off"
    else
        starts=$(note starts)
        case $starts in '' | *[!0-9]*) starts=0 ;; esac
        starts=$((starts + 1))
        mkdir -p "$notes"
        put "$notes/starts" "$starts"
        if [ "$starts" -eq 1 ]; then # the time runs from here, whatever happened between arming and switching
            systemctl restart --no-block "$timer" || :
            rm -f "$notes/stderr"
        fi
        if [ "$starts" -gt "$most" ]; then
            go_back "it was started $most times without being proven$(reasons)"
        fi
    fi
    ;;
stopped)
    if on_trial && [ -e "$notes/starts" ]; then
        case ${SERVICE_RESULT-} in
        success | exit-code) words="ended with status ${EXIT_STATUS-}" ;;
        signal | core-dump) words="was killed by SIG${EXIT_STATUS-}" ;;
        watchdog) words='hung: the watchdog killed it' ;;
        timeout) words='was not ready in time' ;;
        *) words="ended with ${SERVICE_RESULT-}" ;;
        esac
        put "$notes/ended" "$words"
        put "$notes/stderr" "$(last_words)"
    fi
    ;;
recover)
    lock
    if on_trial; then
        if failed; then
            go_back "it failed again and again$(reasons)"
        else
            go_back "it was not proven in time$(reasons)"
        fi
        unlock
        start_daemon
    elif failed; then # there is nothing to go back to, and the host must not stay without an agent
        unlock
        sleep "$pause"
        start_daemon
    fi
    ;;
*)
    echo "usage: $0 start|stopped|recover" >&2
    exit 2
    ;;
esac
"""
