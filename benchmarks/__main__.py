"""Run benchmarks and write docs/benchmarks.md: `python -m benchmarks [NAME…] [--quick] [--repeat N]`."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks import (
    agent,
    apiserver,
    boot_storm,
    busy_disk,
    cli,
    cloud,
    console,
    container_cloud,
    fleet,
    hardware,
    netboot_peers,
    operations,
    recovery,
    rollouts,
    ssh,
    templates,
)
from benchmarks.frame import Limit, print_progress
from tests.support.hosts import tools as hosts

LIMITS: Final[Mapping[str, Mapping[str, Limit]]] = {
    "operations": operations.LIMITS,
    "apiserver": apiserver.LIMITS,
    "busy_disk": busy_disk.LIMITS,
    "fleet": fleet.LIMITS,
    "templates": templates.LIMITS,
    "boot_storm": boot_storm.LIMITS,
    "hardware": hardware.LIMITS,
    "agent": agent.LIMITS,
    "ssh": ssh.LIMITS,
    "cli": cli.LIMITS,
    "cloud": cloud.LIMITS,
    "recovery": recovery.LIMITS,
    "rollouts": rollouts.LIMITS,
    "container_cloud": container_cloud.LIMITS,
    "console": console.LIMITS,
}
AMOUNTS: Final[Mapping[str, str]] = {
    "operations": operations.AMOUNT,
    "apiserver": apiserver.AMOUNT,
    "busy_disk": busy_disk.AMOUNT,
    "fleet": fleet.AMOUNT,
    "templates": templates.AMOUNT,
    "boot_storm": boot_storm.AMOUNT,
    "hardware": hardware.AMOUNT,
    "agent": agent.AMOUNT,
    "ssh": ssh.AMOUNT,
    "cli": cli.AMOUNT,
    "cloud": cloud.AMOUNT,
    "recovery": recovery.AMOUNT,
    "rollouts": rollouts.AMOUNT,
    "container_cloud": container_cloud.AMOUNT,
    "console": console.AMOUNT,
}
MISSING: Final[Mapping[str, Callable[[], str | None]]] = {
    "boot_storm": netboot_peers.missing,
    "agent": hosts.missing,
    "ssh": ssh.missing,
    "cli": cli.missing,
    "console": console.missing,
}
PAGE: Final = Path(__file__).parent.parent / "docs" / "benchmarks.md"
WIDTH: Final = 120
BEGIN: Final = "<!-- benchmarks:begin -->"
END: Final = "<!-- benchmarks:end -->"
_PART: Final = re.compile(r"^`(\w+)`: .*?(?=^`\w+`: |\Z)", re.MULTILINE | re.DOTALL)  # of the page


def main() -> None:
    parser = _parser()
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in LIMITS]:
        parser.error(f"no benchmark is called {unknown[0]!r}; there are: {', '.join(LIMITS)}")
    names = [name for name in LIMITS if name in (arguments.names or LIMITS) and _possible(name)]
    found = {name: part(_run(name, quick=arguments.quick, repeat=arguments.repeat)) for name in names}
    print("\n\n".join(found.values()))
    if not arguments.quick:
        PAGE.write_text(with_parts(PAGE.read_text(), found))
        print_progress(f"written to docs/{PAGE.name}")


def _possible(name: str) -> bool:
    """Return whether the requirements of a benchmark are met; report a missing one."""
    absent = MISSING[name]() if name in MISSING else None
    if absent is not None:
        print_progress(f"benchmark {name} is skipped: it needs {absent}")
    return absent is None


def _run(name: str, *, quick: bool, repeat: int) -> dict[str, Any]:
    print_progress(f"benchmark {name}")
    options = ["--json", "--repeat", str(repeat), *(["--quick"] if quick else [])]
    command = [sys.executable, "-m", f"benchmarks.{name}", *options]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    return msgspec.json.decode(output.splitlines()[-1], type=dict[str, Any])


def part(result: Mapping[str, Any]) -> str:
    """Format the figures of one benchmark with their aims and limits, as Markdown."""
    machine, figures = result["machine"], {**result["figures"], **result["ratios"]}
    amount = AMOUNTS[result["name"]].format_map(figures)
    where = f"{machine['cpus']} CPUs ({machine['cpu']}, {machine['memory_gib']} GiB), Python {machine['python']}"
    rows = [_row(figures[key], limit, result.get("spread", {}).get(key)) for key, limit in _limits(result)]
    title = textwrap.fill(
        f"`{result['name']}`: {amount}, on {where}.", WIDTH, break_long_words=False, break_on_hyphens=False
    )
    head = [title, "", "| | measured | aim | limit |", "|---|---:|---:|---:|"]
    return "\n".join([*head, *rows])


def _limits(result: Mapping[str, Any]) -> Iterable[tuple[str, Limit]]:
    return LIMITS[result["name"]].items()


def _row(value: float, limit: Limit, spread: list[float] | None) -> str:
    apart = f" ({spread[0]:g} to {spread[1]:g})" if spread else ""
    aim = "" if limit.aim is None else f"{limit.aim:g}"
    return f"| {limit.label} | {value:g}{apart} | {aim} | {limit.bound} |"


def with_parts(page: str, found: Mapping[str, str]) -> str:
    """Return the page with the results of these benchmarks and the former ones of others; add missing markers."""
    if BEGIN not in page:
        page = f"{page.rstrip()}\n\n{BEGIN}\n{END}\n".lstrip()
    before, _, rest = page.partition(BEGIN)
    results, _, after = rest.partition(END)
    former = {each[1]: each[0].strip() for each in _PART.finditer(results)}
    parts = {name: found.get(name) or former.get(name) for name in LIMITS}
    text = "\n\n".join(one for one in parts.values() if one)
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(LIMITS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="small counts; the page stays as it is")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="report the median of N runs")
    return parser


if __name__ == "__main__":
    main()
