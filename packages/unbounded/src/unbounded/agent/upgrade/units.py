"""The daemon's unit, the unit that rolls back to the last good release, and the timer that ends a trial."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from unbounded.agent.layout import DAEMON_UNIT, RECOVERY_TIMER, RECOVERY_UNIT, Layout
from unbounded.agent.ports import Units
from unbounded.agent.upgrade.recovery_script import recovery_script
from unbounded.kube.durable import link_durably, remove_durably, sync_directory, write_durably

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


def unit_files(layout: Layout) -> Mapping[Path, tuple[str, int]]:
    """Return the permanent files: path, content and mode."""
    places = {
        "config": layout.config,
        "recovery": RECOVERY_UNIT,
        "script": layout.recovery_script,
        "current": layout.current,
        "watchdog_s": WATCHDOG_S,
    }
    return {
        layout.recovery_script: (recovery_script(layout), 0o755),
        layout.units / RECOVERY_UNIT: (_RECOVERY.format(**places), 0o644),
        layout.units / DAEMON_UNIT: (_DAEMON.format(**places), 0o644),
    }


def units_present(layout: Layout) -> bool:
    """Return whether all files have this version's content."""
    return all(_holds(path, text) for path, (text, _mode) in unit_files(layout).items())


def install_units(layout: Layout) -> bool:
    """Write the files that differ; return whether any did, so that a daemon-reload is due. The caller enables and
    starts.
    """
    changed = False
    for path, (text, mode) in unit_files(layout).items():
        if not _holds(path, text):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(path, text.encode(), mode=mode)
            changed = True
    return changed


def remove_units(layout: Layout) -> bool:
    """Remove all files and their links; return whether there were any, so that a daemon-reload is due."""
    links = [layout.units / folder / unit for unit, folder in _STARTED_BY.items()]
    files = [layout.units / RECOVERY_TIMER, *reversed(list(unit_files(layout)))]
    removed = [path for path in (*links, *files) if _remove(path)]
    return bool(removed)


def _remove(path: Path) -> bool:
    return path.parent.is_dir() and remove_durably(path)


def _holds(path: Path, text: str) -> bool:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text() == text
    return False


async def arm(layout: Layout, units: Units, *, seconds: int) -> None:
    """Start the timer of the rollback, which also survives a loss of power; `disarm` stops it."""
    _write_timer(layout, seconds)
    await units.reload()
    await units.restart(RECOVERY_TIMER)


def _write_timer(layout: Layout, seconds: int) -> None:
    timer, link = _timer_files(layout)
    link.parent.mkdir(parents=True, exist_ok=True)
    sync_directory(layout.units)
    write_durably(timer, _TIMER.format(seconds=seconds).encode(), mode=0o644)
    link_durably(link, f"../{RECOVERY_TIMER}")


async def disarm(layout: Layout, units: Units) -> None:
    """Stop the timer of the rollback, if it is armed."""
    if is_armed(layout):
        await units.stop(RECOVERY_TIMER)
        for path in reversed(_timer_files(layout)):
            _remove(path)
        await units.reload()


def is_armed(layout: Layout) -> bool:
    """Return whether the timer exists, or its remains after a loss of power."""
    return any(os.path.lexists(path) for path in _timer_files(layout))


def _timer_files(layout: Layout) -> tuple[Path, Path]:
    return layout.units / RECOVERY_TIMER, layout.units / _STARTED_BY[RECOVERY_TIMER] / RECOVERY_TIMER
