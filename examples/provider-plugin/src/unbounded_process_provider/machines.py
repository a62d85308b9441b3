"""Machines that are processes. Each is a folder; what runs in it is known by its pid and when that was started.

They belong to nobody: who started them may end, and another one goes on with them.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

COMMAND = 'echo $$ > "$1/pid.new" && mv "$1/pid.new" "$1/pid" && exec sleep infinity'
ENDS_WITHIN_S = 5.0


@dataclass(frozen=True)
class Record:
    """What is written down of a machine.

    Args:
        made_for: the UID of the operation that it was made for; empty for one that a user has made.
        replaces: the path of the machine whose place it takes.
        pid, started: of its process; 0 while it is off. A pid alone may be another one's by now.
    """

    made_for: str = ""
    replaces: str = ""
    boots: int = 0
    pid: int = 0
    started: int = 0


def make(path: Path, record: Record, user_data: str = "") -> None:
    """A machine that is off; nothing happens where there is one. It is there as a whole or not at all."""
    if path.exists():
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700, parents=True)
    (draft / "user-data").write_text(user_data)
    (draft / "record.json").write_text(json.dumps(asdict(record)))
    try:
        draft.rename(path)
    except OSError:  # somebody else was first
        shutil.rmtree(draft, ignore_errors=True)
        if not path.exists():
            raise


def record_of(path: Path) -> Record | None:
    """None where there is no machine."""
    try:
        return Record(**json.loads((path / "record.json").read_text()))
    except FileNotFoundError:
        return None


def runs(record: Record) -> bool:
    return record.pid > 0 and _started(record.pid) == record.started


def start(path: Path) -> None:
    """Returns when it runs."""
    with _alone(path):
        _start(path)


def stop(path: Path) -> None:
    """Returns when it is off."""
    with _alone(path):
        _stop(path)


def restart(path: Path) -> int:
    """Gives back the number of its new boot."""
    with _alone(path):
        _stop(path)
        return _start(path)


def remove(path: Path) -> None:
    """Stop it, and take it away; nothing happens where there is none."""
    if not path.exists():
        return
    with _alone(path):
        _stop(path)
        gone = path.with_name(f".{path.name}.gone")
        shutil.rmtree(gone, ignore_errors=True)
        path.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def all_in(folder: Path) -> dict[Path, Record]:
    """The machines of a folder."""
    paths = folder.iterdir() if folder.is_dir() else ()
    found = {path: record_of(path) for path in paths if not path.name.startswith(".")}
    return {path: record for path, record in found.items() if record is not None}


def _start(path: Path) -> int:
    record = _known(path)
    if runs(record):
        return record.boots
    (path / "pid").unlink(missing_ok=True)
    subprocess.run(
        ["setsid", "--fork", "sh", "-c", COMMAND, "sh", str(path)],
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + ENDS_WITHIN_S
    while not (path / "pid").exists():
        if time.monotonic() > until:
            raise TimeoutError(f"{path} did not start")
        time.sleep(0.005)
    pid = int((path / "pid").read_text())
    started = replace(record, boots=record.boots + 1, pid=pid, started=_started(pid))
    _write(path, started)
    return started.boots


def _stop(path: Path) -> None:
    record = _known(path)
    until = time.monotonic() + ENDS_WITHIN_S
    while runs(record):
        os.kill(record.pid, signal.SIGTERM if time.monotonic() < until else signal.SIGKILL)
        time.sleep(0.005)
    _write(path, replace(record, pid=0, started=0))


def _known(path: Path) -> Record:
    record = record_of(path)
    if record is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return record


def _write(path: Path, record: Record) -> None:
    draft = path / "record.json.new"
    draft.write_text(json.dumps(asdict(record)))
    draft.replace(path / "record.json")


def _started(pid: int) -> int:
    """When a process was started, in the kernel's ticks; 0 where there is none, or it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Nobody else changes this machine meanwhile, in whatever process."""
    with (path.parent / f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(arguments: Sequence[str]) -> int:
    """`python -m unbounded_process_provider.machines make FOLDER/NAME`, and likewise `remove`."""
    match arguments:
        case ["make", path]:
            make(Path(path), Record())
            start(Path(path))
        case ["remove", path]:
            remove(Path(path))
        case _:
            print("usage: make FOLDER/NAME | remove FOLDER/NAME", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
