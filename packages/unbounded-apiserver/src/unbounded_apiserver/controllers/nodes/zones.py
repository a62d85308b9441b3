"""The health of each zone's Nodes, and the rate of evictions from unhealthy ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

from unbounded_apiserver.controllers.nodes.settings import NodeTimes

LARGE: Final = 50  # Nodes of a zone
MANY: Final = 0.55  # share of unhealthy Nodes in a zone from which evictions slow down or stop
EXCLUDED: Final = "node.kubernetes.io/exclude-disruption"
_REGION: Final = ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region")
_ZONE: Final = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")


class NodeReadiness(NamedTuple):
    """The zone and the readiness of a Node."""

    zone: str
    is_ready: bool


class Disruption(Enum):
    """The extent of a zone's disruption."""

    NONE = "most Nodes are ready"
    PARTIAL = "many Nodes are not ready"
    FULL = "no Node is ready"


def zone_of(labels: Mapping[str, Any]) -> str:
    region, zone = (next((labels[key] for key in keys if labels.get(key)), "") for keys in (_REGION, _ZONE))
    return f"{region}:{zone}"


class Zones:
    """The state of all zones, and the time at which the next Node of each may be tainted NoExecute."""

    def __init__(self, times: NodeTimes) -> None:
        self._times = times
        self._sizes: Counter[str] = Counter()
        self._states: dict[str, Disruption] = {}
        self._next: dict[str, float] = {}

    @property
    def is_all_away(self) -> bool:
        """True if no Node anywhere is ready: then the fault is probably here, and nothing is evicted."""
        return bool(self._states) and all(state is Disruption.FULL for state in self._states.values())

    def update(self, nodes: Iterable[NodeReadiness]) -> bool:
        """Count all Nodes; return whether the state of a zone changed."""
        away: Counter[str] = Counter()
        self._sizes.clear()
        for node in nodes:
            self._sizes[node.zone] += 1
            away[node.zone] += not node.is_ready
        before = self._states
        self._states = {zone: _state(away[zone], size) for zone, size in self._sizes.items()}
        return self._states != before

    def wait_s(self, zone: str, now: float) -> float | None:
        """Return the seconds until a Node of a zone may be tainted, None while evictions are stopped."""
        if self.is_all_away or self._interval_s(zone) is None:
            return None
        return max(0.0, self._next.get(zone, now) - now)

    def tainted(self, zone: str, now: float) -> None:
        """Count a Node that was tainted."""
        self._next[zone] = now + (self._interval_s(zone) or 0.0)

    def _interval_s(self, zone: str) -> float | None:
        if self._states.get(zone) is not Disruption.PARTIAL:
            return self._times.taint_interval_s
        return self._times.slow_interval_s if self._sizes[zone] > LARGE else None


def _state(away: int, size: int) -> Disruption:
    if away == size:
        return Disruption.FULL
    return Disruption.PARTIAL if away > 2 and away / size >= MANY else Disruption.NONE
