"""Evictions: what `kubectl drain` asks for a pod. No disruption budgets are served, so that nothing holds them back."""

from __future__ import annotations

from typing import Any, Final

from unbounded.apiserver import status
from unbounded.apiserver.deletes import Deletes
from unbounded.apiserver.options import DeleteOptions
from unbounded.apiserver.types import Object
from unbounded.apiserver.workloads.pods import PODS
from unbounded.apiserver.writes import Target

DONE: Final[dict[str, Any]] = {
    "kind": "Status",
    "apiVersion": "v1",
    "metadata": {},
    "status": "Success",
    "code": 201,
}


async def evict(deletes: Deletes, namespace: str, name: str, eviction: Object, *, dry_run: bool) -> dict[str, Any]:
    """Delete a pod as an eviction asks; the Status that answers it. Raises StatusError."""
    if eviction["metadata"].get("name") != name:
        raise status.bad_request("name in URL does not match name in Eviction object")
    asked = dict(eviction.get("deleteOptions") or {})
    if dry_run:
        asked["dryRun"] = ["All"]
    await deletes.delete(Target(PODS, namespace, name), DeleteOptions.read({}, asked))
    return DONE
