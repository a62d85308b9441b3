"""Conditions of built-in objects, as their controllers write them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from unbounded_apiserver import metadata
from unbounded_apiserver.types import Object


def merge_conditions(old: Iterable[Object], new: Iterable[Object], now: datetime) -> list[Object]:
    """Merge new conditions over old ones; lastTransitionTime changes only with the status."""
    merged = {condition["type"]: condition for condition in old}
    for condition in new:
        before = merged.get(condition["type"])
        kept = before is not None and before["status"] == condition["status"]
        moment = before["lastTransitionTime"] if before is not None and kept else metadata.format_time(now)
        merged[condition["type"]] = {
            "type": condition["type"],
            "status": condition["status"],
            "lastTransitionTime": moment,
            "reason": condition["reason"],
            "message": condition["message"],
        }
    return list(merged.values())
