"""Snapshot of a host, to compare two moments: files, units, network, mounts, parameters."""

from __future__ import annotations

import difflib
from typing import Final

from tests.support.hosts.host import Host

_PRUNED: Final = (
    "/proc",
    "/sys",
    "/dev",
    "/run",
    "/tmp",
    "/var/tmp",
    "/var/log",
    "/var/cache",
    "/var/lib/systemd/random-seed",
    "/var/lib/systemd/timers",
    "/var/lib/dbus",
    "/opt",  # where an installer unpacked the agent
    "/etc/lab",  # its configuration
)
_PRUNE: Final = " -o ".join(f"-path {path}" for path in _PRUNED)
# Output is sorted here; values that change by themselves from one second to the next are omitted.
SECTIONS: Final = {
    "files": rf"find / -xdev \( {_PRUNE} \) -prune -o -printf '%p %y %m %U:%G %l\n'",
    "contents": "find /etc /usr/local /var/lib -xdev \\( -path /etc/lab -o -path /var/lib/systemd \\) -prune "
    "-o -type f -print0 | xargs -0 sha256sum",
    "machines": "find /var/lib/machines -mindepth 1 -maxdepth 1 -printf '%p\n'",
    "unit files": "systemctl list-unit-files --no-legend --no-pager --plain | grep -v '^run-'",
    "units": "systemctl list-units --all --no-legend --no-pager --plain | grep -v '^run-' "
    "| awk '{print $1, $2, $3, $4}'",
    "links": "ip -o link show | sed 's/^[0-9]*: //; s/qlen [0-9]*//; s/ state [A-Z]*//'",
    "addresses": "ip -o address show | sed 's/^[0-9]*: //'",
    "rules": "ip -4 rule show; ip -6 rule show",
    "routes": "ip -4 route show table all; ip -6 route show table all",
    "packet filter": "nft list ruleset",
    "mounts": "awk '{print $5, $9, $6}' /proc/self/mountinfo | grep -v '^/run/credentials'",
    "parameters": "sysctl -a 2>/dev/null "
    "| grep -E '^(net[.](ipv4|ipv6|bridge|netfilter)|vm[.](over|panic)|kernel[.](panic|keys))' "
    "| grep -vE 'nf_conntrack_(count|buckets)|[.]stable_secret|ipfrag|ip6frag'",
    "swap": "cat /proc/swaps",
    "modules": "ls /sys/module",
    "processes": "ps -eo comm= | grep -vE '^(ps|sh|find|awk|grep|sort|kworker|systemd-run|xargs|sha256sum)'",
}


_SETTLED = "for _ in $(seq 50); do ip -6 address show tentative | grep -q inet6 || exit 0; sleep 0.1; done"


async def snapshot(host: Host) -> dict[str, list[str]]:
    """All sections, each as sorted lines. An address that was just given gets its routes a moment later."""
    await host.run("sh", "-c", _SETTLED)
    seen = {}
    for name, command in SECTIONS.items():
        said = await host.run("sh", "-c", f"{command} || true")
        seen[name] = sorted(line.rstrip() for line in said.stdout.splitlines() if line.strip())
    return seen


def difference(before: dict[str, list[str]], after: dict[str, list[str]]) -> dict[str, list[str]]:
    """By section, the lines that went (-) and came (+); sections that are equal are left out."""
    found = {}
    for name, lines in before.items():
        diff = difflib.unified_diff(lines, after[name], n=0, lineterm="")
        changed = [line for line in diff if not line.startswith(("---", "+++", "@@"))]
        if changed:
            found[name] = changed
    return found
