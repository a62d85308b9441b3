"""Metrics of a running control plane, as input of `promtool test rules`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, cast

from prometheus_client.parser import text_string_to_metric_families

STEPS: Final = 400
Labels = tuple[tuple[str, str], ...]
Key = tuple[str, Labels]


@dataclass(frozen=True)
class Recording:
    """The samples of one scrape. Times are relative to it, as Prometheus's tests begin at time 0."""

    samples: Mapping[Key, float] = field(default_factory=dict)

    @classmethod
    def of(cls, *texts: str) -> Recording:
        """Read the answers of the targets."""
        now, found = time.time(), dict[Key, float]()
        for job, text in enumerate(texts):
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    value = sample.value - now if sample.name.endswith("_timestamp_seconds") else sample.value
                    labels = {**sample.labels, "job": f"target-{job}"}
                    found[sample.name, tuple(sorted(labels.items()))] = value
        return cls(found)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.samples)

    def of_name(self, name: str, **labels: str) -> dict[Labels, float]:
        """The samples of a metric that have these labels."""
        return {
            own: value
            for (found, own), value in self.samples.items()
            if found == name and labels.items() <= dict(own).items()
        }

    def changed(self, change: Callable[[str, float], float]) -> Recording:
        """The recording with other values, by name and value; it keeps its names and labels."""
        return replace(self, samples={key: change(key[0], value) for key, value in self.samples.items()})


def input_series(
    recording: Recording, growth: Mapping[str, float] | Mapping[Key, float] | None = None
) -> list[dict[str, str]]:
    """Return series that keep the values of a recording.

    Args:
        growth: in each step, of metrics by name, or of single series.
    """
    known, found = cast("Mapping[object, float]", growth or {}), []
    for (name, labels), value in sorted(recording.samples.items()):
        text = ", ".join(f"{label}={_quoted(own)}" for label, own in labels)
        more = known.get(name, known.get((name, labels), 0))
        values = f"{value!r}+{more!r}x{STEPS}" if math.isfinite(value) else f"_x{STEPS}"
        found.append({"series": f"{name}{{{text}}}", "values": values})
    return found


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
