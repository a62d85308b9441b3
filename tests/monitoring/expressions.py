"""Metrics and labels in PromQL expressions, to compare them with the reference."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from scripts.metric_reference import MetricType, metric_types

_SELECTOR: Final = re.compile(r"\b((?:unbounded|apiserver)(?::[\w:]+|_\w+))\s*(?:\{([^}]*)\})?")
_MATCHER: Final = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_GROUPING: Final = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")
_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_PARTS: Final = ("_bucket", "_count", "_sum")
TARGET: Final = frozenset({"job", "instance", "namespace", "pod", "le"})  # of a scrape, or of each histogram


def known() -> dict[str, MetricType]:
    """The metrics of the reference by the names of their samples."""
    found: dict[str, MetricType] = {}
    for one in (one for types in metric_types().values() for one in types):
        for suffix in _PARTS if one.kind == "histogram" else ("",):
            found[one.name + suffix] = one
    return found


def plain(query: str) -> str:
    """Return a query of a dashboard with values for its variables."""
    return query.replace("$__rate_interval", "5m").replace("$site", ".*")


def unknown_in(expression: str, *, recorded: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield each metric and label of an expression that no process has.

    Args:
        recorded: metrics of recording rules.
    """
    metrics, labels = known(), set(TARGET)
    blank = _QUOTED.sub('""', expression)
    for name, matchers in _SELECTOR.findall(blank):
        if name in recorded:
            continue
        if name not in metrics:
            yield name
            continue
        labels |= set(metrics[name].labels)
        yield from (
            f"{name}{{{label}}}"
            for label in _MATCHER.findall(matchers)
            if label not in TARGET and label not in metrics[name].labels
        )
    for group in _GROUPING.findall(blank):
        yield from (label for label in (one.strip() for one in group.split(",")) if label and label not in labels)
