"""What all benchmarks share: how a result looks, what the machine is, and the command line."""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import platform
import statistics
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

DIGITS: Final = 3


@dataclass(frozen=True)
class Measured:
    """What one run found: plain figures, and the ratios that the promises are about. Keys are stable."""

    figures: Mapping[str, float]
    ratios: Mapping[str, float]


@dataclass(frozen=True)
class Limit:
    """What a figure or ratio may be at most or has to be at least, and what it is wanted to be."""

    says: str
    most: float | None = None
    aim: float | None = None
    least: float | None = None

    @property
    def bound(self) -> str:
        """The limit as the table shows it."""
        if self.most is not None:
            return f"≤ {self.most:g}"
        return "" if self.least is None else f"≥ {self.least:g}"


Run = Callable[[bool], Coroutine[Any, Any, Measured]]
"""Measure once; the argument is whether to be quick."""


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that is not exceeded by `share` of all; of an empty sequence, not a number."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


def say(text: str) -> None:
    """Progress for people, apart from the result."""
    print(text, file=sys.stderr, flush=True)


def run_benchmark(name: str, run: Run) -> None:
    """The command line of one benchmark."""
    arguments = _parser(name).parse_args()
    load = os.getloadavg()[0]
    runs = [asyncio.run(run(arguments.quick)) for _ in range(arguments.repeat)]
    result = {"name": name, **median(runs), "machine": machine() | {"load_before": round(load, 2)}}
    print(msgspec.json.encode(result).decode() if arguments.json else as_text(result), flush=True)


def median(runs: Sequence[Measured]) -> dict[str, Any]:
    """Figures and ratios in the middle of several runs, and how far the ratios were apart."""
    found: dict[str, Any] = {
        "figures": _middle([run.figures for run in runs]),
        "ratios": _middle([run.ratios for run in runs]),
    }
    if len(runs) > 1:
        found["spread"] = {
            key: [round(pick(run.ratios[key] for run in runs), DIGITS) for pick in (min, max)] for key in runs[0].ratios
        }
    return found


def _middle(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: round(statistics.median(run[key] for run in runs), DIGITS) for key in runs[0]}


def as_text(result: Mapping[str, Any]) -> str:
    rows = {**result["figures"], **result["ratios"]}
    return "\n".join(f"{key:40} {value:>12g}" for key, value in rows.items())


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    facts = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in facts if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "cpu": models[0] if models else platform.machine(),
        "memory_gib": round(memory / 2**30),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _parser(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    parser.add_argument("--quick", action="store_true", help="small counts, under a minute")
    parser.add_argument("--json", action="store_true", help="print the result as one line of JSON")
    parser.add_argument(
        "--repeat", type=int, default=1, metavar="N", help="run N times, tell the median and the spread"
    )
    return parser
