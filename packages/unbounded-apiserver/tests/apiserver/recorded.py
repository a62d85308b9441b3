"""Answers of a real API server to a real kubelet, by the number of the exchange, and their comparison with ours."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from tests.support.paths import GOLDENS

RECORDING: Final = GOLDENS / "kubelet" / "exchanges.json"
FORK_SOURCE: Final = "openshift-service-ca.crt"  # of the recorded distribution alone
_GENERATED: Final = re.compile(r"(?<=kube-api-access-)[a-z0-9]{5}\b")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_OF_ITS_TIME: Final = frozenset({"uid", "resourceVersion", "managedFields", "clusterIP", "clusterIPs"})


@cache
def exchanges() -> Mapping[int, dict[str, Any]]:
    return {one["n"]: one for one in json.loads(RECORDING.read_bytes())}


def request(number: int) -> Any:
    """Return a copy of what was sent, without what only its server knew."""
    return _fresh(exchanges()[number]["request"])


def response(number: int) -> Any:
    return comparable(exchanges()[number]["response"])


def comparable(value: Any) -> Any:
    """Return a value without what the README of the recording lets differ: UIDs, versions, times, generated names."""
    if isinstance(value, dict):
        return {key: comparable(one) for key, one in value.items() if key not in _OF_ITS_TIME}
    if isinstance(value, list):
        return [comparable(one) for one in value if not is_of_fork(one)]
    return _TIME.sub("T", _GENERATED.sub("x", value)) if isinstance(value, str) else value


def is_of_fork(source: Any) -> bool:
    """Return whether a volume's source is one that the recorded distribution adds."""
    return isinstance(source, dict) and (source.get("configMap") or {}).get("name") == FORK_SOURCE


def _fresh(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _fresh(one) for key, one in value.items() if key not in {"uid", "resourceVersion"}}
    return [_fresh(one) for one in value] if isinstance(value, list) else value
