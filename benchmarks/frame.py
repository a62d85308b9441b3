"""Common parts of all benchmarks: results, facts of the machine, and the command line."""

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
    """Result of one run: plain figures, and the ratios of the promises. Keys are stable."""

    figures: Mapping[str, float]
    ratios: Mapping[str, float]


@dataclass(frozen=True)
class Limit:
    """Upper or lower bound of a figure or ratio, and its aim."""

    label: str
    most: float | None = None
    aim: float | None = None
    least: float | None = None

    @property
    def bound(self) -> str:
        """Return the bound in the form of the table."""
        if self.most is not None:
            return f"≤ {self.most:g}"
        return "" if self.least is None else f"≥ {self.least:g}"


Run = Callable[[bool], Coroutine[Any, Any, Measured]]
"""Measure once, with small counts if the argument is true."""


def percentile(values: Sequence[float], share: float) -> float:
    """Return the least value that `share` of all values do not exceed; NaN for an empty sequence."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


def print_progress(text: str) -> None:
    """Print progress to stderr, apart from the result."""
    print(text, file=sys.stderr, flush=True)


def run_benchmark(name: str, run: Run) -> None:
    """Run the command line of one benchmark."""
    arguments = _parser(name).parse_args()
    load = os.getloadavg()[0]
    runs = [asyncio.run(run(arguments.quick)) for _ in range(arguments.repeat)]
    result = {"name": name, **median(runs), "machine": machine() | {"load_before": round(load, 2)}}
    print(msgspec.json.encode(result).decode() if arguments.json else as_text(result), flush=True)


def median(runs: Sequence[Measured]) -> dict[str, Any]:
    """Return the medians of the figures and ratios of several runs, and the spread of the ratios."""
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
    """Return the facts of this machine."""
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
        "--repeat", type=int, default=1, metavar="N", help="run N times, report the median and the spread"
    )
    return parser
