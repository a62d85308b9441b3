"""Run all benchmarks and write what they found into the README: `python -m benchmarks [--quick] [--repeat N]`."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from tests.support.hosts import tools as hosts

from benchmarks import agent, apiserver, boot_storm, cli, fleet, netboot_peers, operations, ssh, templates
from benchmarks.frame import Limit, say

LIMITS: Final[Mapping[str, Mapping[str, Limit]]] = {
    "operations": operations.LIMITS,
    "apiserver": apiserver.LIMITS,
    "fleet": fleet.LIMITS,
    "templates": templates.LIMITS,
    "boot_storm": boot_storm.LIMITS,
    "agent": agent.LIMITS,
    "ssh": ssh.LIMITS,
    "cli": cli.LIMITS,
}
AMOUNTS: Final[Mapping[str, str]] = {
    "operations": operations.AMOUNT,
    "apiserver": apiserver.AMOUNT,
    "fleet": fleet.AMOUNT,
    "templates": templates.AMOUNT,
    "boot_storm": boot_storm.AMOUNT,
    "agent": agent.AMOUNT,
    "ssh": ssh.AMOUNT,
    "cli": cli.AMOUNT,
}
MISSING: Final[Mapping[str, Callable[[], str | None]]] = {
    "boot_storm": netboot_peers.missing,
    "agent": hosts.missing,
    "ssh": ssh.missing,
    "cli": cli.missing,
}
README: Final = Path(__file__).parent.parent / "README.md"
BEGIN: Final = "<!-- benchmarks:begin -->"
END: Final = "<!-- benchmarks:end -->"


def main() -> None:
    arguments = _parser().parse_args()
    results = [_run(name, quick=arguments.quick, repeat=arguments.repeat) for name in LIMITS if _possible(name)]
    text = table(results)
    print(text)
    if not arguments.quick:
        README.write_text(between_markers(README.read_text(), text))
        say(f"written to {README.name}")


def _possible(name: str) -> bool:
    """Whether a benchmark has here what it needs; if not, it is said and left out."""
    absent = MISSING[name]() if name in MISSING else None
    if absent is not None:
        say(f"benchmark {name} is left out: it needs {absent}")
    return absent is None


def _run(name: str, *, quick: bool, repeat: int) -> dict[str, Any]:
    say(f"benchmark {name}")
    options = ["--json", "--repeat", str(repeat), *(["--quick"] if quick else [])]
    command = [sys.executable, "-m", f"benchmarks.{name}", *options]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    return msgspec.json.decode(output.splitlines()[-1], type=dict[str, Any])


def table(results: Iterable[Mapping[str, Any]]) -> str:
    """What was measured beside what was promised, as Markdown."""
    lines: list[str] = []
    for result in results:
        machine, figures = result["machine"], {**result["figures"], **result["ratios"]}
        amount = AMOUNTS[result["name"]].format_map(figures)
        where = f"{machine['cpus']} CPUs ({machine['cpu']}, {machine['memory_gib']} GiB), Python {machine['python']}"
        lines += [
            f"`{result['name']}`: {amount}, on {where}.",
            "",
            "| | measured | aim | limit |",
            "|---|---:|---:|---:|",
        ]
        lines += [_row(figures[key], limit, result.get("spread", {}).get(key)) for key, limit in _limits(result)]
        lines.append("")
    return "\n".join(lines).strip()


def _limits(result: Mapping[str, Any]) -> Iterable[tuple[str, Limit]]:
    return LIMITS[result["name"]].items()


def _row(value: float, limit: Limit, spread: list[float] | None) -> str:
    apart = f" ({spread[0]:g} to {spread[1]:g})" if spread else ""
    aim = "" if limit.aim is None else f"{limit.aim:g}"
    return f"| {limit.says} | {value:g}{apart} | {aim} | {limit.bound} |"


def between_markers(readme: str, text: str) -> str:
    """The README with another table; its markers are put at its end if it has none."""
    if BEGIN not in readme:
        readme = f"{readme.rstrip()}\n\n## Figures\n\n{BEGIN}\n{END}\n".lstrip()
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small counts; the README stays as it is")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="tell the median of N runs")
    return parser


if __name__ == "__main__":
    main()
