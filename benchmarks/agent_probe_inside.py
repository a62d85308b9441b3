"""Probe inside a host, for python3 alone: `time COMMAND...`, `usage UNIT` or `gaps UNIT` (until SIGTERM)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

PORT = 6443
WATCHES = 3  # the most that the daemon has, each on its own connection
EVERY_S = 0.02


def pids(unit: str) -> list[int]:
    """Return the processes of a unit."""
    for folder in ("/sys/fs/cgroup/system.slice", "/sys/fs/cgroup/unified/system.slice"):
        try:
            return [int(pid) for pid in (Path(folder) / unit / "cgroup.procs").read_text().split()]
        except OSError:
            continue
    return []


def connections(of: list[int]) -> int:
    """Count the established TCP connections of processes to the API server."""
    sockets = set()
    for pid in of:
        try:
            for descriptor in os.scandir(f"/proc/{pid}/fd"):
                sockets.add(os.readlink(descriptor.path))
        except OSError:
            continue
    count = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "01" and int(fields[2].rpartition(":")[2], 16) == PORT and f"socket:[{fields[9]}]" in sockets:
            count += 1
    return count


def sent(of: list[int]) -> int:
    """Return the bytes that processes sent on their present connections."""
    output = subprocess.run(["ss", "-tniHp", f"dport = :{PORT}"], check=True, capture_output=True, text=True).stdout
    total, mine = 0, False
    for line in output.splitlines():
        if "users:" in line:
            mine = any(f"pid={pid}," in line for pid in of)
        found = re.search(r"bytes_sent:([0-9]+)", line)
        if mine and found:
            total += int(found[1])
    return total


def usage(unit: str) -> dict[str, float]:
    pss = cpu = 0.0
    of = pids(unit)
    for pid in of:
        rolled = Path(f"/proc/{pid}/smaps_rollup").read_text()
        found = re.search(r"^Pss: +([0-9]+) kB$", rolled, re.MULTILINE)
        pss += int(found[1]) if found else 0
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        cpu += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return {"pss_kib": pss, "cpu_s": cpu, "sent": float(sent(of))}


def gaps(unit: str) -> list[float]:
    """Return the length of each time with fewer connections than watches."""
    ended: list[bool] = []

    def end(_signal: int, _frame: FrameType | None) -> None:
        ended.append(True)

    signal.signal(signal.SIGTERM, end)
    enough = max(min(connections(pids(unit)), WATCHES), 1)
    print("watching", flush=True)
    found, since = [0.0], None
    while not ended:
        now = time.monotonic()
        if connections(pids(unit)) < enough:
            since = since or now
        elif since is not None:
            found.append(now - since)
            since = None
        time.sleep(EVERY_S)
    return found


def main() -> None:
    what, *rest = sys.argv[1:]
    if what == "time":
        began = time.monotonic()
        subprocess.run(rest, check=True, capture_output=True)
        print(time.monotonic() - began)
    elif what == "usage":
        print(json.dumps(usage(rest[0])))
    else:
        print(json.dumps(gaps(rest[0])))


if __name__ == "__main__":
    main()
